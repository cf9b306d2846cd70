"""Which signatures may meet in one collective, and how a difference reads."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.matching import mismatches, signature_rules
from frd.engine.matching.mismatches import MOST_FACTS_PER_GROUP, MOST_GROUPS, Mismatches
from frd.engine.matching.signature_rules import Signatures
from frd.engine.state.snapshot import Mismatch
from frd.engine.state.tables import GroupTable, PairTable
from frd.errors import WireError
from frd.model import AlignedNs, GroupInfo, Signature

Sizes = tuple[tuple[int, ...], ...]


def sig(
    op: str,
    given: Sizes = ((4, 4),),
    taken: Sizes = ((4, 4),),
    *,
    dtypes: tuple[str, ...] = ("Float",),
    out: tuple[str, ...] | None = None,
    backend: str = "nccl",
) -> Signature:
    return Signature(backend, op, given, taken, dtypes, dtypes if out is None else out)


def agree(one: Signature, other: Signature) -> bool:
    return signature_rules.match_class(one) == signature_rules.match_class(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sig("all_reduce"), sig("all_reduce")),
        (sig("all_reduce", ((16,),), ((16,),)), sig("all_reduce", ((4, 4),), ((4, 4),))),
        (sig("barrier", (), (), dtypes=()), sig("barrier", (), (), dtypes=())),
        (sig("gather", ((4,),), ((3, 4),)), sig("gather", ((4,),), (), out=())),
        (
            sig("scatter", ((3, 4),), ((4,),)),
            sig("scatter", (), ((4,),), dtypes=(), out=("Float",)),
        ),
        (sig("reduce", ((4,),), ((4,),)), sig("reduce", ((4,),), (), out=())),
        (
            sig("broadcast", ((4,),), ((4,),)),
            sig("broadcast", (), ((4,),), dtypes=(), out=("Float",)),
        ),
        (sig("all_to_all", ((6,),), ((5,),)), sig("all_to_all", ((1,),), ((2,),))),
        (sig("all_gather", ((3,),), ((3,), (5,))), sig("all_gather", ((5,),), ((3,), (5,)))),
        (
            sig("reduce_scatter", ((3,), (5,)), ((3,),)),
            sig("reduce_scatter", ((3,), (5,)), ((5,),)),
        ),
        (sig("all_gather_v", ((3,),), ((8,),)), sig("all_gather_v", ((5,),), ((8,),))),
        (sig("reduce_scatter_v", ((8,),), ((3,),)), sig("reduce_scatter_v", ((8,),), ((5,),))),
        (sig("warp_shuffle", ((4,),)), sig("warp_shuffle", ((4,),))),
    ],
)
def test_members_may_differ_where_their_op_permits(one: Signature, other: Signature) -> None:
    """Roots, uneven shares and reshaped tensors are legitimate differences."""
    assert agree(one, other)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (sig("all_reduce"), sig("all_gather"), "op all_reduce and all_gather"),
        (
            sig("all_reduce"),
            sig("all_reduce", backend="gloo"),
            "op nccl:all_reduce and gloo:all_reduce",
        ),
        (
            sig("all_reduce", ((4,),), ((4,),)),
            sig("all_reduce", ((8,),), ((8,),)),
            "input sizes [[4]] and [[8]]",
        ),
        (
            sig("_all_gather_base", ((4,),), ((8,),)),
            sig("_all_gather_base", ((4,),), ((9,),)),
            "output sizes [[8]] and [[9]]",
        ),
        (sig("all_reduce"), sig("all_reduce", dtypes=("Half",)), "input dtypes Float and Half"),
        (
            sig("broadcast", ((1,),), ((4,),)),
            sig("broadcast", ((2,),), ((5,),)),
            "output sizes [[4]] and [[5]]",
        ),
        (
            sig("reduce", ((4,),), ((4,),)),
            sig("reduce", ((4,),), ((5,),), dtypes=("Half",)),
            "input dtypes Float and Half",
        ),
        (
            sig("broadcast", ((4,),), ((4,),), out=("Int",)),
            sig("broadcast", ((5,),), ((4,),), dtypes=("Half",), out=("Long",)),
            "output dtypes Int and Long",
        ),
        (
            sig("all_to_all", ((6,),), ((6,),)),
            sig("all_to_all", ((9,),), ((9,),), dtypes=("Long",)),
            "input dtypes Float and Long",
        ),
        (sig("warp_shuffle", ((2, 2),)), sig("warp_shuffle", ((4,),)), "shapes [[2, 2]] and [[4]]"),
    ],
)
def test_a_difference_that_matters_is_named(one: Signature, other: Signature, words: str) -> None:
    """Members whose op, sizes or dtypes cannot meet are different, and the text says in what."""
    assert not agree(one, other)
    assert signature_rules.difference(one, other) == words


LIST = ((3,), (5,))


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (sig("_all_gather_base", ((4,),), ((8,),)), ""),
        (sig("_all_gather_base", ((4,),), ((5,),)), "5 output elements are not 2 times 4"),
        (sig("all_gather", ((4,),), ((2, 4),)), ""),
        (sig("_reduce_scatter_base", ((8,),), ((4,),)), ""),
        (
            sig("reduce_scatter_tensor_coalesced", ((8,), (4,)), ((4,), (3,))),
            "12 input elements are not 2 times 7",
        ),
        (sig("all_gather", ((3,),), LIST), ""),
        (sig("all_gather", ((4,),), LIST), ""),
        (sig("all_gather", ((7,),), LIST), "8 output elements are not 2 times 7"),
        (sig("reduce_scatter", LIST, ((5,),)), ""),
        (sig("reduce_scatter", LIST, ((6,),)), "8 input elements are not 2 times 6"),
    ],
)
def test_gathers_and_scatters_check_themselves(signature: Signature, words: str) -> None:
    """A gather gives back its input once per member; a reduce_scatter takes in as much. A list of
    one tensor a member must have the member's own among them, or add up."""
    assert signature_rules.self_contradiction(signature, 2) == words
    assert signature_rules.self_contradiction(signature, 0) == ""


FOUR, HALF = ((4,),), ("Half",)
COMPLEX = ("ComplexFloat",)


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (sig("all_reduce", FOUR, ((5,),)), "5 output elements are not the 4 of the input"),
        (sig("all_reduce", FOUR, ((2, 2),)), ""),
        (sig("all_reduce", FOUR, FOUR, out=HALF), "output of Half, but input of Float"),
        (sig("all_reduce", FOUR, ((), ()), out=("",)), ""),
        (sig("all_reduce", FOUR, FOUR, out=("",)), ""),
        (sig("all_reduce", FOUR, FOUR, out=()), ""),
        (sig("all_reduce", FOUR, ()), ""),
        (sig("all_reduce", ((),), FOUR, dtypes=()), ""),
        (sig("all_reduce", FOUR, ((4, 2),), dtypes=COMPLEX, out=("Float",)), ""),
        (sig("all_reduce", ((0,),), ((0,),)), ""),
        (sig("allreduce_coalesced", ((4,), (3,)), ((7,),)), ""),
        (
            sig("allreduce_coalesced", ((4,), (3,)), ((4,), (5,))),
            "9 output elements are not the 7 of the input",
        ),
        (sig("all_reduce", ((8,),), FOUR, backend="gloo"), ""),
        (
            sig("all_reduce", FOUR, ((8,),), backend="gloo"),
            "8 output elements are not the 4 of the input",
        ),
        (sig("all_reduce_barrier", ((1,),), ((1,),)), ""),
        (sig("reduce", FOUR, ((0,),)), ""),
        (sig("_reduce_oop", FOUR, ((5,),)), ""),
    ],
)
def test_an_all_reduce_gives_back_what_it_takes_in(signature: Signature, words: str) -> None:
    """In elements and in type, whatever the group, as far as a recorder has both sides. Gloo's may
    be a reduce_scatter, whose output is smaller; what is not the root has no output of a reduce."""
    for size in (0, 2, 3):
        assert signature_rules.self_contradiction(signature, size) == words


def test_what_an_all_to_all_puts_in_is_weighed() -> None:
    """Only an all_to_all has a balance, and an absurd one cannot overflow a sum."""
    assert signature_rules.balance(sig("all_to_all_single", ((6,),), ((4,),))) == 2
    assert signature_rules.balance(sig("all_reduce", ((6,),), ((4,),))) == 0
    assert signature_rules.balance(sig("all_to_all", ((2**62, 2**62),), ())) == 2**53


def test_signatures_are_interned_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal signatures share a handle, matching ones a class, and too many are refused."""
    monkeypatch.setattr(signature_rules, "MAX_SIGNATURES", 2)
    signatures = signature_rules.Signatures()
    one = signatures.handle(sig("all_reduce", ((4,),), ((4,),)))
    other = signatures.handle(sig("all_reduce", ((2, 2),), ((2, 2),)))
    assert one != other
    assert signatures.match_class[one] == signatures.match_class[other]
    assert signatures.handle(sig("all_reduce", ((4,),), ((4,),))) == one
    with pytest.raises(WireError, match=r"^signatures: more than 2 in one attempt"):
        signatures.handle(sig("barrier"))


def test_op_names_do_not_become_labels_without_end() -> None:
    """Beyond the first few dozen op names, all others share one histogram."""
    signatures = signature_rules.Signatures()
    for number in range(100):
        signatures.handle(sig(f"op{number}"))
    assert len(signatures.ops) == signature_rules.MAX_OPS + 1
    assert signatures.ops[-1] == signature_rules.OTHER_OP
    assert signatures.ops[signatures.op[99]] == signature_rules.OTHER_OP


def test_which_ops_wait_for_all_members() -> None:
    """An all_reduce of something cannot end before all have come; of nothing, or a broadcast, it
    can."""
    assert signature_rules.is_strict(sig("all_reduce"))
    assert not signature_rules.is_strict(sig("all_reduce", ((4, 4), (0, 4))))
    assert not signature_rules.is_strict(sig("broadcast"))


# -- what is remembered of members that disagree, at the limits of that memory ---------------------


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
