"""What the analysis makes of counters, rings, resets, clocks, stacks and real incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frd
from frd.flight.entry import Frame, Status
from frd.model import Activity, Confidence, Kind, Reason
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.analysis.rows import rows_of
from frd.offline.analysis.verdict import channels_of
from tests.unit.offline.test_torchfrtrace_cases import analysis
from tests.world.traces import Folder, Row, done, suspects, waits

TRACES = Path(__file__).parents[4] / "shared" / "traces"

LINE = Frame("step", "/home/me/train.py", 88)
INSIDE = Frame("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/c10d.py", 9)


# -- real incidents --------------------------------------------------------------------------


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here")
@pytest.mark.parametrize(
    ("incident", "reason"),
    [("gpu_error_2nd", Reason.IN_COLLECTIVE_ALONE), ("lock_gil_1st", Reason.CPU_STUCK)],
)
def test_real_incidents_name_the_injected_ranks(incident: str, reason: Reason) -> None:
    """A folder of 16 dumps of what was in flight: 9 and 14 are at fault, all others are victims."""
    found = frd.load(TRACES / incident)
    (finding,) = found.findings
    assert suspects(found) == {9: reason, 14: reason}
    assert finding.victims == tuple(set(range(16)) - {9, 14})
    assert finding.unknown == ()
    assert len(finding.groups_held_up) == 7
    assert all(report.active_only for report in found.ranks.values())
    assert found.fault
    assert not found.warnings


# -- how far a rank came ---------------------------------------------------------------------


def active_only(status_of_two: dict[int, Status], names: tuple[str, str]) -> Analysis:
    """Ranks 0 and 1 wait in seq 7 of the second group; 2 has nothing in flight, only counters."""
    folder = Folder().group(names[0], range(3), "default_pg").group(names[1], range(3), "DATA")
    for rank in (0, 1):
        folder.rank(rank, waits(7, names[1], pg_id=5), first_record=90, status={
            3: Status(40, -1, 40), 5: Status(7, -1, 6),
        })  # fmt: skip
    return analyze(folder.rank(2, status=status_of_two).trace())


NUMBERED, HASHED = ("0", "4"), ("a1f3", "77cd")


@pytest.mark.parametrize(
    ("names", "status_of_two", "named", "unknown"),
    [
        pytest.param(
            NUMBERED, {8: Status(40, -1, 40), 9: Status(6, -1, 6)}, {2: Reason.CPU_STUCK}, (),
            id="groups are numbered: its second one is at seq 6, so it never joined",
        ),
        pytest.param(
            HASHED, {8: Status(40, -1, 40), 9: Status(6, -1, 6)}, {2: Reason.CPU_STUCK}, (),
            id="names are hashed, but no counter is 7: it cannot have joined and left",
        ),
        pytest.param(
            HASHED, {8: Status(7, -1, 7), 9: Status(6, -1, 6)}, {}, (2,),
            id="names are hashed, and a counter of an unknown group is 7",
        ),
    ],
)  # fmt: skip
def test_counters_of_a_rank_whose_ids_of_groups_differ(
    names: tuple[str, str],
    status_of_two: dict[int, Status],
    named: dict[int, Reason],
    unknown: tuple[int, ...],
) -> None:
    """Rank 2's own ids are 8 and 9: groups are told apart by their order, or counters by value."""
    found = active_only(status_of_two, names)
    (finding,) = found.findings
    assert (suspects(found), finding.unknown) == (named, unknown)
    assert found.collectives[0].missing_ranks == tuple(named)


def test_ids_of_one_rank_say_nothing_of_another() -> None:
    """Rank 2's id 5 is its first group, although id 5 of its peers is their second."""
    found = active_only({5: Status(40, -1, 40), 6: Status(7, -1, 7)}, ("0", "4"))
    assert suspects(found) == {0: Reason.IN_COLLECTIVE_ALONE, 1: Reason.IN_COLLECTIVE_ALONE}
    (finding,) = found.findings
    assert {s.confidence for s in finding.suspects} == {Confidence.MEDIUM}


def test_a_counter_of_p2p_ops_is_no_seq() -> None:
    """Rank 1's counter has 9,000 sends; it is not taken for collectives it came to."""
    folder = Folder().group("0", range(2))
    folder.rank(0, done(1), Row("nccl:send 0->1", 1, p2p=True, p2p_seq=9_000), waits(2))
    folder.rank(1, status={0: Status(9_000, -1, 9_000)})
    (finding,) = analyze(folder.trace()).findings
    assert finding.unknown == (1,)
    assert not finding.suspects


def test_a_counter_beyond_all_peers_counts_something_else() -> None:
    """No member has joined seq 3; a rank whose counter says 50 is not done with it."""
    folder = Folder().group("0", range(3))
    for rank in (0, 1):
        folder.rank(rank, waits(3), first_record=9)
    (finding,) = analyze(folder.rank(2, status={0: Status(50, -1, 50)}).trace()).findings
    assert (finding.unknown, finding.suspects) == ((2,), ())


@pytest.mark.parametrize(
    ("op_id", "counter", "named", "unknown"),
    [
        pytest.param(6, 5, {2: Reason.CPU_STUCK}, (), id="it has not joined"),
        pytest.param(
            *(6, 6, {0: Reason.IN_COLLECTIVE_ALONE, 1: Reason.IN_COLLECTIVE_ALONE}, ()),
            id="it has joined and left",
        ),
        pytest.param(9, 6, {}, (2,), id="its peers have sent, so its counter may have sends"),
    ],
)
def test_the_counters_of_a_hook_are_op_ids_from_0(
    op_id: int, counter: int, named: dict[int, Reason], unknown: tuple[int, ...]
) -> None:
    """Ranks 0 and 1 wait in seq 7 of a backend that a hook records; 2 has only a counter."""
    folder = Folder().group("0", range(3))
    for rank in (0, 1):
        row = Row("mine:all_reduce", 7, state="scheduled", op_id=op_id)
        folder.rank(rank, row, first_record=90)
    folder.rank(2, status={0: Status(counter, -1, counter)})
    found = analyze(folder.trace())
    (finding,) = found.findings
    assert (suspects(found), finding.unknown) == (named, unknown)


def test_a_p2p_entry_tells_how_far_its_rank_came() -> None:
    """Rank 1 has a send in flight under seq 4 of the group in which 0 waits in seq 5."""
    folder = Folder().group("0", range(2)).group("1", range(2))
    folder.rank(0, waits(5, at=1), first_record=9)
    folder.rank(1, Row("nccl:send 1->0", 4, at=2, p2p=True, state="scheduled"), first_record=9)
    found = analyze(folder.trace())
    assert found.collectives[0].missing_ranks == (1,)


# -- rings, resets, groups that come back ----------------------------------------------------


@pytest.mark.parametrize(
    ("begins_ms", "named", "unknown"),
    [(0, {1: Reason.CPU_STUCK}, ()), (6_000, {}, (1,))],
    ids=["before the wait", "after the wait began: whatever came before is lost"],
)
def test_a_ring_that_reaches_back_far_enough_proves_absence(
    begins_ms: int, named: dict[int, Reason], unknown: tuple[int, ...]
) -> None:
    """Rank 1 has recorded without the group in which 0 has waited since 5 s."""
    folder = Folder().group("abc", range(2)).group("def", [1])
    folder.rank(0, waits(8, "abc", at=5_000), first_record=100)
    rows = [done(seq, "def", at=begins_ms + seq * 1_000) for seq in range(11)]
    found = analyze(folder.rank(1, *rows, first_record=400).trace())
    assert (suspects(found), found.findings[0].unknown) == (named, unknown)


def test_a_recorder_without_entries_of_what_it_must_have_joined_was_off() -> None:
    """Rank 2 shows nothing although its peers completed an all_reduce with it."""
    (finding,) = analysis([done(1), waits(2)], [done(1), waits(2)], []).findings
    assert (finding.unknown, finding.suspects) == ((2,), ())


def test_only_what_is_after_a_reset_counts() -> None:
    """Record ids begin again: seqs before that are of an earlier life of the groups."""
    before = [done(seq, record_id=seq) for seq in range(50, 60)]
    after = [done(1, record_id=0), waits(2, record_id=1)]
    found = analysis([*before, *after], [*before, done(1, record_id=0)])
    assert suspects(found) == {1: Reason.CPU_STUCK}
    assert found.ranks[0].resets == 1
    assert [c.seq for c in found.collectives] == [1, 2]


def test_a_group_that_came_back_under_its_name_counts_from_its_last_start() -> None:
    """The group was created again under another id of the process: earlier seqs are another
    group's."""
    rows = [done(seq, pg_id=1) for seq in (1, 2, 3)] + [done(1, pg_id=4)]
    folder = Folder().group("0", range(2)).all_ranks(*rows, ranks=[0, 1])
    folder.ranks[0].rows.append(waits(2, pg_id=4))
    found = analyze(folder.trace())
    assert suspects(found) == {1: Reason.CPU_STUCK}
    assert found.groups[0].last_seq == 2


def test_backends_of_one_group_count_apart() -> None:
    """`cuda:nccl,cpu:gloo`: each numbers its own ops, and the hang is in one of them."""
    gloo = [Row("gloo:broadcast", seq, retired=True, state="scheduled") for seq in (1, 2)]
    folder = Folder().group("0", range(2)).all_ranks(done(1), *gloo, ranks=[0, 1])
    folder.ranks[0].rows.append(waits(2))
    found = analyze(folder.trace())
    assert suspects(found) == {1: Reason.CPU_STUCK}
    assert [(c.group.name, c.seq) for c in found.collectives] == [
        ("0/nccl", 1), ("0/nccl", 2), ("0/gloo", 1), ("0/gloo", 2),
    ]  # fmt: skip


def test_the_first_parts_of_a_series_may_be_lost() -> None:
    """Rank 1's ring begins in the middle of an uneven all_gather: no mismatch for that."""
    parts = [Row("nccl:_broadcast_oop", 3, ins=[[n]], outs=[[n]]) for n in (4, 5)]
    end = Row("nccl:ALLGATHER_coalesced", 3)
    folder = Folder().group("0", range(2))
    folder.rank(0, *parts, end, first_record=7).rank(1, replace(parts[1]), replace(end))
    folder.ranks[1].first_record = 8
    found = analyze(folder.trace())
    assert not found.fault
    assert not found.collectives.mismatch.any()


# -- P2P -------------------------------------------------------------------------------------


def test_peers_are_ranks_of_the_group() -> None:
    """`send 0->1` in the group of 4 and 9 goes to rank 9."""
    folder = Folder(world=10).group("7", [4, 9])
    row = Row("nccl:send 0->1", 3, "7", p2p=True, state="scheduled")
    channels = channels_of(rows_of(folder.rank(4, row).rank(9).trace()), {})
    assert (channels.rank.tolist(), channels.peer.tolist()) == ([4], [9])
    assert channels.is_send.tolist() == [1]


def test_ops_of_a_channel_complete_in_order() -> None:
    """The second send of a channel is over, so the first is, whatever its entry says."""
    send = Row("nccl:send 0->1", 3, p2p=True, state="scheduled", retired=False)
    later = Row("nccl:send 0->1", 3, p2p=True, p2p_seq=1)
    waiting = replace(send, p2p_seq=2)
    folder = Folder().group("0", [0, 1]).rank(0, send, later, waiting).rank(1)
    assert channels_of(rows_of(folder.trace()), {}).in_flight.tolist() == [1]


def test_gloo_p2p_leaves_doubt() -> None:
    """Gloo numbers sends and receives but records none: who is idle there is less certain."""
    rows = [Row("gloo:all_reduce", 1, op_id=1, state="scheduled", retired=True),
            Row("gloo:all_reduce", 2, op_id=4, state="scheduled", retired=True)]  # fmt: skip
    folder = Folder().group("0", range(3)).all_ranks(*rows, ranks=range(3))
    for rank in (0, 1):
        folder.ranks[rank].rows.append(Row("gloo:all_reduce", 3, op_id=5, state="scheduled"))
    (finding,) = analyze(folder.trace()).findings
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.confidence) == (2, Confidence.MEDIUM)
    assert "which its backend does not record" in suspect.evidence


# -- mismatches ------------------------------------------------------------------------------


def differing(backend: str, rank_3: Mapping[str, Any], *, hangs: bool) -> str:
    """The evidence against rank 3, which passes something else than ranks 0 to 2."""
    folder = Folder().group("0", range(4))
    state = "scheduled" if hangs or backend == "gloo" else "completed"
    for rank in range(4):
        row = Row(f"{backend}:all_reduce", 1, state=state, retired=not hangs)
        folder.rank(rank, replace(row, **rank_3) if rank == 3 else row)
    (finding,) = analyze(folder.trace()).findings
    (suspect,) = finding.suspects
    assert (finding.kind, suspect.rank) == (Kind.MISMATCH, 3)
    return suspect.evidence


def test_a_dtype_mismatch_that_completed_gave_wrong_numbers() -> None:
    """The evidence names the ranks that passed each dtype, and the consequence."""
    double = {"in_dtypes": ("Double",), "out_dtypes": ("Double",)}
    evidence = differing("nccl", double, hangs=False)
    assert "ranks 0-2 passed Float, rank 3 passed Double" in evidence
    assert "it completed, so its result is wrong" in evidence
    assert "unless it failed, its result is" in differing("gloo", double, hangs=False)
    assert "wrong numbers" not in differing("nccl", double, hangs=True)


def test_gloo_calls_reduce_scatter_by_another_name() -> None:
    """An all_reduce in a mismatch on Gloo may be a reduce_scatter; on NCCL it is what it says."""
    sizes = {"ins": [[9]], "outs": [[9]]}
    note = "Gloo records reduce_scatter as all_reduce"
    assert note in differing("gloo", sizes, hangs=True)
    assert note not in differing("nccl", sizes, hangs=True)
    assert "passed Float" not in differing("gloo", sizes, hangs=True)


# -- what people get -------------------------------------------------------------------------


def test_evidence_has_the_users_own_frames() -> None:
    """The witness shows where it entered, the suspect where its last op was; torch is left out."""
    earlier = Frame(LINE.name, LINE.filename, 80)
    mine = [done(1), waits(2, frames=(INSIDE, LINE))]
    (finding,) = analysis(mine, [done(1, frames=(INSIDE, earlier))]).findings
    assert finding.witness is not None
    assert finding.witness.stack == ("train.py:88 in step",)
    assert "its last op was all_reduce on default_pg at train.py:80 in step" in (
        finding.suspects[0].evidence
    )


def test_where_a_rank_was_if_the_folder_has_its_stack() -> None:
    """`frd dump --stacks` took the stack of rank 1: that is where it is stuck."""
    folder = Folder(standing={1: Activity(("data.py:7 in load",))}).group("0", range(2))
    folder.rank(0, done(1), waits(2)).rank(1, done(1))
    (finding,) = analyze(folder.trace()).findings
    assert finding.suspects[0].stack == ("data.py:7 in load",)
    assert "data.py:7 load" in finding.summary


def test_a_stack_shows_that_the_many_are_late_and_not_the_one() -> None:
    """Only rank 0 of 8 is in the op; the folder has the stack of rank 3."""
    folder = Folder(standing={3: Activity(("data.py:7 in load",))}).group("0", range(8))
    folder.all_ranks(done(1), ranks=range(8)).rank(0, done(1), waits(2))
    (finding,) = analyze(folder.trace()).findings
    high = [s.rank for s in finding.suspects if s.confidence is Confidence.HIGH]
    assert (high, len(finding.suspects)) == ([3], 7)
    assert "only rank 0 of 8 is in it, perhaps by a call" in finding.suspects[1].evidence


def test_waiting_times_count_to_the_latest_known_time() -> None:
    """Rank 0 joined at 1 s; the last that anybody recorded was at 9.5 s."""
    folder = Folder().group("0", range(2)).group("1", [1])
    folder.rank(0, waits(1, at=1_000)).rank(1, done(1, "1", at=2_000, completed_at=9_500))
    (finding,) = analyze(folder.trace()).findings
    assert finding.collective is not None
    assert finding.collective.waited_s == pytest.approx(8.5)
    assert " for " not in finding.effect


def test_a_trace_in_which_all_is_well() -> None:
    """Everything matched and completed: no finding, and words that say so."""
    found = analysis(*[[done(seq) for seq in range(1, 6)]] * 4)
    assert (found.fault, list(found.findings)) == (False, [])
    assert found.summary == "the dumps show no communication fault"
    (group,) = found.groups
    assert (group.matched, group.open, group.mismatched) == (5, 0, 0)
    assert (group.first_seq, group.last_seq) == (1, 5)


def test_dumps_without_anything_in_them() -> None:
    """Ranks that recorded nothing, and no ranks at all."""
    assert "no entries" in analyze(Folder().group("0", [0]).rank(0).trace()).summary
    assert analyze(Folder().trace()).summary == "there are no dumps"


def test_two_incidents_are_two_findings() -> None:
    """Two groups without a common rank hang for separate reasons."""
    folder = Folder().group("1", [0, 1]).group("2", [2, 3])
    folder.rank(0, waits(1, "1", at=50)).rank(1)
    folder.rank(2, waits(1, "2", at=10)).rank(3)
    found = analyze(folder.trace())
    assert [[s.rank for s in finding.suspects] for finding in found.findings] == [[3], [1]]
    assert "(1 more below)" in found.summary


def test_the_columns_of_collectives() -> None:
    """Counts and the objects behind them agree."""
    other = waits(2, ins=[[9]], outs=[[9]])
    found = analysis([done(1), waits(2)], [done(1), other], [done(1)])
    c = found.collectives
    assert c.joined.tolist() == [3, 2]
    assert c.completed.tolist() == [3, 0]
    assert c.missing.tolist() == [0, 1]
    assert c.mismatch.tolist() == [False, True]
    for at, one in enumerate(c):
        assert len(one.joined_ranks) == c.joined[at]
        assert len(one.missing_ranks) == c.missing[at]
        assert bool(one.difference) == c.mismatch[at]
    assert c[-1].seq == 2
    assert [one.seq for one in c[:1]] == [1]
    assert found.findings[0].kind is Kind.MISMATCH


def test_json_has_what_was_promised() -> None:
    """The keys of `frd analyze --json`."""
    folder = Folder().group("0", range(2)).rank(0, waits(1), first_record=3)
    document = analyze(folder.trace()).to_json()
    assert document["ranks"] == {"0": {"entries": 1, "first_record_id": 3, "last_record_id": 3}}
    assert document["missing_ranks"] == [1]
    assert document["groups"][0]["open"] == 1
    assert document["findings"][0]["unknown_ranks"] == [1]


def test_absurd_seqs_take_no_memory() -> None:
    """Seqs at both ends of an int64 are two collectives, not a table of all between."""
    found = analysis([done(1), done(2**62), done(2**62 + 1)])
    assert found.collectives.seq.tolist() == [1, 2**62, 2**62 + 1]
    assert np.all(found.collectives.joined == 1)
