"""What the engine says of an incident of memory: whose rose first, how far, whose memory it is.

Values only, so that those who make findings or print reports of them need not know how rises are
found (`frd.engine.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frd.model import AlignedNs, Change, Confidence, Kind, SeriesKind


class Attribution(StrEnum):
    """Whose memory a rise is."""

    ALLOCATOR = "torch's allocator"
    DRIVER = "NCCL or the driver"
    """The process's, beyond what torch's allocator holds."""
    PROCESS = "the rank's process"
    """How much of it is torch's is not known."""
    OTHER = "another process"
    OUTSIDE = "NCCL, the driver or another process"
    """Not torch's; what the rank's process uses is not known."""
    UNKNOWN = "unknown"
    """Only the sum over the device is known."""
    HOST = "host memory of the rank"
    CGROUP = "host memory of others in its cgroup"


@dataclass(frozen=True, slots=True)
class MemoryRise:
    """The rise of one rank, as it was seen when the verdict was given."""

    rank: int
    kind: SeriesKind
    """The series that showed it first."""
    device: str
    onset: tuple[AlignedNs, AlignedNs]
    """It began within: the last sample before it and the first one of it, clocks included."""
    risen_bytes: int
    """Beyond the highest usual level; 0 when the rank only reported to be out of memory."""
    took_s: float
    """Since the onset."""
    bytes_per_s: float
    """Lately; 0 when it stands still."""
    headroom_bytes: int
    """What is left of the capacity, whoever else uses it; -1 unknown."""
    attribution: Attribution
    requested_bytes: int = 0
    """Of the request that failed; 0 when none did, or unknown."""
    out_of_memory: bool = False

    @property
    def exhausted_in_s(self) -> float | None:
        """None when it does not rise, or nobody knows the capacity."""
        if self.bytes_per_s <= 0 or self.headroom_bytes < 0:
            return None
        return self.headroom_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """An incident, as it opens, changes or closes. A newer version carries the same number.

    Who is in `ranks` stays in it: later data may add ranks that were `unknown`, and victims.
    """

    number: int
    """Of the incident, within its attempt."""
    change: Change
    kind: Kind
    """`MEMORY_SPIKE`, which may become an `OOM`."""
    on_host: bool
    """Host memory, not that of devices."""
    leak: bool
    """A slow, steady rise over a long time."""
    common: bool
    """(Nearly) all ranks rose together: none of `ranks` is a culprit."""
    ranks: tuple[int, ...]
    """Those of which each may have been the first, sorted; one when it is certain."""
    first: tuple[MemoryRise, ...]
    """Their rises, as many as a finding lists, those who were named first before all others."""
    unknown: tuple[int, ...]
    """Ranks that may have risen as early, but nobody saw: their samples are missing or late."""
    victims: tuple[int, ...]
    """Ranks that rose, or ran out of memory, later."""
    failed: tuple[int, ...]
    """Ranks whose allocations failed, or who were killed for want of memory."""
    confidence: Confidence
    since: AlignedNs
    """By when the first of them had begun to rise."""
    at: AlignedNs
    """When this was said."""
    close_reason: str = ""
