"""Joins calls to collectives and finds disagreements, by the engine's match rules on columns.

Every collective that any dump holds is a row of `MatchedCollectives`. A rank is compared only with
ranks whose dumps show the call: a buffer that was overwritten proves nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from frd.engine.matching import mismatches, signature_rules
from frd.engine.state.snapshot import Mismatch
from frd.flight.trace import minor_version
from frd.model import Bools, Int32s, Int64s
from frd.offline.analysis.rows import Rows
from frd.offline.analysis.watermarks import PairWatermarks

_SPARSE = 8
"""Seqs of a series are counted by position while they span at most this many a call."""
_SIZES_OF_ALL_TO_ALL = (2, 4)
"""Older dumps lack the sizes of an all_to_all."""
MOST_FACTS = 1_024


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """Parallel columns, one row a collective, by series and seq."""

    series: Int32s
    seq: Int64s
    signature: Int32s
    """Signature of the call that was created first."""
    joined: Int32s
    completed: Int32s
    first_created_ns: Int64s
    last_created_ns: Int64s
    disagree: Bools
    """Members passed different signatures."""
    surplus: Int64s
    """Elements of all inputs of an all_to_all minus elements of all outputs."""
    contradiction: Bools
    """All agree on sizes that break the rule of the op."""
    of_call: Int32s
    """The collective of each call of the rows."""
    match_class: Int32s
    """Of each signature of the rows; -1 where no call has it."""
    _order: list[tuple[Int64s, Int64s]] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.seq)

    def calls(self, at: int) -> Int64s:
        """The calls of one collective. The first use sorts all calls."""
        if not self._order:
            order = np.argsort(self.of_call, kind="stable")
            bounds = np.searchsorted(self.of_call[order], np.arange(len(self) + 1))
            self._order.append((order, bounds))
        order, bounds = self._order[0]
        return order[bounds[at] : bounds[at + 1]]

    @property
    def misfit(self) -> Int64s:
        """2 if members disagree, 1 if all agree on sizes that the op does not allow, else 0."""
        return np.where(self.disagree, 2, self.contradiction | (self.surplus != 0))


def matched_collectives(rows: Rows, created_ns: Int64s) -> MatchedCollectives:
    """`created_ns` are the aligned times of the calls. Counts the ends that are proven."""
    calls = rows.calls
    series_of = rows.pair_series[calls.pair]
    series, seq, of_call = _collectives(series_of, calls.seq, len(rows.series))
    count = len(seq)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.zeros(count, np.int64)
    np.minimum.at(first, of_call, created_ns)
    np.maximum.at(last, of_call, created_ns)
    signature = np.zeros(count, np.int32)
    earliest = created_ns == first[of_call]
    for these in (calls.cut, ~calls.cut, earliest & ~calls.cut):  # the last assignment counts
        signature[of_call[these]] = calls.signature[these]
    classes = _classes(rows)
    differs = (classes[calls.signature] != classes[signature[of_call]]) & ~calls.cut
    disagree = np.zeros(count, np.bool_)
    disagree[of_call[differs]] = True
    joined, signed = _counted(of_call, count), _counted(of_call[~calls.cut], count)
    return MatchedCollectives(
        series=series,
        seq=seq,
        signature=signature,
        joined=joined,
        completed=_counted(of_call[calls.done & ~calls.weak], count),
        first_created_ns=first,
        last_created_ns=last,
        disagree=disagree,
        surplus=_surplus(rows, series, signature, signed, of_call),
        contradiction=_contradictions(rows, series, signature) & ~disagree & (signed > 0),
        of_call=of_call,
        match_class=classes,
    )


def with_ends(
    matched: MatchedCollectives, rows: Rows, watermarks: PairWatermarks
) -> MatchedCollectives:
    """Counts the ends by the watermarks, too."""
    calls = rows.calls
    over = (calls.done & ~calls.weak) | (calls.seq <= watermarks.completed[calls.pair])
    return replace(matched, completed=_counted(matched.of_call[over], len(matched)))


def _counted(of_call: Int32s, count: int) -> Int32s:
    return np.bincount(of_call, minlength=count).astype(np.int32)


def _collectives(series: Int32s, seq: Int64s, count: int) -> tuple[Int32s, Int64s, Int32s]:
    """The distinct (series, seq), and which of them each row is."""
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, -1, np.int64)
    np.minimum.at(low, series, seq)
    np.maximum.at(high, series, seq)
    used = high >= 0
    span = np.where(used, high.astype(np.float64) - low + 1, 0)
    if span.sum() <= _SPARSE * len(seq) + 1024:
        base = np.concatenate(([0], np.cumsum(span.astype(np.int64))))
        place = base[series] + seq - low[series]
        held = np.bincount(place, minlength=int(base[-1])) > 0
        number = np.cumsum(held) - 1
        at = np.flatnonzero(held)
        of = np.searchsorted(base, at, side="right") - 1
        return of.astype(np.int32), at - base[of] + low[of], number[place].astype(np.int32)
    keys, number = np.unique(np.stack((series, seq)), axis=1, return_inverse=True)
    return keys[0].astype(np.int32), keys[1], number.reshape(-1).astype(np.int32)


def _classes(rows: Rows) -> Int32s:
    classes = np.full(len(rows.signatures), -1, np.int32)
    known: dict[Hashable, int] = {}
    for at in np.unique(rows.calls.signature).tolist():
        of = signature_rules.match_class(rows.signatures[at])
        classes[at] = known.setdefault(of, len(known))
    return classes


def _surplus(
    rows: Rows, series: Int32s, signature: Int32s, signed: Int32s, of_call: Int32s
) -> Int64s:
    surplus = np.zeros(len(series), np.int64)
    versions = {minor_version(one.trace.version) for one in rows.ranks.values()}
    is_balanced = np.array(
        [signature_rules.rule(s.op) is signature_rules.Rule.BALANCE for s in rows.signatures],
        np.bool_,
    )
    if not is_balanced.any() or min(versions) < _SIZES_OF_ALL_TO_ALL:
        return surplus
    weight = np.array([signature_rules.balance(s) for s in rows.signatures], np.int64)
    np.add.at(surplus, of_call, weight[rows.calls.signature])
    return np.where(is_balanced[signature] & (signed == rows.sizes[series]), surplus, 0)


def _contradictions(rows: Rows, series: Int32s, signature: Int32s) -> Bools:
    contradicts = np.zeros(len(series), np.bool_)
    bound = np.array([signature_rules.binds_sizes(s.op) for s in rows.signatures], np.bool_)
    at = np.flatnonzero(bound[signature])
    base = int(rows.sizes.max(initial=0)) + 1
    key = signature[at].astype(np.int64) * base + rows.sizes[series[at]]
    distinct, which = np.unique(key, return_inverse=True)
    wrong = [
        bool(signature_rules.self_contradiction(rows.signatures[one // base], one % base))
        for one in distinct.tolist()
    ]
    contradicts[at] = np.array(wrong, np.bool_)[which]
    return contradicts


# -- disagreements ---------------------------------------------------------------------------


def facts_of(rows: Rows, matched: MatchedCollectives) -> list[Mismatch]:
    """The first disagreement of each series. Later ones in the series are its consequence.

    Sizes on which all members agree but which the op does not allow count only if a rank is stuck,
    and no call with them completed: otherwise the recorder means something else by them.
    """
    stuck = matched.completed < rows.sizes[matched.series]
    stuck &= ~np.isin(matched.signature, matched.signature[matched.contradiction & ~stuck])
    wrong = matched.disagree | (matched.surplus != 0) | (matched.contradiction & stuck)
    at = np.flatnonzero(wrong)
    _, first = np.unique(matched.series[at], return_index=True)
    picked = at[first][:MOST_FACTS]
    return [fact_of(rows, matched, one) for one in picked.tolist()]


def fact_of(rows: Rows, matched: MatchedCollectives, collective: int) -> Mismatch:
    """The signatures that members passed to one collective."""
    series = rows.series[int(matched.series[collective])]
    calls = matched.calls(collective)
    calls = calls[~rows.calls.cut[calls]] if not rows.calls.cut[calls].all() else calls
    ranks = rows.pair_rank[rows.calls.pair[calls]]
    order = np.argsort(ranks, kind="stable")
    return mismatches.fact_of(
        int(matched.series[collective]),
        int(matched.seq[collective]),
        ranks[order].tolist(),
        rows.calls.signature[calls[order]].tolist(),
        matched.match_class,
        rows.signatures,
        group_size=len(series.members),
        surplus=int(matched.surplus[collective]),
    )
