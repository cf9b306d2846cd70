"""Members of one collective that do not agree: the slow path of matching.

An accumulator keeps one signature a collective, the first; only signatures of another match class
come here, by rank. So memory is spent on anomalies only, and on few of them: of each group the
disagreements with the lowest seqs are kept, because later ones usually follow from the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np

from frd.engine.matching import signature_rules
from frd.engine.state.snapshot import Mismatch
from frd.engine.state.tables import GroupTable, PairTable
from frd.model import AlignedNs, Int32s, Int64s, Signature

MOST_GROUPS: Final = 64
MOST_FACTS_PER_GROUP: Final = 4
MOST_RANKS: Final = 65_536
"""Remembered over all facts."""
RETENTION_NS: Final = 10_000_000_000
"""How long a fact outlives its collective, so that a mismatch that completed is still reported:
longer than the pause between two looks at the largest job, which is 8 s. In half of it, a mismatch
of such a job is forgotten before a look; with twice as much, its finding stays as much longer."""

Classes: TypeAlias = list[tuple[Signature, tuple[int, ...]]]


@dataclass(slots=True)
class _Disagreement:
    first: int
    """Handle of the signature that the others are compared with."""
    known_at: AlignedNs
    """When a member was first seen to disagree."""
    other: dict[int, int] = field(default_factory=dict)
    """Rank to signature handle, of a class that is not the first's."""
    unbalanced: int = 0
    """Elements that an all_to_all put in beyond those it took out."""
    closed_at: AlignedNs | None = None


@dataclass(slots=True)
class _OfGroup:
    """The disagreements of one group by seq, and the range of seqs that had no room: what is
    known of those is incomplete for good."""

    facts: dict[int, _Disagreement] = field(default_factory=dict)
    refused_low: int = np.iinfo(np.int64).max
    refused_high: int = -1

    def refuse(self, seq: int) -> None:
        self.facts.pop(seq, None)
        self.refused_low = min(self.refused_low, seq)
        self.refused_high = max(self.refused_high, seq)


class Mismatches:
    """What is remembered of the collectives of one attempt whose members disagree."""

    def __init__(self) -> None:
        self._groups: dict[int, _OfGroup] = {}
        self._ranks = 0
        self.dropped = 0
        """Rows that came when there was no room to remember them."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def any_facts(self) -> bool:
        return any(known.facts for known in self._groups.values())

    def differs(
        self, group: int, seq: int, first: int, rank: int, signature: int, now: AlignedNs
    ) -> None:
        """A member passed a signature whose match class is not that of the first one seen."""
        fact = self._fact(group, seq, first, now)
        if fact is None:
            self.dropped += 1
        elif rank not in fact.other:
            fact.other[rank] = signature
            self._ranks += 1

    def unbalanced(self, group: int, seq: int, first: int, surplus: int, now: AlignedNs) -> None:
        """An all_to_all of all members put in more elements than it took out, or fewer."""
        if (fact := self._fact(group, seq, first, now)) is not None:
            fact.unbalanced = surplus

    def _fact(self, group: int, seq: int, first: int, now: AlignedNs) -> _Disagreement | None:
        known = self._groups.get(group)
        if known is None:
            if len(self._groups) >= MOST_GROUPS:
                return None
            known = self._groups[group] = _OfGroup()
        if known.refused_low <= seq <= known.refused_high:
            return None
        if seq not in known.facts:
            known.facts[seq] = _Disagreement(first, now)
        if len(known.facts) > MOST_FACTS_PER_GROUP or self._ranks >= MOST_RANKS:
            known.refuse(max(known.facts))
            self._recount()
        return known.facts.get(seq)

    def _recount(self) -> None:
        facts = [fact for known in self._groups.values() for fact in known.facts.values()]
        self._ranks = sum(len(fact.other) for fact in facts)

    def expire(self, done: Int64s, now: AlignedNs) -> None:
        """Forget facts some time after their collective is done (`done`: by group, up to seq)."""
        for group, known in list(self._groups.items()):
            for seq, fact in list(known.facts.items()):
                if fact.closed_at is None and seq <= done[group]:
                    fact.closed_at = now
                elif fact.closed_at is not None and now - fact.closed_at > RETENTION_NS:
                    del known.facts[seq]
            if not known.facts and known.refused_high <= done[group]:
                del self._groups[group]
        self._recount()

    def forget(self, group: int) -> None:
        if self._groups.pop(group, None) is not None:
            self._recount()

    def facts(
        self, groups: GroupTable, pairs: PairTable, signatures: signature_rules.Signatures
    ) -> list[Mismatch]:
        """All that is remembered, by group and seq."""
        return [
            _joined_fact(group, seq, fact, groups, pairs, signatures)
            for group, known in sorted(self._groups.items())
            for seq, fact in sorted(known.facts.items())
        ]


def _joined_fact(
    group: int,
    seq: int,
    fact: _Disagreement,
    groups: GroupTable,
    pairs: PairTable,
    signatures: signature_rules.Signatures,
) -> Mismatch:
    rows = groups.rows(group)
    joined = np.sort(pairs.rank[rows][pairs.joined_row[rows] >= seq])
    handles = np.full(len(joined), fact.first, np.int64)
    for rank, handle in fact.other.items():
        handles[np.searchsorted(joined, rank)] = handle
    mismatch = fact_of(
        group,
        seq,
        joined.tolist(),
        handles.tolist(),
        signatures.match_class,
        signatures.known,
        group_size=len(groups.infos[group].ranks),
        surplus=fact.unbalanced,
    )
    return replace(mismatch, known_at=fact.known_at)


def fact_of(
    group: int,
    seq: int,
    ranks: list[int],
    handles: list[int],
    match_class: Int32s,
    known: Sequence[Signature],
    *,
    group_size: int,
    surplus: int,
) -> Mismatch:
    """What the ranks that joined passed: `handles` are indexes into `known`, by rank.

    `group_size` is 0 when unknown, `surplus` what an all_to_all put in beyond what it took out.
    """
    classes = _by_class(ranks, handles, match_class, known)
    return Mismatch(
        group=group,
        seq=seq,
        classes=classes,
        detail=_detail(classes, group_size, surplus),
        complete=group_size > 0 and len(ranks) == group_size,
        group_size=group_size,
    )


def _by_class(
    ranks: list[int], handles: list[int], match_class: Int32s, known: Sequence[Signature]
) -> Classes:
    """Largest first; of each class the signature that most of its ranks passed."""
    by_class: dict[int, list[int]] = {}
    counts: dict[int, Counter[int]] = {}
    for rank, handle in zip(ranks, handles, strict=True):
        of = match_class.item(handle)
        by_class.setdefault(of, []).append(rank)
        counts.setdefault(of, Counter())[handle] += 1
    return [
        (known[counts[of].most_common(1)[0][0]], tuple(members))
        for of, members in sorted(by_class.items(), key=lambda item: (-len(item[1]), item[1][0]))
    ]


def _detail(classes: list[tuple[Signature, tuple[int, ...]]], group_size: int, surplus: int) -> str:
    if len(classes) < 2 and not surplus:
        return signature_rules.self_contradiction(classes[0][0], group_size)
    if len(classes) < 2:
        more = "more" if surplus > 0 else "fewer"
        elements = f"{abs(surplus)} element{'s' * (abs(surplus) != 1)} {more}"
        return f"all members together put in {elements} than they take out"
    parts = [signature_rules.difference(classes[0][0], classes[1][0])]
    for signature, ranks in classes:
        if wrong := signature_rules.self_contradiction(signature, group_size):
            parts.append(f"rank {ranks[0]}: {wrong}")
    return "; ".join(parts)
