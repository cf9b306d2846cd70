"""What is said of recorded answers, and of communicators that are not the group's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from frd.engine.evidence.nccl import MAX_LINES, opinion
from frd.wire.waits import Communicator, Member, MemberState, RasReport, decode_ras, encode_ras
from frd_agent.nccl_ras.client import read_answer
from tests.world.ras_server import recorded

FOUR = {10: 671, 11: 674, 12: 677, 13: 678}
"""Process ids by global rank: the recorded job as ranks 10 to 13 of another one."""
THREE = {0: 964, 1: 967, 2: 970}
C = "communicator 63e59fe8c2f77187 (4 ranks)"
SAME = "the same number of each collective that NCCL counts"


def said(name: str, pids: Mapping[int, int]) -> tuple[str, ...]:
    """On the recorded group of all ranks."""
    report = read_answer(recorded(name), next(iter(pids.values())), lambda host: True)
    return opinion(decode_ras(encode_ras(report)), list(pids), pids)


def made(*members: Member, ops: Sequence[str] = ("AllReduce",), size: int = 4) -> RasReport:
    return RasReport((Communicator("ab", size, tuple(ops), members),))


def launched(*counts: int, host: int = 0, first_pid: int = 1) -> list[Member]:
    return [
        Member(rank, first_pid + rank, host, counts=(count,)) for rank, count in enumerate(counts)
    ]


def zeros(size: int) -> list[Member]:
    return [Member(rank, rank + 1, 0, counts=(0, 0)) for rank in range(size)]


PIDS = {rank: rank + 1 for rank in range(4)}


@pytest.mark.parametrize(
    ("name", "pids", "lines", "last"),
    [
        ("lagging", FOUR, 1, f"rank 11 has launched 31 AllReduce in {C}, the others 32"),
        ("killed", FOUR, 2, f"rank 12 does not respond in {C}"),
        ("stopped", FOUR, 2, f"rank 13 does not respond in {C}"),
        ("same", THREE, 1, f"all 3 ranks of communicator 6ce4062cf2669bbe have launched {SAME}"),
    ],
)
def test_recorded_answers(name: str, pids: dict[int, int], lines: int, last: str) -> None:
    """A rank that lags, that got a SIGKILL or a SIGSTOP, with its global number; and ranks that
    agree: that all have launched the op that does not end is worth knowing, too."""
    found = said(name, pids)
    assert (len(found), found[-1]) == (lines, f"NCCL RAS: {last}")


def test_several_communicators_of_one_group() -> None:
    """The recorded jobs have two of ranks 0 and 1, of which one has launched nothing; here both
    have."""
    only_one = said("same", {rank: THREE[rank] for rank in (0, 1)})
    assert only_one == (
        f"NCCL RAS: all 2 ranks of communicator 2f64acaff5559932 have launched {SAME}",
    )
    two = [Communicator(name, 4, ("AllReduce",), tuple(launched(5, 5, 5, 5))) for name in "ab"]
    assert opinion(RasReport(tuple(two)), range(4), PIDS) == (
        f"NCCL RAS: all 4 ranks of each of the communicators a and b have launched {SAME}",
    )


def test_counts_that_are_all_zero() -> None:
    """RAS does not count sends, receives and all_to_all: zeros show nothing."""
    nothing = Communicator("ab", 4, ("Broadcast", "AllReduce"), tuple(zeros(4)))
    assert opinion(RasReport((nothing,)), range(4), PIDS) == ()
    something = Communicator("cd", 4, ("AllReduce",), tuple(launched(5, 5, 5, 5)))
    assert opinion(RasReport((nothing, something)), range(4), PIDS) == (
        f"NCCL RAS: all 4 ranks of communicator cd have launched {SAME}",
    )


@pytest.mark.parametrize(
    "pids",
    [
        {10: 671, 11: 674, 12: 677},
        {10: 671, 11: 674, 12: 677, 13: 999},
        {10: 674, 11: 671, 12: 677, 13: 678},
        {10: 671, 11: 0, 12: 0, 13: 0},
        {},
    ],
    ids=["size", "process", "order", "unknown", "none"],
)
def test_a_communicator_that_is_not_the_groups(pids: dict[int, int]) -> None:
    """Another size, another process, or too little known of the processes: nothing is said."""
    assert opinion(read_answer(recorded("lagging"), 671, lambda _: True), list(pids), pids) == ()


def test_groups_whose_processes_have_the_same_numbers() -> None:
    """The processes of two pods have the same ids: ranks keep the numbers that NCCL gives them."""
    one = Communicator("ab", 2, ("AllReduce",), tuple(launched(5, 6)))
    other = Communicator("cd", 2, ("AllReduce",), tuple(launched(7, 7, host=1)))
    pids = {4: 1, 5: 2}
    assert opinion(RasReport((one, other)), [4, 5], pids) == (
        "NCCL RAS: rank 0 of communicator ab (2 ranks) has launched 5 AllReduce, rank 1 6",
    )


@pytest.mark.parametrize("pids", [{0: 1, 1: 1}, {0: 1, 1: 1, 2: 0}, {0: 1, 1: 2, 2: 1}])
def test_ranks_of_one_group_that_have_the_same_process_id(pids: dict[int, int]) -> None:
    """One rank in each pod: the only communicator of this size may be that of another group, as
    while the group has launched nothing."""
    members = [Member(rank, pid or 1, rank, counts=(5 + rank,)) for rank, pid in pids.items()]
    assert opinion(made(*members, size=len(pids)), list(pids), pids) == ()


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((31, 32, 32, 31), "ranks 0,3 have launched 31 AllReduce in {}, the others 32"),
        ((33, 32, 32, 32), "rank 0 has launched 33 AllReduce in {}, the others 32"),
        ((1, 2, 3, 3), "rank 0 has launched 1 AllReduce in {}, rank 1 2, the others 3"),
        ((1, 2, 3, 4), "rank 0 has launched 1 AllReduce in {}, rank 1 2, rank 2 3, rank 3 4"),
        (
            (1, 2, 3, 4, 5, 9, 9),
            "rank 0 has launched 1 AllReduce in {}, rank 1 2, rank 2 3, 2 more ranks other "
            "numbers, the others 9",
        ),
    ],
)
def test_counts(counts: Sequence[int], words: str) -> None:
    """*The others* are most ranks; of equally many, those that are ahead. Of many different counts
    three are listed one by one."""
    size = len(counts)
    pids = {rank: rank + 1 for rank in range(size)}
    found = opinion(made(*launched(*counts), size=size), range(size), pids)
    assert found == ("NCCL RAS: " + words.format(f"communicator ab ({size} ranks)"),)


def test_what_nccl_has_noticed() -> None:
    """Errors, aborts and ranks that are gone, each kind in one sentence."""
    pids = {rank: rank + 1 for rank in range(8)}
    members = [
        Member(0, 1, 0, counts=(5,)),
        Member(1, 2, 0, error_code=6, counts=(5,)),
        Member(2, 3, 0, error_code=6, counts=(5,)),
        Member(3, 4, 0, init_code=7, counts=(5,)),
        Member(4, 5, 0, MemberState.ABORTED | MemberState.FINALIZING, counts=(5,)),
        Member(5, 6, 0, MemberState.MISSING | MemberState.DEAD),
        Member(6, 7, 0, MemberState.MISSING),
    ]
    where = "communicator ab (8 ranks)"
    assert opinion(made(*members, size=8), range(8), pids) == (
        f"NCCL RAS: rank 5 is considered dead in {where}",
        f"NCCL RAS: rank 6 has given no data in {where}",
        "NCCL RAS: 1 of 8 ranks of communicator ab is not listed",
        f"NCCL RAS: rank 4 has called abort in {where}",
        f"NCCL RAS: rank 4 has called finalize in {where}",
        f"NCCL RAS: rank 3 is still initializing in {where}",
        f"NCCL RAS: ranks 1-2 report error 6 (remote error) in {where}",
    )


def test_ranks_that_may_differ_are_not_called_equal() -> None:
    """One gave no data, or the answer has no counts: nothing differs, and nothing is claimed."""
    three = launched(5, 5, 5)
    (found,) = opinion(made(*three), range(4), PIDS)
    assert "is not listed" in found
    without = [Member(rank, rank + 1, 0) for rank in range(4)]
    assert opinion(made(*without, ops=()), range(4), PIDS) == ()


def test_more_differences_than_fit() -> None:
    """The last line counts them."""
    ops = tuple(f"Op{number}" for number in range(20))
    members = [Member(rank, rank + 1, 0, counts=(rank,) * 20) for rank in range(4)]
    found = opinion(made(*members, ops=ops), range(4), PIDS)
    assert len(found) == MAX_LINES
    assert found[-1] == "NCCL RAS: 13 more differences"
