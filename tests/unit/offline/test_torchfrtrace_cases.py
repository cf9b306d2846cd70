"""The cases of PyTorch's own analyzer, and what is right where that analyzer is known to be wrong.

Each case is two or more dumps; the collectives found must be complete and in agreement, or say what
is missing or differs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.model import Confidence, Finding, Kind, Reason
from frd.offline.analysis.analyze import Analysis, analyze
from tests.world.scene import named
from tests.world.traces import Folder, Row, Sizes, suspects

COLLECTIVES = (
    "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "all_gather_single",
    "all_gather_v", "all_reduce", "_all_gather_base", "all_gather_into_tensor_coalesced",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_v",
    "reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "gather", "scatter", "all_to_all",
    "all_to_all_single", "all_to_all_v_single", "all_reduce_barrier", "barrier", "split",
    "new_window", "allreduce_coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced",
)  # fmt: skip
GATHERS = {n for n in COLLECTIVES if "gather" in n.lower() and n not in ("gather", "all_gather_v")}
SCATTERS = {n for n in COLLECTIVES if n.lower().startswith(("reduce_scatter", "_reduce_scatter"))}


def row(
    op: str, ins: Sizes = ((4, 4),), outs: Sizes = ((4, 4),), seq: int = 0, **of_row: object
) -> Row:
    return Row(f"nccl:{op}", seq, ins=ins, outs=outs, state="scheduled", **of_row)  # type: ignore[arg-type]


def analysis(*ranks: list[Row], world: int | None = None) -> Analysis:
    """All ranks in one group; rank i recorded `ranks[i]`."""
    folder = Folder().group("0", range(world or len(ranks)))
    for number, rows in enumerate(ranks):
        folder.rank(number, *(replace(one) for one in rows))
    return analyze(folder.trace())


def only(found: Analysis) -> Finding:
    (finding,) = found.findings
    return finding


# -- two entries of one collective -----------------------------------------------------------

SQUARE = row("all_reduce")


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        pytest.param(SQUARE, SQUARE, "", id="equal"),
        pytest.param(SQUARE, row("all_gather"), "op all_reduce and all_gather", id="type"),
        pytest.param(row("all_to_all"), row("all_to_all"), "", id="all_to_all that adds up"),
        pytest.param(
            SQUARE, replace(SQUARE, state="completed"), "", id="state: no mismatch, unlike there"
        ),
        pytest.param(
            row("gather", outs=((4, 4), (4, 4))),
            row("gather", outs=((),), out_dtypes=("",)),
            "",
            id="gather: outputs on the root alone",
        ),
        pytest.param(
            row("_all_gather_base", ((4,),), ((5,),)),
            row("_all_gather_base", ((4,),), ((5,),)),
            "5 output elements are not 2 times 4",
            id="_all_gather_base is checked, unlike there",
        ),
        pytest.param(
            row("_reduce_scatter_base", ((8,),), ((3,),)),
            row("_reduce_scatter_base", ((8,),), ((3,),)),
            "8 input elements are not 2 times 3",
            id="_reduce_scatter_base is checked",
        ),
        pytest.param(
            row("all_reduce", ((4, 4),), ((5, 4),)),
            row("all_reduce", ((4, 4),), ((5, 4),)),
            "20 output elements are not the 16 of the input",
            id="all_reduce whose output is not like its input",
        ),
        pytest.param(
            row("all_reduce", out_dtypes=("Half",)),
            row("all_reduce", out_dtypes=("Half",)),
            "output of Half, but input of Float",
            id="all_reduce that changes the type",
        ),
        pytest.param(
            row("all_to_all", ((4,),), ((6,),)),
            row("all_to_all", ((4,),), ((4,),)),
            "2 elements fewer than they take out",
            id="all_to_all that does not add up",
        ),
    ],
)  # fmt: skip
def test_what_two_ranks_pass_to_one_collective(one: Row, other: Row, differs: str) -> None:
    """Two ranks join one collective; what differs, if it may not, is reported."""
    (collective,) = analysis([one], [other]).collectives
    assert differs in collective.difference
    assert collective.pass_check is (differs == "")


@pytest.mark.parametrize("op", COLLECTIVES)
def test_every_op_agrees_with_itself(op: str) -> None:
    """Every name that PyTorch knows, with sizes that the op allows, on two ranks."""
    ins, outs = ((4,),), ((4,),)
    if op in GATHERS:
        outs = ((8,),)
    if op in SCATTERS:
        ins = ((8,),)
    found = analysis([row(op, ins, outs)], [row(op, ins, outs)])
    assert [c.pass_check for c in found.collectives] == [True]


@pytest.mark.parametrize(
    "name",
    ["nccl:x", "ncclx:x", "gloo:x", "xccl:x", "unknown_backend:x", "nccl2:all_reduce", "fake:y",
     "c10d:all_reduce", "gather_single", "nccl:batch_op_issue", "gloo:sparse_all_reduce"],
)  # fmt: skip
def test_no_name_ends_the_analysis(name: str) -> None:
    """Unknown backends and ops match by equality, where PyTorch's analyzer raises."""
    one = replace(SQUARE, name=name)
    found = analysis([one], [one])
    assert [(c.op, c.pass_check) for c in found.collectives] == [(name.rpartition(":")[2], True)]


# -- whole traces: PyTorch's end-to-end cases ------------------------------------------------


def collectives(found: Analysis) -> list[tuple[str, bool]]:
    return [(c.op, c.pass_check) for c in found.collectives]


def test_coalesced_ops_are_one_collective() -> None:
    """Two broadcasts and the entry that closes them, under one seq: one collective that passes."""
    rows = [row("broadcast"), row("broadcast"), row("coalesced", (), ())]
    found = analysis(rows, rows)
    assert collectives(found) == [("coalesced(broadcast x2)", True)]
    assert found.collectives[0].record_ids == {0: 2, 1: 2}
    assert found.collectives[0].input_numel == 32


def test_uneven_all_gathers_are_compared_part_by_part() -> None:
    """Rank 1 takes [4,4] where rank 0 takes [5,5]: the parts show it, even if the sums agree."""
    end = row("ALLGATHER_coalesced")
    one = [row("_broadcast_oop"), row("_broadcast_oop", ((5, 5),), ((5, 5),)), end]
    other = [row("_broadcast_oop"), row("_broadcast_oop"), end]
    (collective,) = analysis(one, other).collectives
    assert not collective.pass_check
    assert "25" in collective.difference or "[5, 5]" in collective.difference


def test_matched_reduce_parts_pass() -> None:
    """An uneven reduce_scatter as two `_reduce_oop` and the end of the series, on both ranks."""
    rows = [
        row("_reduce_oop", ((4,),), ((4,),)),
        row("_reduce_oop", ((5,),), ((5,),)),
        row("REDUCE_SCATTER_coalesced", ((9,),), ((4,),)),
    ]
    assert collectives(analysis(rows, rows)) == [("REDUCE_SCATTER_coalesced(_reduce_oop x2)", True)]


def test_one_rank_alone_in_a_coalesced_group_does_not_pass() -> None:
    """Rank 1 issues more under seq 0 than rank 0; PyTorch's analyzer lets it pass."""
    extra = [row("_reduce_oop"), row("_reduce_oop"), row("REDUCE_SCATTER_coalesced")]
    found = analysis([row("all_reduce")], [row("all_reduce"), *extra])
    (collective,) = found.collectives
    assert not collective.pass_check
    assert set(suspects(found)) == {0, 1}


def test_an_all_reduce_that_contradicts_itself_is_a_mismatch() -> None:
    """Both ranks pass an output of another size: which is wrong is not known, so none surely is."""
    finding = only(analysis(*[[row("all_reduce", ((4, 4),), ((5, 4),))]] * 2))
    assert (finding.kind, named(finding)) == (Kind.MISMATCH, dict.fromkeys((0, 1), Reason.MISMATCH))
    assert {suspect.confidence for suspect in finding.suspects} == {Confidence.LOW}
    assert "20 output elements are not the 16 of the input" in finding.summary


@pytest.mark.parametrize(
    ("name", "ins", "outs", "finishes_one"),
    [
        pytest.param("gloo:all_reduce", ((12,),), ((4,),), False, id="Gloo's reduce_scatter"),
        pytest.param("gloo:all_reduce", ((5,), (6,), (7,)), ((6,),), False, id="uneven"),
        pytest.param("odd:all_reduce", ((4,),), ((1, 64),), True, id="of a recorder with own ways"),
    ],
)
def test_sizes_that_are_no_contradiction(
    name: str, ins: Sizes, outs: Sizes, *, finishes_one: bool
) -> None:
    """Rank 2 of 3 is late; the sizes of the op look odd, and are what its recorder always shows."""
    stuck = Row(name, 2, ins=ins, outs=outs, state="scheduled", retired=False)
    first = replace(stuck, seq=1, state="completed", retired=True)
    before = [first] if finishes_one else [Row(name, 1, retired=True)]
    assert suspects(analysis([*before, stuck], [*before, stuck], before)) == {2: Reason.CPU_STUCK}


# -- where that analyzer is wrong ------------------------------------------------------------


def test_a_collective_with_missing_ranks_does_not_pass() -> None:
    """Rank 2 never came to seq 2, all sizes agree: the collective fails and rank 2 is named."""
    done, stuck = Row("nccl:all_reduce", 1), row("all_reduce", seq=2)
    found = analysis([done, stuck], [done, stuck], [done], [done, stuck])
    assert [(c.pass_check, c.missing_ranks) for c in found.collectives] == [
        (True, ()),
        (False, (2,)),
    ]
    assert suspects(found) == {2: Reason.CPU_STUCK}
    assert only(found).victims == (0, 1, 3)


def test_the_first_rank_is_not_presumed_innocent() -> None:
    """Rank 0 of four passes another size: rank 0 is named, not the three others."""
    wrong = row("all_reduce", ((5, 4),), ((5, 4),))
    found = analysis([wrong], [SQUARE], [SQUARE], [SQUARE])
    assert suspects(found) == {0: Reason.MISMATCH}
    assert only(found).kind is Kind.MISMATCH
    assert set(found.collectives[0].mismatched) == {0}


@pytest.mark.parametrize("name", ["recv 1<-?", "send", "recv"])
def test_an_op_without_a_peer_blames_nobody(name: str) -> None:
    """A receive from anybody, torchcomms' P2P: the rank is busy, and that is all that is known."""
    folder = Folder().group("0", range(3)).rank(0).rank(2)
    folder.rank(1, row(name, p2p=True))
    found = analyze(folder.trace())
    assert suspects(found) == {}


def test_windows_that_start_at_different_points_miss_nothing() -> None:
    """The ring of rank 1 begins at seq 5, that of rank 0 at seq 2: rank 1 is not missing from 2."""
    folder = Folder().group("0", [0, 1])
    folder.rank(0, *(Row("nccl:all_reduce", seq, at=seq) for seq in range(2, 9)), first_record=1)
    folder.rank(1, *(Row("nccl:all_reduce", seq, at=seq) for seq in range(5, 9)), first_record=50)
    found = analyze(folder.trace())
    assert not found.fault
    assert all(c.pass_check for c in found.collectives)
    assert found.collectives[0].unknown_ranks == (1,)


def test_a_gloo_dump_is_read_like_any_other() -> None:
    """Gloo records no members and no states, `retired` is the end; rank 1 never came to seq 2."""
    folder = Folder(world=3)
    folder.groups["0"] = ("default_pg", ())
    done = Row("gloo:all_reduce", 1, state="scheduled", retired=True)
    stuck = Row("gloo:all_reduce", 2, state="scheduled", retired=False)
    folder.rank(0, replace(done), replace(stuck)).rank(1, replace(done))
    folder.rank(2, replace(done), replace(stuck))
    found = analyze(folder.trace())
    assert suspects(found) == {1: Reason.CPU_STUCK}


def test_versions_may_differ_between_ranks() -> None:
    """An old recorder has only the end of a coalesced series; its rank is no mismatch for it."""
    parts = [row("_broadcast_oop", ((4,),), ((4,),)), row("_broadcast_oop", ((5,),), ((5,),))]
    end = row("ALLGATHER_coalesced", ((4,),), ((4,), (5,)))
    folder = Folder().group("0", [0, 1])
    folder.rank(0, *(replace(one) for one in [*parts, end]), version="2.10")
    folder.rank(1, replace(end), version="2.5")
    (collective,) = analyze(folder.trace()).collectives
    assert collective.pass_check


def test_a_rank_without_a_file_is_unknown_and_not_guilty() -> None:
    """Only 0 and 1 joined seq 2; of rank 2 there is no file."""
    done, stuck = Row("nccl:all_reduce", 1), row("all_reduce", seq=2)
    found = analysis([done, stuck], [done, stuck], world=3)
    assert suspects(found) == {}
    assert only(found).unknown == (2,)
    assert only(found).headline == "The cause may be rank 2, of which the dumps show too little"
    assert only(found).summary.endswith("; take a dump of rank 2")
    assert found.summary == f"{only(found).summary}; no dump of rank 2"
    assert found.missing_ranks == (2,)
    assert found.collectives[1].unknown_ranks == (2,)
