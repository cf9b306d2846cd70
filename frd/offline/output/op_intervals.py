"""Ops of one rank as intervals of time: end, and the number shared with peers."""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.flight import progress
from frd.flight.batches import closing_rows
from frd.flight.progress import NameFacts
from frd.flight.trace import RankTrace
from frd.model import Bools, Int64s
from frd.perfetto.writer import OPEN

INSTANT: Final = -1
"""The end of an op that completed at an unknown time."""


def ended(trace: RankTrace, facts: NameFacts) -> Bools:
    """Which ops ended, as far as the recorder shows it; parts of a batch or of a coalesced
    collective by the entry that closes it."""
    return _done_and_closing(trace, facts)[0]


def ends(trace: RankTrace, facts: NameFacts) -> Int64s:
    """When each op ended, on the rank's own clock, and never before it was enqueued; `OPEN` for an
    op that had not completed, or was given up."""
    done, closing = _done_and_closing(trace, facts)
    completed_ns = trace.completed_ns[closing]
    end = np.maximum(completed_ns, trace.created_ns)
    end[completed_ns <= 0] = INSTANT
    end[~done] = OPEN
    return end


def _done_and_closing(trace: RankTrace, facts: NameFacts) -> tuple[Bools, Int64s]:
    """Which ops completed, and the row with the end of each."""
    is_p2p = trace.is_p2p != 0
    number = np.where(is_p2p, trace.p2p_seq, trace.seq)
    closing = closing_rows(facts.is_end[trace.name], is_p2p, trace.pg_id, number)
    return progress.states(trace, slice(None), facts).done[closing], closing


def flows(collective: Int64s) -> Int64s:
    """A number that ops of one collective share on all ranks; `collective` is -1 for other ops.

    0 for those, and for all but the first op of a coalesced collective.
    """
    _, first = np.unique(collective, return_index=True)
    out = np.zeros_like(collective)
    out[first] = collective[first] + 1
    return out
