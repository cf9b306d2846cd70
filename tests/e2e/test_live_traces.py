"""A job that DFTracer traces and that is stuck in a read: what its trace adds while it is stuck."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd.model import WaitKind, WaitsFor
from frd_agent.inspection.traces.open_traces import open_traces
from tests.e2e.test_dftracer import JOB, LIVE, RELEASES, library
from tests.world.suspects import inspect


@contextmanager
def stuck_job(release: str, folder: Path, variables: dict[str, str]) -> Iterator[tuple[int, Path]]:
    """It has read the first of three files; nothing writes to the second one, a pipe."""
    data, out = folder / "data", folder / "out"
    data.mkdir()
    out.mkdir()
    (data / "shard-0.bin").write_bytes(bytes(200_000))
    slow = data / "shard-1.tar"
    os.mkfifo(slow)
    held = os.open(slow, os.O_RDWR)
    env = {**os.environ, "PYTHONPATH": str(library(release)), "RANK": "5", "DFTRACER_ENABLE": "1"}
    command = [sys.executable, str(JOB), str(out), str(data)]
    process = subprocess.Popen(command, env={**env, **variables}, cwd=out)
    try:
        while not open_traces(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        yield process.pid, slow
    finally:
        process.kill()
        process.wait()
        os.close(held)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("compression", ["0", "1"])
def test_a_live_trace(release: str, compression: str, tmp_path: Path) -> None:
    """The last call that ended is the open of the file in which the rank is stuck."""
    variables = LIVE | {"DFTRACER_TRACE_COMPRESSION": compression}

    def enough(one: WaitsFor) -> bool:  # the trace is written by another thread, a moment later
        return one.kind is WaitKind.FILE_READ and "; " in one.rest

    with stuck_job(release, tmp_path, variables) as (pid, slow):
        found = inspect(pid, enough=enough)
    assert found.what == str(slow)
    last, step = found.rest.split("; ")
    before = "s before that was first seen"
    if compression == "0":
        assert last.startswith(f"its trace ends with open64() of {slow}, ")
        assert last.endswith(before)
    else:  # the member of the open may not be complete
        assert last.startswith("its trace ends with ")
    assert step == "the last step in its trace is epoch 0 step 0"


@pytest.mark.parametrize("release", RELEASES)
def test_a_buffered_trace(release: str, tmp_path: Path) -> None:
    """With DFTracer's own defaults nothing is written while the job runs."""
    with stuck_job(release, tmp_path, {"DFTRACER_INC_METADATA": "1"}) as (pid, slow):
        found = inspect(pid, enough=lambda one: one.kind is WaitKind.FILE_READ and bool(one.rest))
    assert found.what == str(slow)
    assert found.rest == "its trace is buffered, not live"
