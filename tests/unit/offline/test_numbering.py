"""Recorders whose numbers differ between members: the trace numbers collectives by order, or says
that it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.flight.trace import Trace
from frd.offline.load.folder import load_trace
from tests.world.dump_files import T0, as_torch, document, entry

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
