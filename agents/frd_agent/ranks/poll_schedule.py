"""When to read all recorders of a rank: often enough to lose no entries, rarely enough to cost
little.

The tap's counters are free and come about once a second; a dump costs the rank's server thread
about 16 µs an entry. So a dump is requested when more than about half of the recorder is new; when
the counters stop during an op in flight (a hang looks like that, and then a dump shows
everything); when the counters are seconds old (the GIL is held, or the process is stopped; the
socket needs neither); and otherwise only as often as a small share of a core allows. Pure: times
are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from frd_agent import tap
from frd_agent.ranks.tap_files import TapCounters


@dataclass(frozen=True, slots=True)
class PollPolicy:
    """Values are in seconds unless another unit is given."""

    ring_entries: int = 2_000
    """Size of the ring until a dump shows more."""
    fill: float = 0.6
    """Share of the ring that may be new before it is read."""
    still_s: float = 1.0
    """Counters that have not moved for this long are at rest."""
    stale_s: float = 2.0
    """Counters older than this, or than two publications, say nothing about the present."""
    stale_every_s: float = 3.0
    min_interval_s: float = 1.0
    """Least time between two dumps of one rank."""
    entry_cost_s: float = 16e-6
    """What one entry of a dump costs the rank."""
    cost_share: float = 0.005
    """Share of a core for dumps without an urgent reason."""
    min_refresh_s: float = 2.0
    max_refresh_s: float = 6.5
    """Between dumps of a moving rank, which is known as of the last one: below what the service
    takes for late. A ring so large that this would cost `max_cost_share` is read less often."""
    max_cost_share: float = 0.01
    gil_cost_s: float = 19e-6
    """What one entry of a dump that needs the interpreter costs the rank, which does nothing else
    meanwhile."""
    moving_share: float = 0.002
    """`cost_share` of such dumps of a rank that may make progress."""
    longest_hold_s: float = 0.1
    """Such a rank is never stopped for longer."""
    waits_s: float = 3.0
    """After so long without progress a rank is taken to wait, and may be stopped at any time."""
    rest_every_s: float = 3.0
    """Between dumps of a rank that rests now and again with nothing in flight."""


class Why(Enum):
    """Why a dump is due; the words appear in metrics and debug logs."""

    FIRST = "first"
    FILL = "fill"
    STILL = "still"
    STALE = "stale"
    REFRESH = "refresh"
    RETRY = "retry"


class PollSchedule:
    """The poll policy of one rank."""

    def __init__(self, policy: PollPolicy) -> None:
        self._policy = policy
        self._raw: TapCounters = {}
        self._moved_at = 0.0
        self._exact = False
        self.age_s = float("inf")
        """Of the counters; infinite when there are none."""
        self._stale_s = policy.stale_s
        self._asked_at: float | None = None
        self._asked_raw: TapCounters = {}
        self._known_raw: TapCounters = {}
        """Counters that a dump is known to cover, because they were seen before it."""
        self._dumped_raw: TapCounters = {}
        self._entries = 0
        self._ring = policy.ring_entries
        self._retry = False
        self.needs_gil = False
        """All entries of a recorder of the rank can be read by its interpreter only."""
        self.gil_ring = policy.ring_entries
        """Size of the ring of each such recorder."""
        self._held_at: float | None = None
        self._held_raw: TapCounters = {}
        """Counters that a dump by the interpreter is known to cover."""

    # -- input ---------------------------------------------------------------------------------

    def see(
        self,
        raw: TapCounters | None,
        age_s: float,
        *,
        exact: bool,
        now: float,
        every_s: float = 1.0,
    ) -> None:
        """The tap's counters, `age_s` after they were published; None when there are none.

        `every_s`: how often they come; a tap with many groups publishes more rarely.
        `exact`: with the last dump they say all that the rank has done. Never so before the first
        dump, with a recorder that has no counters, or when they have moved since.
        """
        self._exact = exact
        self._stale_s = max(self._policy.stale_s, 2.0 * every_s)
        if raw is None:
            self.age_s = float("inf")
            return
        self.age_s = age_s
        if raw != self._raw:
            self._raw = dict(raw)
            self._moved_at = now - age_s

    def asked(self, now: float) -> None:
        """A dump was requested; this counts even if no answer comes."""
        self._asked_at = now
        self._asked_raw = self._raw
        self._retry = False

    def dumped(self, raw: TapCounters, entries: int, *, held_at: float | None = None) -> None:
        """A dump came, with these counters and with `entries` in the largest recorder. `held_at`:
        when it has included what the interpreter was needed for."""
        if held_at is not None:
            self._held_at, self._held_raw = held_at, self._asked_raw
        self._dumped_raw = raw
        self._known_raw = self._asked_raw
        self._entries = entries
        self._ring = max(self._ring, entries)

    def retry(self) -> None:
        """A dump came, but cannot be used yet."""
        self._retry = True

    def rested_s(self, now: float) -> float:
        """For how long the counters have not moved."""
        return now - self._moved_at

    # -- decisions -----------------------------------------------------------------------------

    @property
    def hold_s(self) -> float:
        """How long the interpreter is held by a dump of all entries, as far as the counters say."""
        ops: dict[int, int] = {}
        for (recorder, _), status in self._raw.items():
            ops[recorder] = ops.get(recorder, 0) + status.enqueued + 1
        entries = [min(ops[one], self.gil_ring) for one in ops if one >= tap.HOOKED]
        return sum(entries) * self._policy.gil_cost_s

    def hold_in_s(self, now: float, wall_s: float) -> float | None:
        """After how many seconds the interpreter may be held for such a dump; None: not now.

        A rank that makes progress is held at multiples of a power of two of seconds of the wall
        clock (`wall_s`): there all ranks of a job pause together, and it waits once.
        """
        policy, hold_s = self._policy, self.hold_s
        since_s = float("inf") if self._held_at is None else now - self._held_at
        if self.rested_s(now) >= policy.waits_s:
            return 0.0 if since_s >= hold_s / policy.cost_share else None
        every_s = 2 ** math.ceil(math.log2(max(hold_s / policy.moving_share, 1.0)))
        in_s = -wall_s % every_s
        is_near = in_s <= 2 * policy.min_interval_s
        return in_s if is_near and hold_s <= policy.longest_hold_s else None

    def may_be_held(self, now: float) -> bool:
        """For a person: the rank waits, or is not held for long."""
        policy = self._policy
        return self.rested_s(now) >= policy.waits_s or self.hold_s <= policy.longest_hold_s

    @property
    def is_stale(self) -> bool:
        return self.age_s > self._stale_s

    def due(self, now: float, wall_s: float = 0.0) -> Why | None:
        policy = self._policy
        if self._asked_at is None:
            return Why.FIRST
        since = now - self._asked_at
        if since < policy.min_interval_s:
            return None
        if self._retry:
            return Why.RETRY
        if self.is_stale:
            return Why.STALE if since >= policy.stale_every_s else None
        rests = now - self._moved_at >= policy.still_s
        is_unread = self.needs_gil and self._raw != self._held_raw
        if is_unread and self.hold_in_s(now, wall_s) is not None:
            return Why.STILL if rests else Why.FILL
        if self._raw in (self._dumped_raw, self._known_raw):
            return Why.REFRESH if not self._exact and since >= self._refresh_s else None
        if self._fresh >= policy.fill * self._ring:
            return Why.FILL
        if rests and (self._in_flight or since >= policy.rest_every_s):
            return Why.STILL
        return Why.REFRESH if since >= self._refresh_s else None

    @property
    def _in_flight(self) -> bool:
        return any(status.enqueued > status.completed for status in self._raw.values())

    @property
    def _fresh(self) -> int:
        """Entries that the fullest recorder has made since the last dump, by its counters."""
        fresh: dict[int, int] = {}
        for key, status in self._raw.items():
            before = self._dumped_raw.get(key)
            made = status.enqueued - (before.enqueued if before else 0)
            fresh[key[0]] = fresh.get(key[0], 0) + max(made, 0)
        return max(fresh.values(), default=0)

    @property
    def _refresh_s(self) -> float:
        policy = self._policy
        cost_s = self._entries * policy.entry_cost_s
        longest_s = max(policy.max_refresh_s, cost_s / policy.max_cost_share)
        return min(max(cost_s / policy.cost_share, policy.min_refresh_s), longest_s)
