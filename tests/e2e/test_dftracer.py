"""Traces that real releases of DFTracer write now, of a loader with one slow file: when the job is
over, and what they add while it is stuck in a read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frd.model import WaitKind, WaitsFor
from frd.offline.io.analysis import load_traces
from frd_agent.inspection.traces.followed import open_traces
from tests.unit.offline.io.test_traces import check, only
from tests.world.daemons import run_program
from tests.world.io_traces import Writer as Lines
from tests.world.io_traces import naive, training, write_trace
from tests.world.suspects import inspect

RELEASES = ("2.0.3", "2.2.0")
JOB = Path(__file__).parent / "jobs" / "traced_loader.py"
SLOW_S = 0.4
LIVE = {
    "DFTRACER_INC_METADATA": "1",
    "DFTRACER_WRITE_BUFFER_SIZE": "10",
    "DFTRACER_TRACE_COMPRESSION": "0",
}


def library(release: str) -> Path:
    folder = Path(sys.prefix) / f"dftracer-{release}"
    if not (folder / "installed").exists():
        pytest.skip(f"DFTracer {release} is not installed: make dftracer")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Three files; the second is a pipe, whose writer waits before it writes."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("shard-0.bin", "shard-2.bin"):
        (folder / name).write_bytes(bytes(200_000))
    slow = folder / "shard-1.tar"
    os.mkfifo(slow)

    def write() -> None:
        with slow.open("wb") as pipe:
            time.sleep(SLOW_S)
            pipe.write(bytes(10_000))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield folder
    writer.join(10)


def start(
    release: str, data: Path, out: Path, *modes: str, **variables: str
) -> subprocess.Popen[bytes]:
    """The job."""
    out.mkdir()
    env = {**os.environ, "PYTHONPATH": str(library(release)), "RANK": "5", "DFTRACER_ENABLE": "1"}
    command = [sys.executable, str(JOB), str(out), str(data), *modes]
    return subprocess.Popen(command, env={**env, **variables}, cwd=out)


def trace(release: str, data: Path, out: Path, *modes: str, **variables: str) -> int:
    """Run the job; its exit status."""
    return start(release, data, out, *modes, **variables).wait(60)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("compression", ["0", "1"])
def test_the_slow_file_is_named(release: str, compression: str, data: Path, tmp_path: Path) -> None:
    """Rank, file, bytes and wait as the program had them; all sums as a naive reader has them."""
    out = tmp_path / "out"
    variables = LIVE | {"DFTRACER_TRACE_COMPRESSION": compression}
    assert trace(release, data, out, **variables) == 0
    io = load_traces([out])
    one = only(io)
    check(one, io, *naive([*io.traces]).values())
    assert (one.rank, io.broken_lines, list(io.warnings)) == (5, 0, [])
    slowest = one.usage.files[0]
    assert io.path(slowest) == str(data / "shard-1.tar")
    assert slowest.io_ns >= SLOW_S * 0.9e9
    assert slowest.nbytes == 10_000
    assert one.usage.bytes_read == 410_000
    assert one.usage.unoverlapped_ns >= SLOW_S * 0.9e9
    assert one.usage.fetch_ns >= SLOW_S * 0.9e9
    assert [step.step for step in one.usage.steps] == [0, 1, 2]
    assert not one.usage.unclosed


def test_a_forked_child_is_part_of_the_rank(data: Path, tmp_path: Path) -> None:
    """2.2.0 writes a second file, whose hashes only the first one defines."""
    out = tmp_path / "out"
    assert trace("2.2.0", data, out, "fork", **LIVE) == 0
    io = load_traces([out])
    assert len(io.traces) == 2
    one = only(io)
    assert one.rank == 5
    assert sorted(evidence[:8] for evidence in one.processes.values()) == ["child of", "logged b"]
    assert one.usage.bytes_read == 610_000
    assert all(io.path(file).startswith(str(data)) for file in one.usage.files)


def test_a_quote_in_an_argument_loses_no_compute(data: Path, tmp_path: Path) -> None:
    """2.2.0 writes it unescaped, so that the lines of all steps are no JSON."""
    out = tmp_path / "out"
    assert trace("2.2.0", data, out, "quote", **LIVE) == 0
    io = load_traces([out])
    assert b'a,b"c' in b"".join(path.read_bytes() for path in io.traces)
    use = only(io).usage
    assert use.compute_ns >= 3 * 0.9e7
    assert [step.step for step in use.steps] == [0, 1, 2]
    assert (io.broken_lines, list(io.warnings)) == (0, [])


@pytest.mark.parametrize("release", RELEASES)
def test_a_killed_job_leaves_a_lost_trace(release: str, data: Path, tmp_path: Path) -> None:
    """With the default buffer nothing is on disk: said, and never taken for "no I/O"."""
    out = tmp_path / "out"
    assert trace(release, data, out, "kill", DFTRACER_INC_METADATA="1") == -9
    io = load_traces([out])
    assert (io.events, io.ranks) == (0, [])
    assert [problem[:7] for problem in io.traces.values()] == ["0 bytes"]


# -- live ------------------------------------------------------------------------------------------


@contextmanager
def stuck_job(release: str, folder: Path, **variables: str) -> Iterator[tuple[int, Path]]:
    """It has read the first of three files; nothing writes to the second one, a pipe."""
    data = folder / "data"
    data.mkdir()
    (data / "shard-0.bin").write_bytes(bytes(200_000))
    slow = data / "shard-1.tar"
    os.mkfifo(slow)
    held = os.open(slow, os.O_RDWR)
    process = start(release, data, folder / "out", **variables)
    try:
        while not open_traces(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        yield process.pid, slow
    finally:
        process.kill()
        process.wait()
        os.close(held)


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("compression", ["0", "1"])
def test_a_live_trace(release: str, compression: str, tmp_path: Path) -> None:
    """The last call that ended is the open of the file in which the rank is stuck. Of a compressed
    trace, DFTracer may keep some of the last events in its process until the next one."""
    variables = LIVE | {"DFTRACER_TRACE_COMPRESSION": compression}
    step = "; the last step in its trace is epoch 0 step 0"

    def enough(one: WaitsFor) -> bool:  # the trace is written by another thread, a moment later
        is_there = step if compression == "0" else "its trace ends"
        return one.kind is WaitKind.FILE_READ and is_there in one.rest

    with stuck_job(release, tmp_path, **variables) as (pid, slow):
        found = inspect(pid, enough=enough)
    assert found.what == str(slow)
    call = rf"open64\(\) of {slow}" if compression == "0" else ".+"
    ends = rf"its trace ends with {call}, \d+\.\d s before that was first seen"
    assert re.fullmatch(ends, found.rest.removesuffix(step))


@pytest.mark.parametrize("release", RELEASES)
def test_a_buffered_trace(release: str, tmp_path: Path) -> None:
    """With DFTracer's own defaults nothing is written while the job runs."""
    with stuck_job(release, tmp_path, DFTRACER_INC_METADATA="1") as (pid, slow):
        found = inspect(pid, enough=lambda one: one.kind is WaitKind.FILE_READ and bool(one.rest))
    assert found.what == str(slow)
    assert found.rest == "its trace is buffered, not live"


# -- Dask ------------------------------------------------------------------------------------------


def analyzed(*arguments: str, **env: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "frd", "analyze", "--traces", *arguments, "--json"]
    output = run_program(command, env={**os.environ, **env}, check=True).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def test_a_scheduler_gives_the_same_answer(tmp_path: Path) -> None:
    """Two workers of a running Dask cluster, a worker of a rank on another node of the cluster."""
    folder = tmp_path / "traces"
    for rank in range(4):
        writer = Lines("v2.2", 100 + rank)
        lines = [*writer.lines(training(rank)), writer.metadata("CM", "rank", str(rank // 2))]
        write_trace(folder / f"{rank}.pfw.gz", lines, lines_a_member=30)
    program = (
        "import sys, time\n"
        "from frd.offline.io.engine import local_cluster\n"
        "if __name__ == '__main__':\n"
        "    with local_cluster(2) as client:\n"
        "        print(client.scheduler.address, flush=True)\n"
        "        sys.stdin.read()\n"
    )
    script = tmp_path / "cluster.py"
    script.write_text(program)
    cluster = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        there = analyzed(str(folder), "--scheduler", address)
    finally:
        cluster.communicate(timeout=30)
    assert there == analyzed(str(folder))
    assert set(there["io"]["ranks"]) == {"0", "1"}


def test_no_scheduler_answers(tmp_path: Path) -> None:
    """One line that says which address, and what to do."""
    path = write_trace(tmp_path / "t.pfw", list(Lines("v2.2", 1).lines(training(1))))
    command = [sys.executable, "-m", "frd", "analyze", "--traces", str(path)]
    ended = run_program([*command, "--scheduler", "tcp://127.0.0.1:9"], check=False)
    assert ended.returncode == 1
    assert "no Dask scheduler answers" in ended.stderr
    assert ended.stderr.count("frd: error") == 1
