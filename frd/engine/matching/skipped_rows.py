"""Seqs that the joined rows of a rank skipped: what the rank passed there is unknown.

The rows of a rank come in the order of their seqs. So its highest row shows which of its rows came,
as long as none is skipped. A rank skips seqs if its recorder dropped entries, or if it was in the
middle of its job when it was first seen. Only pairs that skipped have an entry here, and only until
their collectives are over.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.state.entry_batch import PairRuns
from frd.engine.state.tables import PairTable
from frd.model import Int64s

_MOST_RANGES: Final = 256
"""Of one pair. Beyond them, all from the first to the last counts as skipped."""


class SkippedRows:
    def __init__(self) -> None:
        self.of_pair: dict[int, list[tuple[int, int]]] = {}
        """Ranges of seqs by pair, ascending, both ends included."""

    def note(self, runs: PairRuns, joined_row: Int64s) -> None:
        """Compare new joined rows with `joined_row` (by pair), before it is raised. Seqs begin with
        0 or 1."""
        before = np.maximum(joined_row[runs.pair], np.minimum(runs.first, 1) - 1)
        for run in (runs.last - before > runs.count).nonzero()[0].tolist():
            start, count = runs.start.item(run), runs.count.item(run)
            seq = np.append(before[run], runs.seq[start : start + count])
            at = np.flatnonzero(np.diff(seq) > 1)
            ranges = self.of_pair.setdefault(runs.pair.item(run), [])
            ranges += zip((seq[at] + 1).tolist(), (seq[at + 1] - 1).tolist(), strict=True)
            if len(ranges) > _MOST_RANGES:
                ranges[:] = [(ranges[0][0], ranges[-1][1])]

    def has(self, pair: int, seq: int) -> bool:
        return any(low <= seq <= high for low, high in self.of_pair.get(pair, ()))

    def expire(self, pairs: PairTable, done: Int64s) -> None:
        """Forget what is over (`done`: by group, up to seq), and pairs that start again."""
        pair = np.fromiter(self.of_pair, np.int64, len(self.of_pair))
        upto = np.where(pairs.joined_row[pair] < 0, np.iinfo(np.int64).max, done[pairs.group[pair]])
        first = np.fromiter((of[0][1] for of in self.of_pair.values()), np.int64, len(pair))
        for at in (first <= upto).nonzero()[0].tolist():
            one, over = pair.item(at), upto.item(at)
            if left := [(low, high) for low, high in self.of_pair[one] if high > over]:
                self.of_pair[one] = left
            else:
                del self.of_pair[one]
