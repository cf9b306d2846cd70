"""Dump files read by real processes: all of them, within their memory, whatever the files hold."""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from frd.flight.decode import MAX_BYTES
from frd.flight.trace import Trace
from frd.offline.load.folder import load_trace
from frd.readers import pool
from frd.readers.pool import read_all
from tests.world.daemons import run_program
from tests.world.dump_files import Runs, as_json, as_torch, document, entry

RANKS = 12
HOSTILE_MEMO = b"\x80\x02Nr\xff\xff\xff\x3f."
"""Asks the unpickler for a memo of eight gigabytes."""


@pytest.fixture(autouse=True)
def _always_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SMALL_BYTES", -1)
    monkeypatch.setattr(pool, "cores", lambda: 3)


def fill(folder: Path) -> None:
    for rank in range(RANKS):
        rows = [entry(at, input_sizes=[[rank, at % 3]]) for at in range(100 + rank)]
        data = (as_json if rank == 9 else as_torch)(document(rows, ranks=range(RANKS)))
        (folder / f"dump_{rank}").write_bytes(data)


def plain(trace: Trace) -> Any:
    columns = {rank: [of.seq.tolist(), of.signature.tolist()] for rank, of in trace.ranks.items()}
    return columns, trace.groups, trace.names, trace.signatures, trace.stacks, trace.threads


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_processes_give_what_one_process_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace is the same however many read it, and no process is left."""
    fill(tmp_path)
    done: list[tuple[int, int]] = []
    before = children()
    trace = load_trace(tmp_path, progress=lambda *at: done.append(at))
    assert children() == before
    assert done == [(at, RANKS) for at in range(1, RANKS + 1)]
    monkeypatch.setattr(pool, "SMALL_BYTES", 1 << 40)
    assert plain(load_trace(tmp_path)) == plain(trace)


def test_a_tenth_of_the_files_is_bad(tmp_path: Path) -> None:
    """Damage of every kind among good files: a warning each, and the trace of the others."""
    fill(tmp_path)
    good = (tmp_path / "dump_3").read_bytes()
    (tmp_path / "dump_3").write_bytes(good[: len(good) // 2])
    (tmp_path / "dump_7").write_bytes(pickle.dumps(Runs(tmp_path / "trap"), 2))
    trace = load_trace(tmp_path)
    assert sorted(trace.ranks) == [rank for rank in range(RANKS) if rank not in (3, 7)]
    assert [warning.split(": ")[0] for warning in trace.warnings] == [
        str(tmp_path / "dump_3"),
        str(tmp_path / "dump_7"),
    ]
    assert not (tmp_path / "trap").exists()


def test_memory_stays_within_bounds(tmp_path: Path) -> None:
    """A sparse file of 5 GB, a pickle that asks for a huge memo, one that unfolds: warnings."""
    fill(tmp_path)
    with (tmp_path / "dump_1").open("wb") as file:
        file.truncate(5 * 10**9)
    with (tmp_path / "dump_2").open("wb") as file:
        file.truncate(MAX_BYTES - 1)
    (tmp_path / "dump_3").write_bytes(HOSTILE_MEMO)
    (tmp_path / "dump_4").write_bytes(b"\x80\x02(" + b"]" * 60_000_000 + b"t.")
    begin = time.monotonic()
    trace = load_trace(tmp_path)
    assert time.monotonic() - begin < 30
    assert sorted(trace.ranks) == [0, *range(5, RANKS)]
    assert len(trace.warnings) == 4
    assert "too large" in trace.warnings[0]
    assert "memory" in trace.warnings[3]
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak_bytes < 3 * 1024**3


def test_a_reader_that_dies_takes_one_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader killed over a file is replaced; that file is a warning and the others are read."""
    fill(tmp_path)
    call = pool.ReaderProcess.call

    def kill_and_call(process: Any, path: Path, *arguments: Any) -> Any:
        if path.name in ("dump_4", "dump_5"):
            process._popen.kill()
            process._popen.wait()
        return call(process, path, *arguments)

    monkeypatch.setattr(pool.ReaderProcess, "call", kill_and_call)
    found = {rank: tmp_path / f"dump_{rank}" for rank in range(RANKS)}
    readings = list(read_all(found))
    assert [reading.rank for reading in readings] == list(range(RANKS))
    failed = {reading.rank: reading.error for reading in readings if reading.columns is None}
    assert list(failed) == [4, 5]
    assert all("failed" in error for error in failed.values())


def test_readers_that_always_die_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no reader ever lives, every file is a warning, and it ends."""
    fill(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = {rank: tmp_path / f"dump_{rank}" for rank in range(RANKS)}
    assert all(reading.columns is None for reading in read_all(found))


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Loading at the top of a script does not run the script again in the readers."""
    fill(tmp_path)
    script = tmp_path / "notebook.py"
    script.write_text(
        "import json\n"
        "from frd.readers import pool\n"
        "from frd.offline.load.folder import load_trace\n"
        "pool.SMALL_BYTES = -1\n"
        f"print(json.dumps([len(of) for of in load_trace({str(tmp_path)!r}).ranks.values()]))\n"
    )
    run = run_program([sys.executable, str(script)], check=True)
    assert json.loads(run.stdout) == [100 + rank for rank in range(RANKS)]
    assert run.stderr == ""
