"""What is remembered of members that disagree, at the limits of that memory."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.matching import mismatches
from frd.engine.matching.mismatches import MOST_FACTS_PER_GROUP, MOST_GROUPS, Mismatches
from frd.engine.matching.signature_rules import Signatures
from frd.engine.state.snapshot import Mismatch
from frd.engine.state.tables import GroupTable, PairTable
from frd.model import AlignedNs, GroupInfo, Signature

NOW = AlignedNs(1_800_000_000_000_000_000)
SIZES = [Signature("nccl", "all_reduce", ((size,),), ((size,),)) for size in (4, 8)]


class Job:
    """Groups of four ranks each; all have joined up to seq 9."""

    def __init__(self, groups: int) -> None:
        self.mismatches, self.groups, self.pairs = Mismatches(), GroupTable(), PairTable()
        self.signatures = Signatures()
        self.handles = [self.signatures.handle(one) for one in SIZES]
        for number in range(groups):
            info = GroupInfo(str(number), f"dp{number}", (0, 1, 2, 3))
            self.groups.declare(info, self.pairs.add(number, info.ranks), 1)
        self.pairs.joined_row[: self.pairs.count] = 9

    def differs(self, group: int, seq: int, rank: int) -> None:
        self.mismatches.differs(group, seq, self.handles[0], rank, self.handles[1], AlignedNs(5))

    def facts(self) -> list[Mismatch]:
        return self.mismatches.facts(self.groups, self.pairs, self.signatures)


def test_groups_beyond_those_that_are_remembered_are_counted() -> None:
    """One group too many disagrees; when another is forgotten there is room for it."""
    job = Job(MOST_GROUPS + 1)
    for group in range(MOST_GROUPS + 1):
        job.differs(group, 1, rank=2)
    assert [fact.group for fact in job.facts()] == list(range(MOST_GROUPS))
    assert job.mismatches.dropped == 1
    job.mismatches.unbalanced(MOST_GROUPS, 1, job.handles[0], 5, AlignedNs(5))
    assert len(job.facts()) == MOST_GROUPS
    job.mismatches.forget(0)
    job.mismatches.forget(0)
    job.differs(MOST_GROUPS, 1, rank=2)
    assert [fact.group for fact in job.facts()] == list(range(1, MOST_GROUPS + 1))


def test_what_was_dropped_once_is_never_shown_in_part() -> None:
    """The fifth disagreement has no place; when the others are over, no later row revives it."""
    job = Job(1)
    for seq in range(1, MOST_FACTS_PER_GROUP + 2):
        job.differs(0, seq, rank=1)
    dropped = MOST_FACTS_PER_GROUP + 1
    assert [fact.seq for fact in job.facts()] == list(range(1, dropped))
    done = np.array([dropped - 1], np.int64)
    job.mismatches.expire(done, NOW)
    job.mismatches.expire(done, AlignedNs(NOW + mismatches.RETENTION_NS + 1))
    job.differs(0, dropped, rank=3)
    assert job.facts() == []
    assert job.mismatches.dropped == 2


def test_who_says_the_same_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's row comes twice; the ranks that are remembered over all are two, not three."""
    monkeypatch.setattr(mismatches, "MOST_RANKS", 3)
    job = Job(2)
    for rank in (1, 1, 2):
        job.differs(0, 1, rank)
    job.differs(1, 1, rank=3)
    assert [(fact.group, fact.classes[1][1]) for fact in job.facts()] == [(0, (1, 2)), (1, (3,))]


def test_a_group_that_is_forgotten_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ranks as are remembered disagree; their group starts again; another one disagrees."""
    monkeypatch.setattr(mismatches, "MOST_RANKS", 3)
    job = Job(2)
    for rank in (1, 2, 3):
        job.differs(0, 1, rank)
    job.mismatches.forget(0)
    job.differs(1, 1, rank=3)
    assert [(fact.group, fact.classes[1][1]) for fact in job.facts()] == [(1, (3,))]
