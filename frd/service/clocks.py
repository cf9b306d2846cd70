"""The clocks of all agents, as far as the service has learned them.

Every agent session has one of its own: two agents of one host may live under different times, and
one that lies moves no clock but its own. What a ping teaches goes to `frd.engine.clock`; here it is
decided which of its answers is *in use*, that is what the session's rows are aligned with, what the
engine is told of the clock's quality and what the journal keeps, so that a replay aligns likewise.
An alignment stays in use while it is good enough: clocks cost the journal next to nothing.

`frd.service.pings` is the way in from the network; nothing here waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from frd.engine.alignment import FAR_NS, Alignment, ClockState
from frd.engine.clock import Exchange, NodeClock, Refusal, ServiceTable
from frd.engine.realtime import RealTable
from frd.errors import StoreError
from frd.model import AlignedNs, NodeNs, ServiceRawNs
from frd.wire import Readings

HORIZON_NS: Final = 1_500_000_000
"""What is in use must hold for so long: until another ping has come."""
_MARGIN: Final = 8
"""What is claimed of it is more than needed, by one part in so many."""
_ROUGH_NS: Final = 1_000_000
"""An estimate that nothing bounds is not changed for less."""
_LONGEST_NS: Final = 60_000_000_000
_READ_EVERY_NS: Final = 250_000_000
_FORGET_NS: Final = 600_000_000_000
MAX_GONE: Final = 4_096
"""Sessions without a stream whose clocks are kept, should they come back."""

Key: TypeAlias = tuple[str, str]
"""Boot id and session."""

log = logging.getLogger(__name__)


# -- what is in use ------------------------------------------------------------------------------


def guess(sent_at: NodeNs, received_at: AlignedNs) -> Alignment:
    """All that a single message tells."""
    return Alignment(
        state=ClockState.UNSYNCHRONIZED,
        reason="no exchange yet",
        now_ns=received_at,
        at_ns=sent_at,
        line_ns=received_at - sent_at,
        rate=0.0,
        line_from_ns=-FAR_NS,
        drift_ppm=0.0,
        age_s=0.0,
        segments=(),
    )


def claim_ns(alignment: Alignment) -> int | None:
    """How far off times of now may be that are aligned with it, for as long as it is in use."""
    needed = _needed_ns(alignment)
    return None if needed is None else needed + needed // _MARGIN


def serves(used: Alignment, fresh: Alignment) -> bool:
    """`used` is still good enough where `fresh` is the newest: its claim holds, and is not much
    larger than it need be."""
    if (used.state, used.reason) != (fresh.state, fresh.reason):
        return False
    if fresh.now_ns - used.now_ns > _LONGEST_NS:
        return False
    node_ns = _node_now(fresh)
    moved = abs(used.one_to_aligned(node_ns) - fresh.one_to_aligned(node_ns))
    needed, claimed = _needed_ns(fresh), claim_ns(used)
    if needed is None or claimed is None:
        return moved <= _ROUGH_NS
    return needed + moved <= claimed <= 2 * needed


def _needed_ns(alignment: Alignment) -> int | None:
    return alignment.uncertainty_ns(_node_now(alignment) + HORIZON_NS)


def _node_now(alignment: Alignment) -> NodeNs:
    return NodeNs(alignment.now_ns - alignment.offset_ns)


def encode(alignment: Alignment) -> bytes:
    return msgspec.msgpack.encode(alignment)


def decode(data: bytes) -> Alignment:
    """
    Raises:
        StoreError: `data` is not what `encode` gives.
    """
    try:
        return msgspec.msgpack.decode(data, type=Alignment)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"journal: alignment: {error}: a foreign file, or one of a newer frd"
        ) from None


# -- one clock -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockView:
    """What people see of a clock, reckoned when they look: most of the time nobody does."""

    alignment: Alignment
    at: AlignedNs
    """When they look, as far as the clock is concerned."""
    steps: int = 0
    """Of the node's wall clock, in this session."""

    @property
    def offset_s(self) -> float:
        """Service clock minus node clock."""
        return self.alignment.offset_ns / 1e9

    @property
    def uncertainty_s(self) -> float | None:
        """The offset is off by so much at most; None while nothing bounds it."""
        ns = self.alignment.uncertainty_ns(_node_now(self.alignment) + self._later_ns)
        return None if ns is None else ns / 1e9

    @property
    def drift_ppm(self) -> float:
        return self.alignment.drift_ppm

    @property
    def age_s(self) -> float | None:
        """Since the last exchange; None before the first."""
        segments = self.alignment.segments
        return self.alignment.age_s + self._later_ns / 1e9 if segments else None

    @property
    def is_synchronized(self) -> bool:
        return self.alignment.state is ClockState.SYNCHRONIZED

    @property
    def reason(self) -> str:
        """Why it is unsynchronized; empty otherwise."""
        return self.alignment.reason

    @property
    def _later_ns(self) -> int:
        return max(0, self.at - self.alignment.now_ns)


def clock_json(clock: ClockView) -> dict[str, Any]:
    """The form in which the API and dumps tell of a clock."""
    return {
        "clock_state": clock.alignment.state.value,
        "clock_reason": clock.reason,
        "clock_offset_s": clock.offset_s,
        "clock_uncertainty_s": clock.uncertainty_s,
        "clock_drift_ppm": round(clock.drift_ppm, 3),
        "clock_age_s": clock.age_s,
        "clock_steps": clock.steps,
    }


class AgentClock:
    """The clock of one agent session."""

    __slots__ = ("_newest", "_stream", "_tell", "gone_at", "learned", "name", "used")

    def __init__(self, name: str, first: Alignment) -> None:
        self.name = name
        self.learned = NodeClock()
        self.used = first
        self.gone_at = AlignedNs(0)
        """When its stream went; 0 while it is open."""
        self._newest = first
        self._stream = 0
        self._tell: Callable[[Alignment], None]

    @property
    def is_connected(self) -> bool:
        return self._stream > 0

    def connected(self, stream: int, tell: Callable[[Alignment], None]) -> None:
        """`tell` hears of all that comes into use while `stream` lasts."""
        self._stream, self._tell = stream, tell
        self.gone_at = AlignedNs(0)

    def disconnected(self, stream: int, now: AlignedNs) -> None:
        if stream == self._stream:  # else a newer stream of the session has taken its place
            self._stream = 0
            self.gone_at = now

    def is_older(self, now: AlignedNs, age_ns: int) -> bool:
        """Nothing has been concluded from it for so long."""
        return now - self._newest.now_ns > age_ns

    def conclude(self, newest: Alignment) -> None:
        used, self._newest = self.used, newest
        if serves(used, newest):
            return
        if (used.state, used.reason) != (newest.state, newest.reason):
            self._say(used, newest)
        self.used = newest
        if self.is_connected:
            self._tell(newest)

    def _say(self, used: Alignment, newest: Alignment) -> None:
        if newest.state is ClockState.SYNCHRONIZED:
            offset_ms = newest.offset_ns / 1e6
            within_ms = (newest.uncertainty_ns_now or 0) / 1e6
            level = logging.INFO if used.segments else logging.DEBUG  # the first time is no news
            log.log(level, "clock of %s: %+.3f ms ± %.3f ms", self.name, offset_ms, within_ms)
        else:
            moved_s = (newest.offset_ns - used.offset_ns) / 1e9
            log.warning(
                "clock of %s: unsynchronized: %s; its offset moved by %+.3f s",
                *(self.name, newest.reason, moved_s),
            )

    def view(self, now: AlignedNs) -> ClockView:
        return ClockView(self._newest, now, self.learned.steps)


# -- all clocks ----------------------------------------------------------------------------------


class Clocks:
    """`now` is the clock that rows are aligned to, `raw` the one that pings are stamped with."""

    def __init__(self, now: Callable[[], AlignedNs], raw: Callable[[], ServiceRawNs]) -> None:
        self.refused: Counter[str] = Counter()
        """Timestamps that were not believed and streams that were not served, by reason."""
        self._now = now
        self._raw = raw
        self._clocks: dict[Key, AgentClock] = {}
        self._table: ServiceTable = RealTable(_READ_EVERY_NS)
        self._read()

    def connected(
        self,
        key: Key,
        name: str,
        first: Alignment,
        stream: int,
        tell: Callable[[Alignment], None],
    ) -> AgentClock:
        """The clock of a session that has said hello on `stream`; see `AgentClock.connected`.

        `first` is the alignment to begin with, if the session is new.
        """
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = AgentClock(name, first)
        clock.connected(stream, tell)
        return clock

    def find(self, key: Key) -> AgentClock | None:
        """The clock of a session that is connected."""
        clock = self._clocks.get(key)
        return clock if clock is not None and clock.is_connected else None

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def heard(self, clock: AgentClock, sent_at: NodeNs, received_at: AlignedNs) -> None:
        """A message of the main stream: all that there is to go by without pings."""
        clock.learned.one_way(sent_at, received_at)
        if not clock.used.segments:
            clock.conclude(clock.learned.alignment(self._read(), self._table))

    def learn(self, clock: AgentClock, readings: Readings, exchange: Exchange | None) -> None:
        """What one ping brought: readings of the node, and the end of an earlier exchange."""
        refusals: list[Refusal | None] = [
            clock.learned.readings(readings.raw_ns, readings.real_ns, readings.slack_ns)
        ]
        if exchange is not None:
            refusals.append(clock.learned.exchange(exchange))
        for refusal in refusals:
            if refusal is not None:
                self.refuse(refusal.value)
        clock.conclude(clock.learned.alignment(self._read(), self._table))

    def refresh(self) -> None:
        """What is claimed of clocks that have not been heard of must be true all the same."""
        raw, now = self._read(), self._now()
        for clock in self._clocks.values():
            if clock.is_connected and clock.is_older(now, HORIZON_NS):
                clock.conclude(clock.learned.alignment(raw, self._table))

    def forget(self, now: AlignedNs) -> None:
        """Drop sessions that are gone for long, or too many."""
        gone = [(clock.gone_at, key) for key, clock in self._clocks.items() if clock.gone_at]
        gone.sort(reverse=True)
        for at, key in gone[:MAX_GONE]:
            if now - at > _FORGET_NS:
                del self._clocks[key]
        for _, key in gone[MAX_GONE:]:
            del self._clocks[key]

    def _read(self) -> ServiceRawNs:
        """The service's own two clocks."""
        before, real, after = self._raw(), self._now(), self._raw()
        middle = ServiceRawNs(before + (after - before) // 2)
        self._table.read(middle, real, after - middle)
        return middle
