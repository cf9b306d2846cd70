"""Members of one collective that do not agree: the slow path of matching.

The ring keeps one signature a collective, the first; only those that differ from it in their match
class come here, by rank. So memory is spent on anomalies alone, and on no more than `MOST_FACTS`
of them: a job that disagrees in everything needs no further proof.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from frd.engine import match
from frd.engine.picture import MismatchFact
from frd.engine.tables import Groups, Pairs
from frd.model import AlignedNs, Int64s, Signature

MOST_FACTS: Final = 64
MOST_RANKS: Final = 65_536
"""Remembered over all facts."""
RETENTION_NS: Final = 10_000_000_000
"""How long a fact outlives its collective, so that a mismatch that completed is still told."""


@dataclass(slots=True)
class _Disagreement:
    first: int
    """Handle of the signature that the others are compared with."""
    other: dict[int, int] = field(default_factory=dict)
    """Rank to signature handle, of a class that is not the first's."""
    unbalanced: int = 0
    """Elements that an all_to_all put in beyond those it took out."""
    closed_at: AlignedNs | None = None


class Mismatches:
    """What is remembered of the collectives of one attempt whose members disagree."""

    def __init__(self) -> None:
        self._facts: dict[tuple[int, int], _Disagreement] = {}
        self._ranks = 0
        self.dropped = 0
        """Rows that came when memory for them was full."""

    def __len__(self) -> int:
        return len(self._facts)

    def differs(self, group: int, seq: int, first: int, rank: int, signature: int) -> None:
        fact = self._fact(group, seq, first)
        if fact is None or self._ranks >= MOST_RANKS:
            self.dropped += 1
        elif rank not in fact.other:
            fact.other[rank] = signature
            self._ranks += 1

    def unbalanced(self, group: int, seq: int, first: int, surplus: int) -> None:
        if (fact := self._fact(group, seq, first)) is not None:
            fact.unbalanced = surplus

    def _fact(self, group: int, seq: int, first: int) -> _Disagreement | None:
        known = self._facts.get((group, seq))
        if known is None and len(self._facts) < MOST_FACTS:
            known = self._facts[group, seq] = _Disagreement(first)
        return known

    def expire(self, done: Int64s, now: AlignedNs) -> None:
        """Forget facts some time after their collective is done (`done`: by group, up to seq)."""
        for (group, seq), fact in list(self._facts.items()):
            if fact.closed_at is None and seq <= done[group]:
                fact.closed_at = now
            elif fact.closed_at is not None and now - fact.closed_at > RETENTION_NS:
                self._drop(group, seq)

    def forget(self, group: int) -> None:
        for of, seq in [key for key in self._facts if key[0] == group]:
            self._drop(of, seq)

    def _drop(self, group: int, seq: int) -> None:
        self._ranks -= len(self._facts.pop((group, seq)).other)

    def facts(
        self, groups: Groups, pairs: Pairs, signatures: match.Signatures
    ) -> list[MismatchFact]:
        """All that is remembered, lowest seq of each group first."""
        return [
            _told(group, seq, self._facts[group, seq], groups, pairs, signatures)
            for group, seq in sorted(self._facts)
        ]


def _told(
    group: int,
    seq: int,
    fact: _Disagreement,
    groups: Groups,
    pairs: Pairs,
    signatures: match.Signatures,
) -> MismatchFact:
    rows = groups.rows(group)
    joined = pairs.rank[rows][pairs.joined_row[rows] >= seq].tolist()
    told = {rank: fact.other.get(rank, fact.first) for rank in joined}
    by_class: dict[int, list[int]] = {}
    for rank, handle in told.items():
        by_class.setdefault(int(signatures.match_class[handle]), []).append(rank)
    classes: list[tuple[Signature, tuple[int, ...]]] = []
    for ranks in sorted(by_class.values(), key=lambda ranks: (-len(ranks), ranks[0])):
        usual, _ = Counter(told[rank] for rank in ranks).most_common(1)[0]
        classes.append((signatures.known[usual], tuple(sorted(ranks))))
    size = len(groups.infos[group].ranks)
    return MismatchFact(
        group=group,
        seq=seq,
        classes=classes,
        detail=_detail(classes, size, fact.unbalanced),
        complete=size > 0 and len(joined) == size,
    )


def _detail(classes: list[tuple[Signature, tuple[int, ...]]], group_size: int, surplus: int) -> str:
    if len(classes) < 2:
        return f"all members together put in {surplus:+d} elements more than they take out"
    parts = [match.difference(classes[0][0], classes[1][0])]
    for signature, ranks in classes:
        if wrong := match.self_contradiction(signature, group_size):
            parts.append(f"rank {ranks[0]}: {wrong}")
    return "; ".join(parts)
