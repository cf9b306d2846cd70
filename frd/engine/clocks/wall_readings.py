"""The wall clock of a node, as readings of it together with the raw clock show it: for people.

No decision rests on it. It says how far the node's wall clock is off and how often it was set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.exchange import Refusal, refuse_readings
from frd.engine.clocks.realtime_table import RealtimeTable
from frd.model import NodeNs, NodeRawNs

MOST_READINGS: Final = 64
"""Of one message."""
_START_OVER: Final = 8
"""Refusals in a row after which the readings are compared with nothing older."""


class WallReadings:
    """Of one agent session."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the wall clock against the raw one."""
        self._refused = 0
        self._table: RealtimeTable[NodeRawNs, NodeNs] = RealtimeTable(most=16)

    @property
    def last_raw(self) -> int | None:
        """When both clocks were read last."""
        return self._table.last_raw if self._table else None

    def ahead(self, raw: int) -> tuple[int, int] | None:
        """How far the wall clock is ahead of the raw one, and the largest error of that."""
        return self._table.ahead(raw) if self._table else None

    def read(
        self, raws: Sequence[int], reals: Sequence[int], slacks: Sequence[int]
    ) -> Refusal | None:
        """Readings of both clocks, in order; the whole batch is refused when it is bad."""
        if len(raws) > MOST_READINGS:
            return Refusal.FLOOD
        table = self._table
        sane = raws and raws[-1] < FAR_NS and 0 < reals[-1] < FAR_NS
        if sane and table.read_calm(raws, reals, slacks):
            self._refused = 0
            return None
        rows = list(zip(raws, reals, slacks, strict=True))
        refusal = refuse_readings(rows, table.last_raw if table else 0)
        if refusal is not None:
            self._refused += 1
            if self._refused >= _START_OVER:
                self._refused, self._table = 0, RealtimeTable(most=16)
            return refusal
        self._refused = 0
        for raw, real, slack in rows:
            self.steps += table.read(NodeRawNs(raw), NodeNs(real), slack)
        return None
