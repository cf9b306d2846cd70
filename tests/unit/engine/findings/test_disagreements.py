"""Who did what: the same words whichever rank was seen first, through the whole engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from frd.engine.findings.disagreements import GLOO, WRONG_RESULT
from frd.forms import finding_from_json, finding_json
from frd.model import Confidence, Finding, Kind, Signature, WorkerStack
from tests.world.job import Job


def sig(dtype: str = "Float", size: int = 4, op: str = "all_reduce") -> Signature:
    return Signature("nccl", op, ((size,),), ((size,),), (dtype,), (dtype,))


def hung(passed: dict[int, str | Signature], order: Iterable[int]) -> Finding:
    """The finding after ranks joined one collective with this, in this order."""
    job = Job(len(passed)).group("default_pg", range(len(passed)))
    for seq in range(247, 249):
        job.all_reduce("default_pg", seq)
    job.run(1)
    for rank in order:
        job.join("default_pg", [rank], 249, passed[rank])
    job.run(2)
    finding = job.only()
    job.run(8)
    assert [one.id for one in job.findings()] == [finding.id]  # no stall opens
    return finding


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_another_op_in_any_order_of_arrival(order: tuple[int, ...]) -> None:
    """Rank 2 calls broadcast: summary and evidence say so, whichever rank came first."""
    finding = hung({0: "all_reduce", 1: "all_reduce", 2: "broadcast"}, order)
    assert finding.kind is Kind.MISMATCH
    words = "called broadcast where ranks 0-1 called all_reduce (#249 on default_pg)"
    assert finding.disagreement == f"rank 2 {words}"
    assert finding.headline == f"Rank 2 (node1) {words}"
    assert finding.effect.startswith("holds up 2 ranks in all_reduce #249 of default_pg for ")
    [suspect] = finding.suspects
    assert suspect.confidence is Confidence.HIGH
    assert suspect.evidence == f"{words}; {GLOO}"
    assert finding.victims == (0, 1)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (sig("Half"), "rank 2 passed float16 where ranks 0-1 passed float32"),
        (sig(size=8), "rank 2 passed [[8]] where ranks 0-1 passed [[4]]"),
        (sig("Long", 8), "rank 2 passed int64 of [[8]] where ranks 0-1 passed float32 of [[4]]"),
        (
            replace(sig(), output_sizes=((8,),)),
            "rank 2 passed outputs of [[8]] where ranks 0-1 passed outputs of [[4]]",
        ),
    ],
)
def test_another_type_or_size(odd: Signature, sentence: str, order: tuple[int, ...]) -> None:
    """Types by torch's names; only what differs is mentioned."""
    finding = hung({0: sig(), 1: sig(), 2: odd}, order)
    assert finding.disagreement == f"{sentence} to all_reduce #249 on default_pg"
    assert GLOO not in finding.suspects[0].evidence


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_no_majority(order: tuple[int, ...]) -> None:
    """No side can be wrong about the other: both are listed, and all ranks are suspects with what
    each of them did."""
    finding = hung({0: sig(), 1: sig("Half"), 2: sig("Half"), 3: sig()}, order)
    where = "to all_reduce #249 on default_pg"
    sentence = "ranks 0,3 passed float32, ranks 1-2 passed float16"
    assert finding.disagreement == f"{sentence} {where}"
    assert {s.confidence for s in finding.suspects} == {Confidence.MEDIUM}
    assert {s.rank: s.evidence for s in finding.suspects} == {
        0: f"passed float32 where ranks 1-2 passed float16 {where}",
        1: f"passed float16 where ranks 0,3 passed float32 {where}",
        2: f"passed float16 where ranks 0,3 passed float32 {where}",
        3: f"passed float32 where ranks 1-2 passed float16 {where}",
    }


def test_several_odd_ones() -> None:
    """Each of them is listed, the majority last."""
    passed: dict[int, str | Signature] = dict.fromkeys(range(4), sig())
    passed |= {4: sig(op="broadcast"), 5: sig(op="all_gather"), 6: sig("Half")}
    assert hung(passed, passed).disagreement == (
        "rank 4 called broadcast and rank 5 called all_gather and rank 6 called all_reduce with "
        "float16 where ranks 0-3 called all_reduce (#249 on default_pg)"
    )


def test_a_mismatch_that_completes_gives_wrong_numbers() -> None:
    """Gloo adds int32 to float32 and says nothing; all ranks go on."""
    job = Job(3).group("dp", range(3)).all_reduce("dp", 0)
    job.run(1)
    for rank, passed in enumerate((sig(), sig(), sig("Int"))):
        job.join("dp", [rank], 1, passed).complete("dp", [rank], 1, passed)
    sentence = "rank 2 passed int32 where ranks 0-1 passed float32 to all_reduce #1 on dp"
    job.run(2)
    finding = job.only()
    assert finding.disagreement == sentence  # it may have been an error that ended it
    assert finding.collective is not None
    assert finding.collective.waited_s == 0.0
    job.all_reduce("dp", 2)
    job.run(2)
    finding = job.only()
    assert finding.disagreement == f"{sentence}; {WRONG_RESULT}"
    assert finding.summary == finding.disagreement.replace("rank 2", "Rank 2 (node1)")


def test_another_order() -> None:
    """Rank 3 went into dp first, the others into ep: the odd one comes first."""
    job = Job(4).group("default_pg", range(4)).group("ep", range(4))
    job.all_reduce("default_pg", 0).all_reduce("ep", 0)
    job.run(1)
    job.join("ep", [0, 1, 2], 1, "all_to_all").join("default_pg", [3], 1)
    job.run(10)
    finding = job.only()
    assert finding.kind is Kind.ORDER
    sentence = "rank 3 went into all_reduce on default_pg while ranks 0-2 are in all_to_all on ep"
    assert finding.disagreement == sentence
    assert finding.headline == "Ranks 0-3 entered default_pg and ep in different orders"
    assert finding.effect.startswith("they wait for each other in ")
    assert finding.summary.endswith(f"; {sentence}")


def test_another_order_of_two() -> None:
    """With no usual order, each rank is listed with where it is."""
    job = Job(2).group("a", range(2)).group("b", range(2)).all_reduce("a", 0).all_reduce("b", 0)
    job.run(1)
    job.join("a", [0], 1).join("b", [1], 1)
    job.run(10)
    assert job.only().disagreement == "rank 0 is in all_reduce on a, rank 1 is in all_reduce on b"


def test_a_finding_with_all_of_it_survives_its_json() -> None:
    """What a rank is doing and who disagrees come back from the store as they went."""
    worker = WorkerStack(7, "pt_data_worker", ("a.py:2 in f",), "x/y.py:3 in g", "loading", "idle")
    finding = hung({0: "all_reduce", 1: "all_reduce", 2: "broadcast"}, range(3))
    suspect = replace(
        finding.suspects[0], inside="torch/x.py:1 in y", doing="compiling", workers=(worker,)
    )
    finding = replace(finding, suspects=(suspect,))
    [back] = [finding_from_json(finding_json(finding))]
    assert back.suspects[0].workers == (worker,)
    assert (back.suspects[0].inside, back.suspects[0].doing) == (suspect.inside, suspect.doing)
    assert back.disagreement == finding.disagreement
