"""Dump files in PyTorch's own layout (that its own tool reads them is shown end to end)."""

from __future__ import annotations

from typing import Any

from frd.flight.decode import parse
from frd.flight.entry import Dump, Entry, Frame, Status
from frd.flight.pickles.unpickle import load_plain
from frd.flight.write import write_pickle
from frd.model import GroupInfo
from tests.world.dump_files import as_torch, document, entry

ENTRY = Entry(
    record_id=3,
    process_group=("1", "pair"),
    profiling_name="gloo:broadcast",
    collective_seq_id=2,
    pg_id=1,
    op_id=2,
    time_created_ns=1795190253130790054,
    input_sizes=((2, 3),),
    output_sizes=((2, 3),),
    input_dtypes=("Float",),
    output_dtypes=("Float",),
    retired=True,
    timeout_ms=1800000,
    thread_id="140409514490752",
    thread_name="python",
)
DUMP = Dump(version="2.10", entries=(ENTRY,), status={1: Status(3, -1, 2)})


def written(dump: Dump, membership: Any = None) -> dict[str, Any]:
    loaded: dict[str, Any] = load_plain(write_pickle(dump, membership), source="written")
    return loaded


def test_layout_of_an_entry() -> None:
    """Names, types and absent times are those of a pickle that torch 2.13 wrote."""
    (fields,) = written(DUMP)["entries"]
    assert fields == {
        "record_id": 3,
        "pg_id": 1,
        "process_group": ("1", "pair"),
        "thread_name": "python",
        "thread_id": "140409514490752",
        "collective_seq_id": 2,
        "p2p_seq_id": 0,
        "op_id": 2,
        "profiling_name": "gloo:broadcast",
        "time_created_ns": 1795190253130790054,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[2, 3]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1800000,
        "is_p2p": False,
    }


def test_membership_fills_what_the_dump_lacks() -> None:
    """Groups come from the dump, then from the caller, who knows better; ranks are a string."""
    dump = Dump(
        version="2.10",
        groups={"0": GroupInfo("0", "default_pg", (0, 1)), "1": GroupInfo("1", "wrong", (0,))},
    )
    assert written(dump, {"1": ("pair", [1, 0]), "2": ("tp", (0,))})["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "1": {"name": "1", "desc": "pair", "ranks": "[0, 1]"},
        "2": {"name": "2", "desc": "tp", "ranks": "[0]"},
    }


def test_empty_dump_has_entries() -> None:
    """A rank that has recorded nothing still gets a file that torchfrtrace can open."""
    assert written(Dump(version="2.10")) == {
        "version": "2.10",
        "pg_config": {},
        "comm_lib_version": "",
        "pg_status": {},
        "entries": [],
    }


def test_nothing_is_lost() -> None:
    """A written dump reads back as the same dump, frames and durations included."""
    frames = (Frame("forward", "/a/model.py", 7), Frame("<module>", "/a/train.py", 88))
    full = Dump(
        version="2.9",
        comm_lib_version="2.27.3",
        entries=(
            ENTRY,
            Entry(
                record_id=4,
                process_group=("0", "default_pg"),
                profiling_name="nccl:all_reduce",
                collective_seq_id=9,
                state="completed",
                duration_ms=1.25,
                time_discovered_started_ns=5,
                time_discovered_completed_ns=6,
                frames=frames,
            ),
        ),
        groups={"0": GroupInfo("0", "default_pg", (0, 1))},
        status={0: Status(9, 9, 8)},
    )
    assert parse(write_pickle(full), source="x") == full


def test_equal_strings_are_written_once() -> None:
    """Two thousand entries do not repeat their strings two thousand times."""
    entries = parse(write_pickle(DUMP), source="x").entries * 2000
    data = write_pickle(Dump(version="2.10", entries=entries))
    assert data.count(b"gloo:broadcast") == 1
    assert data.count(b"Float") == 1


def test_bytes_are_those_that_torch_writes() -> None:
    """A dump of PyTorch's, read and written again, is the same file."""
    rows = [entry(at, **({"duration_ms": 1.5} if at % 2 else {})) for at in range(50)]
    data = as_torch(document(rows))
    assert write_pickle(parse(data, source="x")) == data
