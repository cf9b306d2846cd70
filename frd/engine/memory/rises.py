"""A rise of memory: of one rank, or of ranks between which nothing decides. All values are frozen.

The same for a job that runs and for a recording: the model of this package makes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from frd.forms import utc_text
from frd.model import Confidence, SeriesKind


class Attribution(StrEnum):
    """Whose memory a rise is."""

    ALLOCATOR = "torch's allocator"
    DRIVER = "NCCL or the driver"
    """The process's, beyond what torch's allocator holds."""
    PROCESS = "the rank's process"
    """How much of it belongs to torch is unknown."""
    OUTSIDE = "NCCL, the driver or another process"
    """Not torch's; what the rank's process uses is unknown."""
    UNKNOWN = "unknown"
    """Only the sum over the device is known."""
    HOST = "host memory of the rank"


@dataclass(frozen=True, slots=True)
class RiseSuspect:
    rank: int
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Rise:
    """Sizes are bytes, times aligned ns."""

    ranks: tuple[int, ...]
    """All ranks whose memory rose then."""
    suspects: tuple[RiseSuspect, ...]
    """Ranks that may each have been first; empty if all rose together, or nothing decides."""
    series: SeriesKind
    """The series that shows the onset of the first rank."""
    device: str
    """Empty for host memory."""
    onset: tuple[int, int]
    """Not before, and not after."""
    end_ns: int
    """When it fell back or stopped growing; else the newest sample."""
    bytes: int
    """From its usual level to the highest value."""
    took_s: float
    """From the earliest onset until it last grew."""
    peak_bytes: int
    fell_back: bool
    alarming: bool
    """Memory will run out, or has: there is a finding."""
    common_cause: bool
    """(Nearly) all ranks rose together: none of them is the cause."""
    next_rank: int | None
    """The rank whose memory rose next."""
    lead_ns: int
    """How much later that was, at least, beyond what clocks and samples leave open."""
    unknown: tuple[int, ...]
    """Ranks that may have risen as early: their samples are missing, or their rise is small yet."""
    attribution: Attribution
    text: str
    """One line for people, without the phase."""

    @property
    def bytes_per_s(self) -> float:
        """On average while it grew."""
        return self.bytes / self.took_s if self.took_s else 0.0

    def to_json(self, utc_ahead_ns: int = 0) -> dict[str, Any]:
        """The common keys of a rise in the API and in `frd analyze --memory --json`."""
        earliest, latest = (utc_text(at + utc_ahead_ns) for at in self.onset)
        return {
            "suspects": [
                {"rank": one.rank, "confidence": one.confidence.value} for one in self.suspects
            ],
            "ranks": list(self.ranks),
            "series": self.series.value,
            "device": self.device or None,
            "onset": {"earliest": earliest, "latest": latest},
            "ended": utc_text(self.end_ns + utc_ahead_ns),
            "bytes": self.bytes,
            "took_s": self.took_s,
            "bytes_per_s": round(self.bytes_per_s),
            "peak_bytes": self.peak_bytes,
            "fell_back": self.fell_back,
            "alarming": self.alarming,
            "common_cause": self.common_cause,
            "next_rank": self.next_rank,
            "lead_s": self.lead_ns / 1e9 if self.next_rank is not None else None,
            "unknown": list(self.unknown),
            "whose": self.attribution.value,
            "text": self.text,
        }
