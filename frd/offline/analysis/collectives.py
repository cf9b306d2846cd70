"""All collectives of a trace, as columns and as objects: the database of PyTorch's analyzer.

The columns are computed first; a `Collective` with its rank sets is made on request.
P2P ops are no collectives: they pair by channel, see `frd.offline.analysis.verdict`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from frd.engine.matching import signature_rules
from frd.flight.entry import Frame
from frd.flight.progress import NameFacts
from frd.flight.trace import STATES, Trace
from frd.model import Bools, GroupInfo, Int32s, Int64s, Signature
from frd.offline.analysis.matching import MatchedCollectives, fact_of
from frd.offline.analysis.rows import Rows
from frd.offline.analysis.watermarks import PairWatermarks


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, as the dumps of all its members show it."""

    group: GroupInfo
    seq: int
    op: str
    signature: Signature
    """Of the member that joined first; of a coalesced collective all of its parts."""
    expected_ranks: tuple[int, ...]
    joined_ranks: tuple[int, ...]
    """Ranks whose dumps show that they joined it."""
    completed_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    """Ranks whose dumps show that they did not join it."""
    unknown_ranks: tuple[int, ...]
    """Ranks without a dump, and ranks whose dump does not reach back to the collective."""
    mismatched: Mapping[int, str]
    """By rank, how a member differs from the majority, as text. Without a majority every member is
    listed that differs from another."""
    difference: str
    """What differs between members, as text; empty when they agree."""
    input_numel: int
    """Elements over all parts, of the first member in time."""
    output_numel: int
    record_ids: Mapping[int, int]
    """By rank: the record of its (last) entry. Not comparable across ranks."""
    state: str
    """``scheduled``, ``started`` or ``completed``, as the first member in time recorded it."""
    first_created_ns: int
    """Aligned."""
    last_created_ns: int
    frames: tuple[Frame, ...]
    """Of the first member that has any, innermost first."""

    @property
    def pass_check(self) -> bool:
        """No member is known to be missing from it, and the ranks that joined it agree."""
        return not self.missing_ranks and not self.difference


@dataclass(frozen=True, slots=True)
class Collectives(Sequence[Collective]):
    """Columns of shape (m,), by group and seq; an item is a `Collective`."""

    trace: Trace
    group: Int32s
    """Index into `Trace.groups`."""
    seq: Int64s
    signature: Int32s
    """Index into `signatures`, of the first member in time."""
    signatures: Sequence[Signature]
    """Signatures of the trace, followed by signatures of coalesced collectives."""
    expected: Int32s
    """Members of the group; if unknown, the ranks that appear in it."""
    joined: Int32s
    """Members whose dumps show that they joined."""
    completed: Int32s
    """Members that also completed it."""
    missing: Int32s
    """Members whose dumps show that they did not join it."""
    first_created_ns: Int64s
    """Aligned."""
    last_created_ns: Int64s
    mismatch: Bools
    """Members disagree, or all agree on sizes that the op does not allow."""
    _source: tuple[Rows, PairWatermarks, MatchedCollectives] = field(repr=False)

    def __len__(self) -> int:
        return len(self.seq)

    @overload
    def __getitem__(self, at: int) -> Collective: ...
    @overload
    def __getitem__(self, at: slice) -> list[Collective]: ...
    def __getitem__(self, at: int | slice) -> Collective | list[Collective]:
        rows = range(len(self))[at]
        return self._collective(rows) if isinstance(rows, int) else [*map(self._collective, rows)]

    @property
    def facts(self) -> NameFacts:
        """Parallel to the names of the trace."""
        return self._source[0].facts

    def of_entries(self, rank: int) -> Int64s:
        """The collective of each entry of a rank, parallel to its trace.

        -1 for P2P ops, and for entries from before a reset.
        """
        rows, _, matched = self._source
        calls, trace = rows.calls, rows.trace.ranks[rank]
        out = np.full(len(trace), -1, np.int64)
        bounds = [
            bisect_left(range(len(calls)), r, key=lambda call: rows.pair_rank[calls.pair[call]])
            for r in (rank, rank + 1)
        ]
        mine = np.arange(*bounds)
        first, last = calls.first_row[mine], calls.last_row[mine]
        out[first] = matched.of_call[mine]
        for call in np.flatnonzero(last > first).tolist():  # coalesced
            head, span = first[call], slice(first[call], last[call] + 1)
            parts = (trace.seq[span] == trace.seq[head]) & (trace.group[span] == trace.group[head])
            out[span][parts & (trace.is_p2p[span] == 0)] = matched.of_call[mine[call]]
        return out

    def find(self, group_id: str, seq: int) -> int:
        """The collective of that group and seq, -1 for none."""
        rows, _, matched = self._source
        for at, series in enumerate(rows.series):
            if series.info.group_id == group_id:
                low, high = np.searchsorted(matched.series, [at, at + 1])
                place = low + int(np.searchsorted(self.seq[low:high], seq))
                if place < high and self.seq[place] == seq:
                    return int(place)
        return -1

    def _collective(self, at: int) -> Collective:
        rows, watermarks, matched = self._source
        calls, mine = rows.calls, matched.calls(at)
        series, seq = rows.series[int(matched.series[at])], int(self.seq[at])
        mine = mine[np.argsort(rows.pair_rank[calls.pair[mine]], kind="stable")]
        ranks = rows.pair_rank[calls.pair[mine]]
        done = (calls.done & ~calls.weak)[mine] | (seq <= watermarks.completed[calls.pair[mine]])
        absent = known_absent(rows, watermarks, series.pairs, seq)
        missing = series.members[absent]
        unknown = np.setdiff1d(series.members, np.concatenate([ranks, missing]))
        signature = rows.signatures[int(self.signature[at])]
        fact = fact_of(rows, matched, at)
        wrong = fact.classes if 2 * len(fact.classes[0][1]) <= len(ranks) else fact.classes[1:]
        first = int(np.argmax(calls.signature[mine] == self.signature[at]))
        traces = [rows.ranks[rank].trace for rank in ranks.tolist()]
        entered, last = calls.first_row[mine].tolist(), calls.last_row[mine].tolist()
        stacks = [int(one.stack[row]) for one, row in zip(traces, entered, strict=True)]
        stack = next((stack for stack in stacks if stack >= 0), -1)
        return Collective(
            group=series.info,
            seq=seq,
            op=signature.op,
            signature=signature,
            expected_ranks=tuple(series.members.tolist()),
            joined_ranks=tuple(ranks.tolist()),
            completed_ranks=tuple(ranks[done].tolist()),
            missing_ranks=tuple(missing.tolist()),
            unknown_ranks=tuple(unknown.tolist()),
            mismatched={
                rank: signature_rules.difference(fact.classes[0][0], signature)
                if signature is not fact.classes[0][0]
                else signature_rules.difference(signature, fact.classes[1][0])
                for signature, members in (wrong if len(fact.classes) > 1 else ())
                for rank in members
            },
            difference=fact.detail if self.mismatch[at] else "",
            input_numel=signature_rules.elements(signature.input_sizes),
            output_numel=signature_rules.elements(signature.output_sizes),
            record_ids={
                one.rank: int(one.record_id[row]) for one, row in zip(traces, last, strict=True)
            },
            state=STATES[int(traces[first].state[last[first]])],
            first_created_ns=int(self.first_created_ns[at]),
            last_created_ns=int(self.last_created_ns[at]),
            frames=rows.trace.stacks[stack] if stack >= 0 else (),
        )


def known_absent(rows: Rows, watermarks: PairWatermarks, pairs: slice, seq: int) -> Bools:
    """Which members of a series provably did not join `seq`, by their dumps."""
    known = rows.is_dumped[pairs] & ~watermarks.hidden[pairs]
    return known & (watermarks.enqueued[pairs] < seq)


def collectives_of(
    rows: Rows, watermarks: PairWatermarks, matched: MatchedCollectives
) -> Collectives:
    group = np.array([one.group for one in rows.series], np.int32)
    return Collectives(
        trace=rows.trace,
        group=group[matched.series],
        seq=matched.seq,
        signature=matched.signature,
        signatures=rows.signatures,
        expected=rows.sizes[matched.series],
        joined=matched.joined,
        completed=matched.completed,
        missing=_missing(rows, watermarks, matched),
        first_created_ns=matched.first_created_ns,
        last_created_ns=matched.last_created_ns,
        mismatch=matched.misfit > 0,
        _source=(rows, watermarks, matched),
    )


def _missing(rows: Rows, watermarks: PairWatermarks, matched: MatchedCollectives) -> Int32s:
    """How many members of each collective provably did not join it."""
    missing = np.zeros(len(matched), np.int32)
    known = rows.is_dumped & ~watermarks.hidden
    last = np.full(len(rows.series), -1, np.int64)
    np.maximum.at(last, matched.series, matched.seq)
    behind = known & (watermarks.enqueued < last[rows.pair_series])
    bounds = np.searchsorted(matched.series, np.arange(len(rows.series) + 1))
    for of in np.unique(rows.pair_series[behind]).tolist():
        pairs, some = rows.series[of].pairs, slice(bounds[of], bounds[of + 1])
        enqueued = np.sort(watermarks.enqueued[pairs][behind[pairs]])
        missing[some] = np.searchsorted(enqueued, matched.seq[some], side="left")
    return missing
