"""Dump files in PyTorch's own layout (that its own tool reads them is shown end to end)."""

from __future__ import annotations

from typing import Any

from frd.flight.decode import parse
from frd.flight.entry import Dump
from frd.flight.pickles.unpickle import load_plain
from frd.flight.write import write_pickle
from frd.model import GroupInfo
from tests.world.dump_files import as_json, as_torch, document, entry


def written(dump: Dump, membership: Any = None) -> dict[str, Any]:
    loaded: dict[str, Any] = load_plain(write_pickle(dump, membership), source="written")
    return loaded


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


def test_equal_strings_are_written_once() -> None:
    """Two thousand entries do not repeat their strings two thousand times."""
    entries = parse(as_json(document([entry()])), source="x").entries * 2000
    data = write_pickle(Dump(version="2.10", entries=entries))
    assert data.count(b"nccl:all_reduce") == 1
    assert data.count(b"Float") == 1


def test_bytes_are_those_that_torch_writes() -> None:
    """A dump of PyTorch's, read and written again, is the same file."""
    rows = [entry(at, **({"duration_ms": 1.5} if at % 2 else {})) for at in range(50)]
    data = as_torch(document(rows))
    assert write_pickle(parse(data, source="x")) == data
