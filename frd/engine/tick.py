"""One attempt at one call of `Engine.advance`: all that a detector may read.

Facts that are needed at every call are values. The others cost more, or are reported only once;
they are computed when a detector first asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from frd.engine.matching.lateness import ClockHint, Window
from frd.engine.matching.usual_waits import Rest
from frd.engine.memory.incident import MemoryIncident
from frd.engine.policy import Policy
from frd.engine.state.phases import PhasesAt
from frd.engine.state.snapshot import Snapshot, StallTable
from frd.model import AlignedNs


@dataclass(frozen=True, slots=True)
class Tick:
    now: AlignedNs
    revision: int
    """Changes with every observation."""
    policy: Policy
    world_size: int
    stalls: StallTable
    early: StallTable
    """These and the waits that have lasted for half as long, see `EARLY`."""
    has_mismatches: bool
    has_exits: bool
    """A rank exited uncleanly, is silent, or finished too early."""
    has_calls: bool
    """A rank was seen in a wait that no recorder shows."""
    unsynchronized: Callable[[], Sequence[tuple[int, ...]]]
    """The ranks of each agent whose clock is unknown, where several clocks are compared."""
    snapshot: Callable[[], Snapshot]
    late_window: Callable[[], Window | None]
    """The lateness of the last window, if it has just become complete."""
    contradictions: Callable[[], Sequence[ClockHint]]
    """Clock hints that contradict the uncertainty of the clocks, since they were last read."""
    phases: PhasesAt
    rest: Rest
    """Looked at now and then."""
    memory_incidents: Callable[[], Sequence[MemoryIncident]]
    """Memory incidents that there are, and those that are over since they were last read."""
    placed: Callable[[], Mapping[int, AlignedNs]] = dict
    """See `Snapshot.placed`."""
    utc_ahead_ns: int = 0
    """As `Snapshot.utc_ahead_ns`."""
