"""One node's clock against the service's, from exchanges of four timestamps.

Exchanges bound the offset between the two raw clocks, which nobody steps or slews: it was at most
``t2 - t1`` when the ping was sent and at least ``t3 - t4`` when the pong came. Later it can have
moved by 100 ppm of the time passed, however the drift changed meanwhile. That is the interval, and
it rests on nothing else; of all exchanges only one bound on each side still binds. The estimate
inside of it is the bisector of two hulls over the last one to two minutes (`hull`), which is much
better than the interval's middle because real drift hardly changes.

Tables of readings (`realtime`) lead from the node's real clock to its raw one and from the
service's raw clock to the time that the engine lives on. After a step on either side nothing is
claimed until an exchange has begun since: a host that slept shows the same signs as one whose clock
was set. Bounds that exclude each other (a host that slept, a node that lies) drop all that was
learned; the newest exchange starts anew, and needs a few that agree with it.

Every agent session has a clock of its own, so that what one tells moves no other's. Refusals are
values. Time enters as an argument, memory is bounded, and bounds are integers, rounded outward.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from frd.engine.alignment import FAR_NS, Alignment, ClockState, Knot, Segment
from frd.engine.hull import Strip
from frd.engine.realtime import RealTable
from frd.model import AlignedNs, Int64s, NodeNs, NodeRawNs, ServiceRawNs

WINDOW_NS: Final = 60_000_000_000
"""The estimate rests on exchanges that are younger than twice this."""
SILENT_NS: Final = 120_000_000_000
"""A clock that was not heard of for so long is unsynchronized."""
DRIFT_PPM: Final = 100
"""At most, between the raw clocks of two hosts."""
IMPOSSIBLE_NS: Final = 3600 * 1_000_000_000
"""A node's raw clock that gets so far ahead between two messages is not believed."""
AGREE: Final = 2
"""So many exchanges must agree with the one that contradicted all before."""
START_OVER: Final = 8
"""So many refusals in a row, and the clock forgets what they were compared with."""
MOST_READINGS: Final = 64
"""Of one message."""
_MOST_SLACK_NS: Final = 1_000_000_000
_MOST_SEGMENTS: Final = 8
_MOST_KNOTS: Final = 24
_FINE: Final = 8
_LINE_NS: Final = 10_000_000_000
_AHEAD_NS: Final = 600_000_000_000

ServiceTable: TypeAlias = RealTable[ServiceRawNs, AlignedNs]
"""The service's own readings: when its raw clock showed this, aligned time was that."""


class Refusal(StrEnum):
    """Why timestamps are not believed; words for a metric's label."""

    BACKWARDS = "backwards"
    ZERO = "zero"
    NEGATIVE = "negative"
    FUTURE = "future"
    LOOSE = "loose"
    """A reading of two clocks that took so long that it says nothing."""
    FLOOD = "flood"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A ping and its pong: sent, received, answered, answer received."""

    t1: NodeRawNs
    t2: ServiceRawNs
    t3: ServiceRawNs
    t4: NodeRawNs


class NodeClock:
    """The clock of one agent session."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the node's real clock against its raw one."""
        self.contradictions = 0
        self._node: RealTable[NodeRawNs, NodeNs] = RealTable()
        self._last: Exchange | None = None
        self._upper = (0, 0)
        """Node raw time and offset of the bound that binds; likewise `_lower`."""
        self._lower = (0, 0)
        self._since = 0
        """Node raw time since which the bounds hold."""
        self._strips: list[tuple[int, Strip]] = []
        self._agree = 0
        self._refused = 0
        self._service_stepped_at = 0
        self._least: deque[tuple[int, int]] = deque(maxlen=2)
        self._segments: list[Segment] = []
        self._trusted = 0
        self._knots: list[Knot] = []
        self._start = 0
        self._knot_raw = 0

    # -- what comes in -------------------------------------------------------------------------

    def one_way(self, sent_at: NodeNs, received_at: AlignedNs) -> None:
        """A message of the main stream; an upper bound of the offset until exchanges come."""
        delay = received_at - sent_at
        minute = received_at // WINDOW_NS
        if self._least and self._least[-1][0] == minute:
            delay = min(delay, self._least.pop()[1])
        self._least.append((minute, delay))

    def exchange(self, x: Exchange) -> Refusal | None:
        refusal = self._refuse(x)
        if refusal is not None:
            self._refused += 1
            if self._refused >= START_OVER:
                self._last, self._refused = None, 0
            return refusal
        self._refused = 0
        fresh = self._last is None
        self._last = x
        upper, lower = x.t2 - x.t1, x.t3 - x.t4
        if fresh:
            self._restart(x, upper, lower)
        elif not self._bound(x, upper, lower):
            self.contradictions += 1
            self._restart(x, upper, lower)
            self._agree = -AGREE
        else:
            self._agree += 1
            self._estimate(x, upper, lower)
        return None

    def _refuse(self, x: Exchange) -> Refusal | None:
        t1, t2, t3, t4 = x.t1, x.t2, x.t3, x.t4
        least = min(t1, t2, t3, t4)
        if least <= 0:
            return Refusal.NEGATIVE if least else Refusal.ZERO
        if max(t1, t2, t3, t4) >= FAR_NS:
            return Refusal.FUTURE
        held = t3 - t2
        if held < 0 or t4 - t1 < held - held // 5_000 - 1:
            return Refusal.BACKWARDS
        last = self._last
        if last is not None:
            if t1 <= last.t1 or t4 <= last.t4 or t2 < last.t3:
                return Refusal.BACKWARDS
            if t4 - last.t4 > t3 - last.t3 + IMPOSSIBLE_NS:
                return Refusal.FUTURE
        return None

    def _bound(self, x: Exchange, upper: int, lower: int) -> bool:
        """Keep the bounds that bind; False when these exclude each other."""
        at, high = self._upper
        if (upper - high) * 10_000 <= x.t1 - at:
            self._upper = (x.t1, upper)
        at, low = self._lower
        if (low - lower) * 10_000 <= x.t4 - at:
            self._lower = (x.t4, lower)
        (at, high), (since, low) = self._upper, self._lower
        return (low - high) * 10_000 <= abs(at - since)

    def _restart(self, x: Exchange, upper: int, lower: int) -> None:
        self._upper, self._lower = (x.t1, upper), (x.t4, lower)
        self._since = x.t1
        self._agree = 0
        self._strips = [(x.t4, Strip(DRIFT_PPM / 1e6, x.t4, upper, lower))]
        self._close_segment()
        self._trusted = len(self._segments)

    def _estimate(self, x: Exchange, upper: int, lower: int) -> None:
        """Teach the strips; one that no line fits any more has seen the drift change."""
        strips = [strip for strip in self._strips if strip[1].add(x.t4, upper, lower)]
        if not strips or x.t4 - strips[-1][0] > WINDOW_NS:
            strips.append((x.t4, Strip(DRIFT_PPM / 1e6, x.t4, upper, lower)))
            del strips[:-2]
        self._strips = strips

    def readings(self, raw: Int64s, real: Int64s, slack: Int64s) -> Refusal | None:
        """The node's clocks side by side, in order; the whole batch is refused when it is bad."""
        rows = list(zip(raw.tolist(), real.tolist(), slack.tolist(), strict=True))
        refusal = self._refuse_readings(rows)
        if refusal is None:
            table = self._node
            for at, shown, within in rows:
                if table.read(NodeRawNs(at), NodeNs(shown), within):
                    self.steps += 1
        return refusal

    def _refuse_readings(self, rows: list[tuple[int, int, int]]) -> Refusal | None:
        if len(rows) > MOST_READINGS:
            return Refusal.FLOOD
        last = self._node.last_raw if len(self._node) else 0
        for raw, real, slack in rows:
            if raw <= last:
                return _low(raw) or Refusal.BACKWARDS
            if real <= 0 or slack < 0:
                return _low(real) or Refusal.NEGATIVE
            if raw >= FAR_NS or real >= FAR_NS:
                return Refusal.FUTURE
            if slack > _MOST_SLACK_NS:
                return Refusal.LOOSE
            last = raw
        return None

    def constrain(
        self,
        peer: str,
        peers: int,
        at: AlignedNs,
        least_ns: int | None = None,
        most_ns: int | None = None,
    ) -> bool:
        """What a collective with the node `peer`, one of `peers` others, says of this clock.

        The aligned times of this node around `at` are truly between `least_ns` and `most_ns` later
        than they were told. False when that cannot be and others agree with `peer`: then all that
        was learned is dropped.
        """
        return True

    # -- what is known -------------------------------------------------------------------------

    def alignment(self, now: ServiceRawNs, table: ServiceTable) -> Alignment:
        """`table` must have a reading; one at `now` is best."""
        ahead, _ = table.ahead(now)
        aligned_now = AlignedNs(now + ahead)
        last = self._last
        if last is None or not len(self._node):
            least = min((delay for _, delay in self._least), default=0)
            return unsynchronized("no exchange yet", aligned_now, least)
        reason = self._reason(last, now, table)
        knot, rate, drift = self._knot(table)
        if not reason:
            self._keep(knot, table)
        segments = tuple(self._segments)
        if self._knots:
            segments += (Segment(self._start, knot[0] + _AHEAD_NS, tuple(self._knots)),)
        return Alignment(
            state=ClockState.UNSYNCHRONIZED if reason else ClockState.SYNCHRONIZED,
            reason=reason,
            now_ns=aligned_now,
            at_ns=knot[0],
            line_ns=knot[1],
            rate=rate,
            line_from_ns=max(self._start, knot[0] - _LINE_NS) if self._knots else -FAR_NS,
            drift_ppm=drift * 1e6,
            age_s=(now - last.t3) / 1e9,
            trusted=self._trusted,
            segments=segments,
        )

    def _reason(self, last: Exchange, now: ServiceRawNs, table: ServiceTable) -> str:
        if self._agree < 0:
            return "contradiction"
        if last.t1 < self._node.stepped_at or last.t2 < table.stepped_at:
            return "stepped"
        if now - last.t3 > SILENT_NS:
            return "silent"
        return ""

    def _knot(self, table: ServiceTable) -> tuple[Knot, float, float]:
        """The newest reading of the node with its offset, how fast that changes, the raw drift."""
        raw, node_ahead, slack = self._node.last()
        low, high = self._interval(raw)
        _, strip = self._strips[0]
        offset = min(max(strip.at(raw), low), high)
        half = max(high - offset, offset - low)
        ahead, loose = table.ahead(raw + offset)
        drift = strip.slope
        rate = drift - self._node.rate() + table.rate()
        half += slack + loose + half // 2_000 + 1
        return (raw + node_ahead, offset - node_ahead + ahead, half), rate, drift

    def _interval(self, raw: int) -> tuple[int, int]:
        """Bounds of service raw minus node raw, at a time of the node's raw clock."""
        (at, high), (since, low) = self._upper, self._lower
        return low - abs(raw - since) // 10_000 - 1, high + abs(raw - at) // 10_000 + 1

    def _keep(self, knot: Knot, table: ServiceTable) -> None:
        stepped = max(self._node.stepped_at, 0) > self._knot_raw
        served = table.stepped_at > self._service_stepped_at
        raw = self._node.last_raw
        if raw <= self._knot_raw:
            return
        if self._knots and (stepped or served):
            gap = raw - self._knot_raw
            gap += gap // 1_000
            self._close_segment(gap)
        self._service_stepped_at = table.stepped_at
        if not self._knots:
            gap = raw - self._knot_raw if self._knot_raw else 0
            self._start = knot[0] - gap - gap // 1_000
        self._knots.append(knot)
        self._knot_raw = raw
        if len(self._knots) > _MOST_KNOTS:
            del self._knots[1:-_FINE:2]

    def _close_segment(self, gap: int = 0) -> None:
        if self._knots:
            end = self._knots[-1][0] + gap
            self._segments.append(Segment(self._start, end, tuple(self._knots)))
            self._knots = []
            if len(self._segments) > _MOST_SEGMENTS:
                del self._segments[0]
                self._trusted = max(self._trusted - 1, 0)


def _low(value: int) -> Refusal | None:
    if value > 0:
        return None
    return Refusal.NEGATIVE if value else Refusal.ZERO


def unsynchronized(reason: str, now: AlignedNs, offset: int) -> Alignment:
    """An estimate that nothing bounds."""
    return Alignment(
        ClockState.UNSYNCHRONIZED, reason, now, now - offset, offset, 0.0, -FAR_NS, 0.0, 0.0, 0, ()
    )
