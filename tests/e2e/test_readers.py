"""Dump files read by real processes: all of them, within their memory, whatever the files hold."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
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
SHARED_TUPLES = b"\x80\x02}(K\x00](%be%bK\x01u." % (
    b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(60)),
    b"h\x3c",
)
"""A key whose hash takes 2^60 steps."""
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


def all_children(pid: int) -> list[str]:
    """Of all threads of a process."""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return " ".join(task.read_text() for task in tasks).split()
    return []


def cpu_ticks(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[11])
    return 0


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
    ask = pool.ReaderProcess.ask

    def kill_and_ask(process: Any, function: Any, rank: int, path: Path) -> None:
        if rank in (4, 5):
            process._popen.kill()
            process._popen.wait()
        ask(process, function, rank, path)

    monkeypatch.setattr(pool.ReaderProcess, "ask", kill_and_ask)
    found = {rank: tmp_path / f"dump_{rank}" for rank in range(RANKS)}
    readings = list(read_all(found))
    assert [reading.rank for reading in readings] == list(range(RANKS))
    failed = {reading.rank: reading.error for reading in readings if reading.columns is None}
    assert list(failed) == [4, 5]
    assert all("ended by signal 9" in error for error in failed.values())
    assert all(error.startswith(f"{found[rank]}: ") for rank, error in failed.items())


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


def test_a_compressed_file_is_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size and name: 20 kB that unfold to gigabytes, or to a key whose hash takes for
    ever, cost a warning that names the file, and nothing of this process."""
    monkeypatch.setattr(pool, "SMALL_BYTES", 1 << 40)
    fill(tmp_path)
    lists = b'{"version": "2.10", "entries": [' + b"[]," * 20_000_000 + b"[]]}"
    (tmp_path / "dump_3").write_bytes(gzip.compress(lists, 1))
    (tmp_path / "dump_4").write_bytes(gzip.compress(SHARED_TUPLES))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = load_trace(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000
    assert sorted(trace.ranks) == [rank for rank in range(RANKS) if rank not in (3, 4)]
    assert [warning.split(": ")[0] for warning in trace.warnings] == [
        str(tmp_path / "dump_3"),
        str(tmp_path / "dump_4"),
    ]


def test_a_key_that_cannot_be_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small pickle is read here, and refused before it is loaded."""
    monkeypatch.setattr(pool, "SMALL_BYTES", 1 << 40)
    fill(tmp_path)
    (tmp_path / "dump_3").write_bytes(SHARED_TUPLES)
    (warning,) = load_trace(tmp_path).warnings
    assert warning.startswith(f"{tmp_path / 'dump_3'}: a key that is no string or number")


@pytest.mark.parametrize(
    ("limits", "burn", "how"),
    [
        ((1 << 30, 0), (sum, range(10**12)), "by signal 24 (limits: 0 s"),
        ((256 << 20, 60), (bytes, 1 << 29), "with status"),
    ],
)
def test_limits_of_a_reader(limits: tuple[int, int], burn: tuple[Any, ...], how: str) -> None:
    """What takes too long or too much memory ends the process, and the error says how."""
    process = pool.ReaderProcess(*limits)
    try:
        process.ask(*burn)
        with pytest.raises(pool.ReaderDied, match=re.escape(how)):
            process.answer()
    finally:
        process.stop()


def test_memory_is_limited_where_no_score_can_be_written() -> None:
    """A container may have `oom_score_adj` read-only: the limit of memory holds."""
    script = (
        "from pathlib import Path\n"
        "from frd.readers.process import limit_memory\n"
        "def refused(path, text): raise PermissionError(path)\n"
        "Path.write_text = refused\n"
        "limit_memory(64 << 20)\n"
        "bytes(1 << 30)\n"
    )
    run = run_program([sys.executable, "-c", script])
    assert run.returncode == 1
    assert "MemoryError" in run.stderr


def test_ctrl_c_ends_an_analysis(tmp_path: Path) -> None:
    """While readers decode files that take ten seconds, it ends within one; no process is left."""
    for rank in range(2):
        (tmp_path / f"dump_{rank}").write_bytes(b"\x80\x02(" + b"K\x00" * 40_000_000 + b"t.")
    command = [sys.executable, "-m", "frd", "analyze", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as analysis:
        readers: list[Path] = []
        while not any(cpu_ticks(reader) > 50 for reader in readers):
            assert analysis.poll() is None
            time.sleep(0.01)
            readers = [Path("/proc", pid) for pid in all_children(analysis.pid)]
        began_s = time.monotonic()
        analysis.send_signal(signal.SIGINT)
        analysis.wait(10)
        assert time.monotonic() - began_s < 3
        assert analysis.stderr is not None
        assert b"Traceback" not in analysis.stderr.read()
    assert not any(reader.exists() for reader in readers)
