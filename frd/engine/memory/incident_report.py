"""A report of a memory incident: which rank rose first, how far, and the owner of the memory.

Values only, so that code that makes findings or prints reports need not know how rises are found.
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
    """How much of it belongs to torch is unknown."""
    OTHER = "another process"
    OUTSIDE = "NCCL, the driver or another process"
    """Not torch's; what the rank's process uses is unknown."""
    UNKNOWN = "unknown"
    """Only the sum over the device is known."""
    HOST = "host memory of the rank"
    CGROUP = "host memory of others in its cgroup"


@dataclass(frozen=True, slots=True)
class MemoryRise:
    """The rise of one rank, as of when the incident named the rank."""

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
    """Recent rate; 0 if it does not change."""
    headroom_bytes: int
    """What is left of the capacity, whichever process uses it; -1 unknown."""
    attribution: Attribution
    requested_bytes: int = 0
    """Size of the request that failed; 0 if none did, or unknown."""
    out_of_memory: bool = False

    @property
    def exhausted_in_s(self) -> float | None:
        """None if it does not rise, or the capacity is unknown."""
        if self.bytes_per_s <= 0 or self.headroom_bytes < 0:
            return None
        return self.headroom_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """One memory incident as it opens, changes or closes. Later reports carry the same number.

    A rank in `ranks` stays there: later data may add ranks that were `unknown`, and victims.
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
    """(Nearly) all ranks rose together: none of `ranks` is the cause."""
    ranks: tuple[int, ...]
    """Ranks that may each have been first, sorted; one rank if it is certain."""
    first: tuple[MemoryRise, ...]
    """Their rises, as many as a finding lists; the ranks that were named first come first."""
    unknown: tuple[int, ...]
    """Ranks that may have risen as early: their samples are missing or late."""
    victims: tuple[int, ...]
    """Ranks that rose, or ran out of memory, later."""
    failed: tuple[int, ...]
    """Ranks whose allocations failed, or that were killed because memory ran out."""
    confidence: Confidence
    since: AlignedNs
    """Latest time at which the first rank began to rise."""
    at: AlignedNs
    """When the report was made."""
    close_reason: str = ""
