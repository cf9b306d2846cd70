"""One node's clock against the service's, from exchanges of four timestamps.

Exchanges bound the offset between the two raw clocks, which are neither stepped nor slewed: it was
at most ``t2 - t1`` when the ping was sent and at least ``t3 - t4`` when the pong arrived. Later it
can have moved by 100 ppm of the time passed, however the drift has changed. That is the interval,
and it rests on nothing else; of all exchanges only one binds on each side. The estimate inside it
is the bisector of two convex hulls over the last two minutes (`feasible_line`), much better than
the interval's middle because real drift hardly changes.

Tables of readings (`realtime_table`) lead from the node's real clock to its raw one, and from the
service's raw clock to aligned time. After a step on either side nothing is claimed, and nothing
older is used, until an exchange has begun since: a host that slept shows the same signs as one
whose clock was set. If bounds exclude each other without a step (a machine was paused, a node
reports wrong times), all that was learned is dropped. The newest exchange is the new start, and
needs others that agree with it.

No table shows what happened since its last reading: for such times the interval holds unless a
clock was stepped or stopped just then. Every agent session has a separate clock, so one session
never moves the clock of another. Memory is bounded, and bounds are integers, rounded outward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from frd.engine.clocks.alignment import FAR_NS, GROWTH_PPM, Alignment, Segment
from frd.engine.clocks.collective_bounds import PeerBounds
from frd.engine.clocks.exchange import (
    DRIFT,
    Exchange,
    OffsetBounds,
    Refusal,
    refuse_exchange,
    refuse_readings,
)
from frd.engine.clocks.feasible_line import FeasibleLine
from frd.engine.clocks.history import OffsetHistory
from frd.engine.clocks.realtime_table import RealtimeTable
from frd.model import AlignedNs, NodeNs, NodeRawNs, ServiceRawNs

__all__ = ["MOST_READINGS", "Exchange", "NodeClock", "Refusal", "ServiceTable"]

ONE_WAY_NS: Final = 60_000_000_000
"""Without exchanges, the fastest message of the last one to two such windows counts."""
SILENT_NS: Final = 120_000_000_000
"""A clock without an exchange for this long is unsynchronized."""
MOST_READINGS: Final = 64
"""Of one message."""
AGREE: Final = 2
"""Exchanges that must agree with one that contradicted those before."""
START_OVER: Final = 8
"""Refusals in a row after which the clock drops what it compared with."""
_LINE_NS: Final = 10_000_000_000
"""How far back an alignment's line reaches."""
_FLOORS_NS: Final = 5
"""Clocks show whole nanoseconds; an offset is made of five readings."""

ServiceTable: TypeAlias = RealtimeTable[ServiceRawNs, AlignedNs]
"""The service's own readings: when its raw clock showed this, aligned time was that."""


class OffsetEstimate(NamedTuple):
    """What is known of a clock at one moment, without its past."""

    reason: str
    """Why the clock is unsynchronized; empty otherwise."""
    now_ns: AlignedNs
    at_ns: int
    """The node's real clock, when it was read last."""
    offset_ns: int
    """Service minus node, then."""
    half_ns: int
    """Largest error of the offset."""
    rate: float
    """Growth of the offset, in ns per ns."""
    drift: float
    """Of the service's raw clock against the node's."""


def _node_table() -> RealtimeTable[NodeRawNs, NodeNs]:
    return RealtimeTable(most=16)


class NodeClock:
    """The clock of one agent session."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the node's real clock against its raw one."""
        self.contradictions = 0
        self._least: deque[tuple[int, int]] = deque(maxlen=2)
        """Of the last two windows: number, shortest way of a message."""
        self._last: Exchange | None = None
        self._bounds: OffsetBounds | None = None
        self._corridor: FeasibleLine | None = None
        self._agreed = AGREE
        self._refused = 0
        self._unread = 0
        self._node = _node_table()
        self._history: OffsetHistory | None = None
        self._knot_raw = 0
        """Node raw time of the newest knot."""
        self._service_steps = 0
        self._peer_bounds = PeerBounds()
        self._newest: OffsetEstimate | None = None
        """The newest estimate that rests on exchanges."""

    # -- what comes in -------------------------------------------------------------------------

    def one_way(self, sent_at: NodeNs, received_at: AlignedNs) -> None:
        """A message of the main stream: an upper bound of the offset, until exchanges come."""
        delay, window = received_at - sent_at, received_at // ONE_WAY_NS
        if self._least and self._least[-1][0] == window:
            delay = min(delay, self._least.pop()[1])
        self._least.append((window, delay))

    def exchange(self, x: Exchange) -> Refusal | None:
        """An answered ping; exchanges come in the order of sending, and some may be missing."""
        refusal = refuse_exchange(x, self._last)
        if refusal is not None:
            self._refused += 1
            if self._refused >= START_OVER:
                self._last, self._refused = None, 0
            return refusal
        self._refused = 0
        first, self._last = self._last is None, x
        bounds = self._bounds
        if bounds is None:
            self._bounds = OffsetBounds(x)
        elif first or not bounds.narrow(x):
            self._contradicted()
            self._bounds = OffsetBounds(x)
        elif self._agreed < AGREE:
            self._agreed += 1
        self._learn(x)
        return None

    def _learn(self, x: Exchange) -> None:
        t1, t2, t3, at = x
        upper, lower = t2 - t1 + (at - t1) // DRIFT, t3 - at
        if self._corridor is None:
            self._corridor = FeasibleLine(1 / DRIFT, at, upper, lower)
        else:
            self._corridor.add(at, upper, lower)

    def _contradicted(self) -> None:
        self.contradictions += 1
        self._agreed = 0
        self._corridor = None
        self._peer_bounds = PeerBounds()
        if self._history is not None:
            self._history.distrust(self._node.last_real)

    def readings(
        self, raws: Sequence[int], reals: Sequence[int], slacks: Sequence[int]
    ) -> Refusal | None:
        """The node's clocks side by side, in order; the whole batch is refused when it is bad."""
        if len(raws) > MOST_READINGS:
            return Refusal.FLOOD
        table = self._node
        sane = raws and raws[-1] < FAR_NS and 0 < reals[-1] < FAR_NS
        if sane and table.read_calm(raws, reals, slacks):
            self._unread = 0
            return None
        rows = list(zip(raws, reals, slacks, strict=True))
        refusal = refuse_readings(rows, table.last_raw if table else 0)
        if refusal is not None:
            self._unread += 1
            if self._unread >= START_OVER:
                self._forget_readings()
            return refusal
        self._unread = 0
        for at, shown, loose in rows:
            self._read(NodeRawNs(at), NodeNs(shown), loose)
        return None

    def _read(self, raw: NodeRawNs, real: NodeNs, slack: int) -> None:
        table, history = self._node, self._history
        if history is None:
            self._history = OffsetHistory(real - slack)
            table.read(raw, real, slack)
            return
        before_raw, before_real = table.last_raw, table.last_real
        if table.read(raw, real, slack):
            self.steps += 1
            history.step(before_real, raw - before_raw + slack, real)

    def _forget_readings(self) -> None:
        self._unread = 0
        self._node, self._history, self._knot_raw = _node_table(), None, 0

    def constrain(
        self,
        peer: str,
        peers: int,
        at: AlignedNs,
        least_ns: int | None = None,
        most_ns: int | None = None,
    ) -> bool:
        """A bound on this clock from a collective with the node `peer`, one of `peers` others.

        The true aligned times of this node around `at` are between `least_ns` and `most_ns` later
        than the ones in use. False when enough peers contradict the interval: all that was learned
        is dropped.
        """
        newest = self._newest
        if newest is None or newest.reason:
            return True
        later = at - newest.offset_ns - newest.at_ns
        offset = newest.offset_ns + int(later * newest.rate)
        self._peer_bounds.add(
            peer,
            peers,
            at,
            None if least_ns is None else offset + least_ns,
            None if most_ns is None else offset + most_ns,
        )
        low, high = self._peer_bounds.interval(at)
        spare = 2 * newest.half_ns + abs(later) * GROWTH_PPM // 1_000_000
        if low <= offset + spare and offset - spare <= high:
            return True
        self._contradicted()
        self._last = self._bounds = None
        return False

    # -- what is known -------------------------------------------------------------------------

    def newest(self, now: ServiceRawNs, table: ServiceTable) -> OffsetEstimate:
        """What is known now, cheaply; `table` should have been read just before."""
        if table.steps != self._service_steps:
            self._service_stepped(now, table)
        last, bounds, corridor, history = self._last, self._bounds, self._corridor, self._history
        if last is None or bounds is None or corridor is None or history is None:
            return self._unknown(now, table)
        reason = self._reason(last, now, table.stepped_at)
        if not reason and self._is_stale(bounds.first, table.stepped_at):
            bounds = self._bounds = OffsetBounds(last)
        raw, node_ahead, slack = self._node.last()
        offset, half = bounds.settle(raw, corridor.at(raw))
        ahead, loose = table.ahead(raw + offset)
        half += slack + loose + half // 1_000 + _FLOORS_NS
        at_ns, offset_ns = raw + node_ahead, offset - node_ahead + ahead
        if not -FAR_NS < offset_ns < FAR_NS:
            offset_ns = min(max(offset_ns, -FAR_NS), FAR_NS)
        if self._peer_bounds:
            offset_ns, half = self._clamped(at_ns, offset_ns, half)
        if not reason and raw >= self._knot_raw:
            history.add((at_ns, offset_ns, half))
            self._knot_raw = raw
        self._newest = newest = OffsetEstimate(
            reason,
            AlignedNs(now + table.last_ahead),
            at_ns,
            offset_ns,
            half,
            corridor.slope - self._node.rate + table.rate,
            corridor.slope,
        )
        return newest

    def alignment(self, now: ServiceRawNs, table: ServiceTable) -> Alignment:
        """What is known now, as a value to align with and to keep."""
        reason, now_ns, at_ns, offset_ns, _, rate, drift = self.newest(now, table)
        last, history = self._last, self._history
        line: tuple[int, int] = (-FAR_NS, FAR_NS)
        segments: tuple[Segment, ...] = ()
        if history is not None and self._newest is not None:
            line, segments = history.line(at_ns - _LINE_NS), history.segments()
        return Alignment(
            reason,
            now_ns,
            at_ns,
            offset_ns,
            rate,
            line[0],
            drift * 1e6,
            (now - last.t3) / 1e9 if last else 0.0,
            segments,
            line[1],
        )

    def _service_stepped(self, now: ServiceRawNs, table: ServiceTable) -> None:
        self._service_steps = table.steps
        if self._history is not None and self._last is not None:
            self._history.shift(self._node.last_real + now - self._last.t2)

    def _unknown(self, now: ServiceRawNs, table: ServiceTable) -> OffsetEstimate:
        now_ns = AlignedNs(now + table.last_ahead)
        if self._newest is not None:
            return self._newest._replace(reason="contradiction", now_ns=now_ns)
        offset_ns = min([delay for _, delay in self._least], default=0)
        return OffsetEstimate("no exchange yet", now_ns, now_ns - offset_ns, offset_ns, 0, 0.0, 0.0)

    def _reason(self, last: Exchange, now: ServiceRawNs, service_stepped_at: int) -> str:
        """Why the clock is unsynchronized; empty when it is not."""
        if self._agreed < AGREE:
            return "contradiction"
        if self._is_stale(last, service_stepped_at):
            return "stepped"
        if now - last.t3 > SILENT_NS:
            return "silent"
        return ""

    def _is_stale(self, x: Exchange, service_stepped_at: int) -> bool:
        """The exchange began before a clock stepped."""
        return x.t1 < self._node.stepped_at or x.t2 < service_stepped_at

    def _clamped(self, node_ns: int, offset: int, half: int) -> tuple[int, int]:
        """Into the peers' bounds as far as the interval permits, which itself stays as it is."""
        low, high = self._peer_bounds.interval(node_ns + offset)
        moved = min(max(offset, low), high)
        moved = min(max(moved, offset - half), offset + half)
        return moved, half + abs(moved - offset)
