"""One node's raw clock against the service's, from exchanges of four timestamps.

Exchanges bound the offset between the two raw clocks, which are neither stepped nor slewed: it was
at most ``t2 - t1`` when the ping was sent and at least ``t3 - t4`` when the pong arrived. Later it
can have moved by 100 ppm of the time passed, however the drift has changed: that is proven
(`OffsetBounds`), and of all exchanges only one binds on each side. What is claimed is narrower, by
the drift that was observed and the least time that a message takes (`OffsetInterval`); the estimate
is its middle.

If proven bounds exclude each other (a machine slept or was paused, a node reports wrong times), all
that was learned is dropped. The newest exchange is the new start, and needs others that agree with
it.

Every agent session has a separate clock, so one session never moves the clock of another. Memory is
bounded, and bounds are integers, rounded outward.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from frd.engine.clocks.alignment import FAR_NS, GROWTH_PPM
from frd.engine.clocks.exchange import SILENT_NS, Exchange, Refusal, refuse_exchange
from frd.engine.clocks.offset_interval import OffsetInterval
from frd.model import NodeRawNs, ServiceRawNs

__all__ = ["Exchange", "NodeClock", "OffsetEstimate", "Refusal"]

AGREE: Final = 2
"""Exchanges that must agree with one that contradicted those before."""
START_OVER: Final = 8
"""Refusals in a row after which the clock drops what it compared with."""
_FLOORS_NS: Final = 3
"""Clocks show whole nanoseconds; an offset is made of three readings."""


class OffsetEstimate(NamedTuple):
    """What is known of a clock at one moment."""

    reason: str
    """Why the clock is unsynchronized; empty otherwise."""
    now_ns: ServiceRawNs
    at_ns: int
    """The node's raw clock then."""
    offset_ns: int
    """Service minus node, then."""
    half_ns: int
    """Largest error of the offset."""
    rate: float
    """Growth of the offset, in ns per ns: the drift."""
    growth_ppm: float = GROWTH_PPM
    """How fast `half_ns` grows at first, if the offset is continued with this rate."""

    def offset_at(self, node_ns: int) -> int:
        return self.offset_ns + int((node_ns - self.at_ns) * self.rate)


MOST_PEERS: Final = 16


class PeerBounds:
    """Bounds of one clock's offset from collectives, by the peers that gave them.

    Where every output depends on every input, the last member joined before any member was done. If
    the times of two nodes contradict this by more than their uncertainties, one of the clocks is
    wrong; otherwise they bound the offsets. Such bounds rest on the report of another node. They
    therefore never narrow the interval that a node's own exchanges prove, but only move the
    estimate within it. A single peer counts only if there is no other peer that could report the
    same, so that a node with wrong times does not move the clocks of the others.

    Collectives bound loosely (their ends are found by polling), so these bounds seldom matter; a
    contradiction does.
    """

    def __init__(self) -> None:
        self._low: dict[str, tuple[int, int]] = {}
        """Aligned time and offset, as in `_high`."""
        self._high: dict[str, tuple[int, int]] = {}
        self._needed = 1

    def __bool__(self) -> bool:
        return bool(self._low or self._high)

    def add(self, peer: str, peers: int, at: int, low: int | None, high: int | None) -> None:
        """`peer`, one of `peers` possible nodes, bounds the offset at an aligned time."""
        self._needed = min(2, max(peers, 1))
        if low is not None:
            _keep_tighter(self._low, peer, at, -low)
        if high is not None:
            _keep_tighter(self._high, peer, at, high)

    def interval(self, at: int) -> tuple[int, int]:
        """Bounds of the offset that enough peers agree on; far apart without any."""
        return -self._highest(self._low, at), self._highest(self._high, at)

    def _highest(self, side: dict[str, tuple[int, int]], at: int) -> int:
        for peer in [peer for peer, (then, _) in side.items() if abs(at - then) > SILENT_NS]:
            del side[peer]
        if len(side) < self._needed:
            return FAR_NS
        return sorted(_grown(bound, at) for bound in side.values())[self._needed - 1]


def _keep_tighter(side: dict[str, tuple[int, int]], peer: str, at: int, high: int) -> None:
    known = side.pop(peer, None)
    if known is not None and _grown(known, at) < high:
        at, high = known
    side[peer] = (at, high)
    if len(side) > MOST_PEERS:
        del side[next(iter(side))]


def _grown(bound: tuple[int, int], at: int) -> int:
    then, high = bound
    return high + abs(at - then) * GROWTH_PPM // 1_000_000 + 1


class NodeClock:
    """The clock of one agent session."""

    def __init__(self) -> None:
        self.contradictions = 0
        self._least: deque[tuple[int, int]] = deque(maxlen=2)
        """Of the last two windows: number, shortest way of a message."""
        self._last: Exchange | None = None
        self._interval: OffsetInterval | None = None
        self._agreed = AGREE
        self._refused = 0
        self._peer_bounds = PeerBounds()
        self._newest: OffsetEstimate | None = None
        """The newest estimate that rests on exchanges."""

    # -- what comes in -------------------------------------------------------------------------

    def one_way(self, sent_at: NodeRawNs, received_at: ServiceRawNs) -> None:
        """A message of the main stream: an upper bound of the offset, until exchanges come. The
        fastest of the last two windows counts."""
        delay, window = received_at - sent_at, 2 * received_at // SILENT_NS
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
        interval = self._interval
        if interval is None:
            self._interval = OffsetInterval(x)
        elif first or not interval.narrow(x):
            self._contradicted()
            self._interval = OffsetInterval(x)
        elif self._agreed < AGREE:
            self._agreed += 1
        return None

    def _contradicted(self) -> None:
        self.contradictions += 1
        self._agreed = 0
        self._peer_bounds = PeerBounds()

    def constrain(
        self,
        peer: str,
        peers: int,
        at: ServiceRawNs,
        least_ns: int | None = None,
        most_ns: int | None = None,
    ) -> bool:
        """A bound on this clock from a collective with the node `peer`, one of `peers` others.

        The true times of this node around `at`, on the service's clock, are between `least_ns` and
        `most_ns` later than the ones in use. False when enough peers contradict the interval: all
        that was learned is dropped.
        """
        newest = self._newest
        if newest is None or newest.reason:
            return True
        later = at - newest.offset_ns - newest.at_ns
        offset = newest.offset_at(at - newest.offset_ns)
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
        self._last = self._interval = None
        return False

    # -- what is known -------------------------------------------------------------------------

    @property
    def is_unheard(self) -> bool:
        """Nothing is known of it."""
        return self._last is None and self._newest is None and not self._least

    def newest(self, now: ServiceRawNs) -> OffsetEstimate:
        """What is known now, cheaply."""
        last, interval = self._last, self._interval
        if last is None or interval is None:
            return self._unknown(now)
        raw = max(now - interval.settle(now - (last.t3 - last.t4))[0], last.t4)
        offset, half = interval.settle(raw)
        half += _FLOORS_NS
        if self._peer_bounds:
            offset, half = self._clamped(raw, offset, half)
        self._newest = newest = OffsetEstimate(
            self._reason(last, now),
            now,
            raw,
            offset,
            half,
            interval.drift,
            interval.growth_ppm(raw),
        )
        return newest

    def _unknown(self, now: ServiceRawNs) -> OffsetEstimate:
        if self._newest is not None:
            return self._newest._replace(reason="contradiction", now_ns=now)
        offset_ns = min([delay for _, delay in self._least], default=0)
        return OffsetEstimate("no exchange yet", now, now - offset_ns, offset_ns, 0, 0.0)

    def _reason(self, last: Exchange, now: ServiceRawNs) -> str:
        """Why the clock is unsynchronized; empty when it is not."""
        if self._agreed < AGREE:
            return "contradiction"
        if now - last.t3 > SILENT_NS:
            return "silent"
        return ""

    def _clamped(self, raw: int, offset: int, half: int) -> tuple[int, int]:
        """Into the peers' bounds as far as the interval permits, which itself stays as it is."""
        low, high = self._peer_bounds.interval(raw + offset)
        moved = min(max(offset, low), high)
        moved = min(max(moved, offset - half), offset + half)
        return moved, half + abs(moved - offset)
