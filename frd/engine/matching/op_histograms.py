"""Histograms of seconds by op: arrival skew and duration of the collectives that completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.engine.views import Histogram
from frd.model import Int32s, Int64s

BOUNDS_S: Final = (0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
"""Bounds of the buckets that users see: from what a switch adds, over the time of an op on a slow
link, to a checkpoint. No rule reads them; each bound costs a time series per job and op."""
_EDGES: Final = np.array([round(bound * 1e9) for bound in BOUNDS_S])
"""The same in nanoseconds."""
_WIDTH: Final = len(BOUNDS_S) + 1


class OpHistograms:
    """Histograms by op index; a row is added when its op first has a value."""

    def __init__(self) -> None:
        self._counts: Int64s = np.zeros((0, _WIDTH), np.int64)
        self._total_ns: Int64s = np.zeros(0, np.int64)

    def add(self, op: Int32s, value_ns: npt.NDArray[Any]) -> None:
        if not len(op):
            return
        if (need := int(op.max()) + 1 - len(self._total_ns)) > 0:
            self._counts = np.append(self._counts, np.zeros((need, _WIDTH), np.int64), axis=0)
            self._total_ns = np.append(self._total_ns, np.zeros(need, np.int64))
        cell = op * _WIDTH + np.searchsorted(_EDGES, value_ns)
        ops = len(self._total_ns)
        self._counts += np.bincount(cell, minlength=ops * _WIDTH).reshape(ops, _WIDTH)
        # Integers, so that the sum does not depend on the order.
        self._total_ns += np.bincount(op, value_ns, minlength=ops).astype(np.int64)

    def by_op(self, names: Sequence[str]) -> dict[str, Histogram]:
        """Histograms of the ops that have values; `names` are the ops by index."""
        return {
            name: Histogram(BOUNDS_S, tuple(counts), total / 1e9)
            for name, counts, total in zip(
                names, self._counts.tolist(), self._total_ns.tolist(), strict=False
            )
            if any(counts)
        }
