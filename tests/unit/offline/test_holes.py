"""Entries that cannot be read: their rank is unknown from there on, and no rank is accused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.flight.trace import Trace
from frd.model import Confidence, Finding, Kind
from frd.offline.analysis.analyze import Analysis
from frd.offline.load.folder import load_trace
from tests.world.dump_files import T0, as_json, as_torch, document, entry

Write = Callable[[dict[str, Any]], bytes]
ENCODINGS = [pytest.param(as_torch, id="pickle"), pytest.param(as_json, id="JSON")]
LAST = 4
"""The collective in which all ranks wait for rank 2."""


def ring(last: int, *, waits: bool, name: str = "nccl:all_reduce", **more: Any) -> list[Any]:
    """All collectives up to `last`; the rank waits in that one, or all are over."""
    rows = [entry(at, profiling_name=name, **more) for at in range(last)]
    if waits:
        open_ = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
        rows[-1] |= open_
    return rows


def counters(enqueued: int, completed: int) -> dict[str, Any]:
    names = ("enqueued", "started", "completed")
    numbers = zip(names, (enqueued, -1, completed), strict=True)
    return {"0": {f"last_{name}_collective": number for name, number in numbers}}


def dumps(name: str = "nccl:all_reduce", **more: Any) -> dict[int, dict[str, Any]]:
    """Four ranks; 2 has not joined the last collective."""
    found = {}
    for rank in range(4):
        last = LAST - (rank == 2)
        rows = ring(last, waits=rank != 2, name=name, **more)
        found[rank] = document(rows, range(4), pg_status=counters(last, LAST - 1))
    return found


def judged(folder: Path, content: dict[int, dict[str, Any]], encode: Write = as_torch) -> Analysis:
    for rank, one in content.items():
        (folder / f"rank_{rank}").write_bytes(encode(one))
    return frd.load(folder)


def named(found: Analysis) -> set[int]:
    return {suspect.rank for finding in found.findings for suspect in finding.suspects}


def only(found: Analysis) -> Finding:
    (finding,) = found.findings
    return finding


@pytest.mark.parametrize("encode", ENCODINGS)
@pytest.mark.parametrize("rows", [[3], [2, 3], [0, 3], [0, 1, 2, 3], [1], [0]], ids=str)
@pytest.mark.parametrize(
    "bad",
    [
        {"record_id": -1},
        {"collective_seq_id": "x"},
        {"process_group": None},
        {"profiling_name": None},
        {"p2p_seq_id": -1},
        {"state": None, "retired": []},
    ],
    ids=str,
)
def test_where_counters_count_collectives_a_rank_with_holes_has_joined(
    tmp_path: Path, encode: Write, rows: list[int], bad: dict[str, Any]
) -> None:
    """Some entries of rank 1 cannot be read: its counter shows that it waits with the others."""
    content = dumps()
    for row in rows:
        content[1]["entries"][row] |= bad
    found = judged(tmp_path, content, encode)
    assert named(found) == {2}
    assert 1 in only(found).victims
    for row in rows:
        assert any(f"rank_1: entry {row}: " in warning for warning in found.warnings)
    assert any("entries of rank 1 cannot be read" in warning for warning in found.warnings)


def test_beyond_its_counter_a_rank_with_a_hole_is_absent(tmp_path: Path) -> None:
    """Rank 2's last entry is the hole; its counter shows that this was the op before the hang."""
    content = dumps()
    content[2]["entries"][-1]["collective_seq_id"] = -1
    suspect = only(judged(tmp_path, content)).suspects[0]
    assert (suspect.rank, suspect.confidence) == (2, Confidence.HIGH)


@pytest.mark.parametrize("change", ["no counters", "Gloo", "sends", "counter of something else"])
def test_where_counters_prove_nothing_a_rank_with_a_hole_is_unknown(
    tmp_path: Path, change: str
) -> None:
    """The last entry of rank 1 cannot be read and nothing else shows what it was: it is neither a
    suspect nor a victim, and rank 2 still is the cause."""
    content = dumps("gloo:all_reduce" if change == "Gloo" else "nccl:all_reduce")
    for one in content.values():
        if change == "no counters":
            one["pg_status"] = {}
        if change == "sends":
            sent = entry(9, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=1)
            one["entries"].insert(0, sent | {"record_id": 0, "collective_seq_id": 0})
            for at, row in enumerate(one["entries"]):
                row["record_id"] = at
    if change == "counter of something else":
        content[1]["pg_status"] = counters(70, 70)
    content[1]["entries"][-1]["record_id"] = "?"
    finding = only(judged(tmp_path, content))
    assert [suspect.rank for suspect in finding.suspects] == [2]
    assert 1 in finding.unknown
    assert 1 not in finding.victims


def test_a_later_entry_of_the_group_ends_the_doubt(tmp_path: Path) -> None:
    """Rank 2 has a hole, then joined #3, and nothing after it: it is absent from #4."""
    content = dumps()
    content[2]["pg_status"] = {}
    content[2]["entries"][1]["profiling_name"] = 7
    assert named(judged(tmp_path, content)) == {2}


def test_a_hole_of_another_group_proves_nothing_about_this_one(tmp_path: Path) -> None:
    """The hole of rank 2 is of group 1: that it has not joined #4 of group 0 is still known, but
    not with high confidence, because it may wait in group 1."""
    content = dumps()
    for one in content.values():
        one["pg_config"]["1"] = {"name": "1", "desc": "TP", "ranks": "[0, 1, 2, 3]"}
        one["pg_status"] = {}
    hole = entry(8, process_group=("1", "TP"), pg_id=1, collective_seq_id=None)
    content[2]["entries"].append(hole)
    (suspect,) = only(judged(tmp_path, content)).suspects
    assert (suspect.rank, suspect.confidence) == (2, Confidence.MEDIUM)


@pytest.mark.parametrize("encode", ENCODINGS)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "bad",
    [
        {"time_created_ns": -1},
        {"time_created_ns": (1 << 63) - 1},
        {"time_created_ns": 9_214_646_400_000_000_000},
        {"time_discovered_completed_ns": "x"},
        {"timeout_ms": "1min"},
        {"input_sizes": None},
        {"input_dtypes": None},
        {"output_sizes": "big"},
        {"input_sizes": None, "time_created_ns": -5, "timeout_ms": []},
    ],
    ids=str,
)
def test_a_damaged_field_changes_nothing(
    tmp_path: Path, encode: Write, bad: dict[str, Any], rank: int
) -> None:
    """The entry in which a rank waits is damaged, but which op it is can be read: the rank waits in
    it, and neither sizes that are not readable nor times count for a mismatch."""
    content = dumps()
    content[rank]["entries"][-1] |= bad
    found = judged(tmp_path, content, encode)
    finding = only(found)
    assert finding.kind is Kind.STALL
    assert {suspect.rank for suspect in finding.suspects} == {2}
    assert finding.victims == (0, 1, 3)
    assert any(f"rank_{rank}: entry 3: " in warning for warning in found.warnings)


@pytest.mark.parametrize("rows", [[3], [0], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("encode", ENCODINGS)
def test_an_entry_whose_number_of_the_group_is_null_is_of_the_group_it_names(
    tmp_path: Path, encode: Write, rows: list[int]
) -> None:
    """Some entries of rank 1 have no `pg_id`: it waits with the others for rank 2."""
    content = dumps()
    for at in rows:
        content[1]["entries"][at]["pg_id"] = None
    assert named(judged(tmp_path, content, encode)) == {2}


def test_sizes_that_one_rank_cannot_show_hide_no_mismatch_of_others(tmp_path: Path) -> None:
    """Rank 1's sizes cannot be read, and rank 3's differ from those of 0 and 2."""
    content = dumps()
    content[2]["entries"] = ring(LAST, waits=True)
    content[1]["entries"][-1]["input_sizes"] = None
    content[3]["entries"][-1]["input_sizes"] = [[5, 2]]
    finding = only(judged(tmp_path, content))
    assert finding.kind is Kind.MISMATCH
    assert {suspect.rank for suspect in finding.suspects} == {3}


def test_a_part_of_a_coalesced_collective_that_cannot_be_read(tmp_path: Path) -> None:
    """Three broadcasts are one collective; one of rank 1's cannot be read, which is no mismatch."""
    parts = [*["nccl:broadcast"] * 3, "nccl:coalesced"]
    rows = [entry(0), *(entry(1 + at, profiling_name=n) for at, n in enumerate(parts))]
    for row in rows[1:]:
        row["collective_seq_id"] = 2
    content = {rank: document([*map(dict, rows)], range(4)) for rank in range(4)}
    content[1]["entries"][2]["profiling_name"] = None
    assert judged(tmp_path, content).findings == ()


@pytest.mark.parametrize("hole", ["the send", "the end of its batch"])
def test_no_peer_is_blamed_for_a_send_that_may_be_in_a_hole(tmp_path: Path, hole: str) -> None:
    """Rank 0 waits for a send of rank 1, of which an entry cannot be read."""
    sent = {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0, "state": "scheduled"}
    open_ = sent | {"retired": False, "time_discovered_completed_ns": None}
    over = {"profiling_name": "nccl:coalesced", "state": "completed"}
    receive = [entry(0, **open_, profiling_name="nccl:recv 0<-1")]
    send = [entry(0, **open_, profiling_name="nccl:send 1->0"), entry(1, **sent | over)]
    if hole == "the send":
        send = [send[0] | {"profiling_name": None}]
    else:
        receive.append(entry(1, **sent | over))
        send[1] |= {"profiling_name": None}
    content = {
        rank: document(rows, range(2), pg_status=counters(1, 0))
        for rank, rows in enumerate([receive, send])
    }
    assert named(judged(tmp_path, content)) == set()


# -- numbering -------------------------------------------------------------------------------------
# Recorders whose numbers differ between members: the trace numbers collectives by order, or says
# that it cannot.


CONFIG = {
    "world": {"name": "world", "desc": "ncclx", "ranks": "[0,1,2]"},
    "pair": {"name": "pair", "desc": "ncclx", "ranks": "[0,1]"},
}
MS = 1_000_000


def op(at: int, comm: str, name: str = "all_reduce", size: int = 4, **changes: Any) -> Any:
    """As torchcomms records it: one counter for all, nothing says that an op is P2P."""
    return entry(
        at,
        frames=...,
        process_group=[comm, "ncclx"],
        profiling_name=f"ncclx:{name}",
        collective_seq_id=at,
        input_sizes=[[size]],
        time_discovered_started_ns=0,
        **changes,
    )


def write(folder: Path, rank: int, ops: list[Any]) -> None:
    told = document(ops, pg_config=CONFIG, pg_status={}, comm_lib_version="")
    (folder / f"rank_{rank}.json").write_text(json.dumps(told))


def seqs(trace: Trace, rank: int, comm: str) -> list[int]:
    """Of the collectives of one group."""
    of = trace.ranks[rank]
    return [
        int(seq)
        for seq, group, name in zip(of.seq, of.group, of.name, strict=True)
        if trace.groups[group].name == comm and not trace.names[name].is_p2p_kind
    ]


def program(rank: int, steps: int) -> list[Any]:
    """Ranks 0 and 1 share a second group and exchange messages, so their counters run ahead."""
    ops: list[Any] = []
    for step in range(steps):
        when: dict[str, Any] = {"time_created_ns": T0 + step * 10 * MS + rank * 1_000}
        if rank < 2:
            ops.append(op(len(ops), "pair", "send" if rank == 0 else "recv", **when))
            ops.append(op(len(ops), "pair", "all_gather", **when))
        ops.append(op(len(ops), "world", size=step % 5, **when))
    return ops


def test_collectives_are_counted_per_group(tmp_path: Path) -> None:
    """The n-th collective of a group is the n-th on every rank, whatever else a rank did."""
    for rank in range(3):
        write(tmp_path, rank, program(rank, 6))
    trace = load_trace(tmp_path)
    assert [seqs(trace, rank, "world") for rank in range(3)] == [[0, 1, 2, 3, 4, 5]] * 3
    assert [seqs(trace, rank, "pair") for rank in range(2)] == [[0, 1, 2, 3, 4, 5]] * 2
    assert trace.ranks[0].is_p2p.tolist() == [1, 0, 0] * 6
    assert trace.warnings == ()


def test_a_ring_that_has_overrun_is_laid_beside_the_others(tmp_path: Path) -> None:
    """Times and signatures tell how many collectives of each group a ring has lost."""
    write(tmp_path, 0, program(0, 40)[61:])
    write(tmp_path, 1, program(1, 40))
    write(tmp_path, 2, program(2, 40)[3:])
    trace = load_trace(tmp_path)
    assert seqs(trace, 0, "world") == list(range(20, 40))
    assert seqs(trace, 0, "pair") == list(range(20, 40))
    assert seqs(trace, 2, "world") == list(range(3, 40))
    assert trace.warnings == ()


def test_a_ring_that_fits_nowhere_is_left_out(tmp_path: Path) -> None:
    """Rather no number than a wrong one: the warning names the file and the group."""
    write(tmp_path, 0, [op(at, "world", size=900 + at) for at in range(50, 60)])
    write(tmp_path, 1, program(1, 40))
    trace = load_trace(tmp_path)
    assert seqs(trace, 0, "world") == []
    (warning,) = trace.warnings
    assert warning.startswith(str(tmp_path / "rank_0.json"))
    assert "group 'world'" in warning


@pytest.mark.parametrize("change", [{"pg_status": {}}, {}])
def test_others_keep_their_numbers(tmp_path: Path, change: dict[str, Any]) -> None:
    """A dump of NCCL, with a status or from before there was one, is left as it is."""
    rows = [entry(at, collective_seq_id=at * 3) for at in range(4)]
    (tmp_path / "rank_0").write_bytes(as_torch(document(rows, **change)))
    assert load_trace(tmp_path).ranks[0].seq.tolist() == [0, 3, 6, 9]


# -- batches that raise the number of collectives --------------------------------------------------


def batches(rank: int, count: int) -> list[Any]:
    """Rank 1 of a pipeline of three passes on what it receives, so it has twice the batches of the
    others; each raises the number of collectives."""
    ops = [["nccl:send 0->1"], ["nccl:recv 1<-0", "nccl:send 1->2"], ["nccl:recv 2<-1"]][rank]
    rows: list[Any] = []
    for number, name in enumerate(ops * count, 1):
        old = {"collective_seq_id": number, "p2p_seq_id": number, "is_p2p": True}
        rows.append(entry(len(rows), **old, profiling_name=name, state="scheduled", retired=False))
        rows.append(entry(len(rows), **old, profiling_name="nccl:coalesced"))
    return rows


def reduced(rows: list[Any], *, over: bool) -> list[Any]:
    """`rows` and an all_reduce with the next number."""
    number = rows[-1]["collective_seq_id"] + 1
    state = {} if over else {"state": "scheduled", "time_discovered_completed_ns": None}
    return [*rows, entry(len(rows), collective_seq_id=number, retired=over, **state)]


def write_old(folder: Path, rank: int, rows: list[Any], version: str = "2.3") -> None:
    told = document(rows, range(3), version=version, pg_status={})
    (folder / f"rank_{rank}").write_bytes(as_torch(told))


def test_batches_do_not_count_as_collectives(tmp_path: Path) -> None:
    """Before torch 2.5 a batch of sends raised the number: seq 3 and 5 are one all_reduce, in which
    all ranks wait, and no rank is the cause."""
    for rank in range(3):
        write_old(tmp_path, rank, reduced(batches(rank, 2), over=False))
    found = frd.load(tmp_path)
    (finding,) = found.findings
    assert finding.suspects == ()
    assert finding.collective is not None
    assert finding.collective.waiting_ranks == (0, 1, 2)


def test_a_rank_with_nothing_but_batches_has_joined_no_collective(tmp_path: Path) -> None:
    """Its sends carry numbers of batches, which do not show that it joined the all_reduce."""
    for rank in range(2):
        write_old(tmp_path, rank, reduced(batches(rank, 2), over=False))
    write_old(tmp_path, 2, batches(2, 9))
    (finding,) = frd.load(tmp_path).findings
    assert [suspect.rank for suspect in finding.suspects] == [2]


def test_rings_that_have_lost_batches_are_aligned(tmp_path: Path) -> None:
    """A ring without its first entries is aligned by times and signatures."""
    for rank in range(3):
        rows = reduced(batches(rank, 2), over=True)
        rows = reduced([*rows], over=True)
        write_old(tmp_path, rank, rows[2 if rank == 2 else 0 :])
    trace = load_trace(tmp_path)
    collectives = [trace.ranks[rank].seq[trace.ranks[rank].is_p2p == 0] for rank in range(3)]
    assert [seq.tolist() for seq in collectives] == [[1, 2]] * 3


def test_later_formats_and_sends_with_the_number_before_them_keep_it(tmp_path: Path) -> None:
    """From format 2.4 on a batch raises nothing, and not in all earlier ones."""
    for rank in range(3):
        rows = batches(rank, 2)
        for row in rows:
            row["collective_seq_id"] = 0
        write_old(tmp_path, rank, reduced(rows, over=True))
        rows[-1]["collective_seq_id"] = 7
    assert all(one.seq.tolist()[-1] == 1 for one in load_trace(tmp_path).ranks.values())
    for rank in range(3):
        write_old(tmp_path, rank, reduced(batches(rank, 2), over=True), version="2.4")
    last = [one.seq.tolist()[-1] for one in load_trace(tmp_path).ranks.values()]
    assert last == [3, 5, 3]


def test_a_hole_ends_the_count(tmp_path: Path) -> None:
    """What cannot be read may be a collective: the rank's entries of the group have no number."""
    for rank in range(3):
        rows = reduced(batches(rank, 2), over=False)
        if rank == 1:
            rows[2] = rows[2] | {"profiling_name": None}
        write_old(tmp_path, rank, rows)
    found = frd.load(tmp_path)
    assert any("cannot be numbered" in warning for warning in found.warnings)
    assert not [suspect for finding in found.findings for suspect in finding.suspects]
