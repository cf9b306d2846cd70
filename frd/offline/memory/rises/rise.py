"""What is said of one rise of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frd.engine.memory.rises import Attribution
from frd.forms import utc_text
from frd.model import Confidence, SeriesKind
from frd.offline.phases.answer import PhaseAnswer


@dataclass(frozen=True, slots=True)
class RiseSuspect:
    rank: int
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Rise:
    """A rise of one rank, or of ranks between which nothing decides. Sizes are bytes."""

    job: str
    ranks: tuple[int, ...]
    """All ranks whose memory rose then."""
    suspects: tuple[RiseSuspect, ...]
    """Ranks that may each have been first; empty if all rose together, or nothing decides."""
    series: SeriesKind
    """The series that shows the onset of the first rank."""
    device: str
    """Empty for host memory."""
    onset: tuple[int, int]
    """Aligned ns: not before, and not after."""
    end_ns: int
    """When it fell back or stopped growing, or the recording ended."""
    bytes: int
    """From its usual level to the highest value."""
    took_s: float
    """From the earliest onset until it last grew."""
    peak_bytes: int
    fell_back: bool
    alarming: bool
    """It is also a finding."""
    common_cause: bool
    """(Nearly) all ranks rose together: none of them is the cause."""
    next_rank: int | None
    """The rank whose memory rose next."""
    lead_ns: int
    """How much later that was, at least, beyond what clocks and samples leave open."""
    unknown: tuple[int, ...]
    """Ranks that may have risen as early: their samples are missing, or their rise is small yet."""
    attribution: Attribution
    phase: PhaseAnswer
    text: str

    @property
    def bytes_per_s(self) -> float:
        """On average while it grew."""
        return self.bytes / self.took_s if self.took_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "suspects": [
                {"rank": one.rank, "confidence": one.confidence.value} for one in self.suspects
            ],
            "ranks": list(self.ranks),
            "series": self.series.value,
            "device": self.device or None,
            "onset": {"earliest": utc_text(self.onset[0]), "latest": utc_text(self.onset[1])},
            "ended": utc_text(self.end_ns),
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
            "phase": self.phase.to_json(),
            "text": self.text,
        }
