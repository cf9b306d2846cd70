"""Bounds of a clock's offset from collectives: no rank leaves one before all ranks have entered.

Where every output depends on every input, the last member joined before any member was done. If the
times of two nodes contradict this by more than their uncertainties, one of the clocks is wrong;
otherwise they bound the offsets. Such bounds rest on the report of another node. They therefore
never narrow the interval that a node's own exchanges prove, but only move the estimate within it.
A single peer counts only if there is no other peer that could report the same, so that a node with
wrong times does not move the clocks of the others.

Collectives bound loosely (their ends are found by polling), so these bounds seldom matter; a
contradiction does.
"""

from __future__ import annotations

from typing import Final

from frd.engine.clocks.alignment import FAR_NS, GROWTH_PPM
from frd.engine.clocks.exchange import SILENT_NS

MOST_PEERS: Final = 16


class PeerBounds:
    """Bounds of one clock's offset, by the peers that gave them."""

    __slots__ = ("_high", "_low", "_needed")

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
