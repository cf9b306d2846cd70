"""torch's own watchdog ends the job while frd watches: its dump files, and what frd says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from frd.cli import FINDINGS_PRESENT
from tests.gpu.watch import (
    blamed,
    described,
    first_finding,
    logs,
    reasons,
    scenario,
    took_s,
    wait_for_ends,
    wait_for_progress,
)
from tests.world.daemons import findings, frd, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.nccl, pytest.mark.timeout(200)]
GUILTY = 2


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch writes its dump files."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        monkeypatch.setenv(name, f"{folder}/rank_")
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{tmp_path}/fifo_")
    return folder


def test_the_watchdog_aborts_after_frd_has_named_the_rank(
    dumps: Path, monkeypatch: pytest.MonkeyPatch, row: Callable[..., None]
) -> None:
    """A timeout of 12 s: the finding comes before it, the processes abort, no finding blames
    another rank, and the dump files of the abort name the same rank."""
    monkeypatch.setenv("FRD_GPU_TIMEOUT_S", "12")
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    monkeypatch.setenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "5")
    with watched(scenario("abort", "hangs.py"), 3, 4.0, ["cpu", str(GUILTY)]) as (stage, client):
        found = first_finding(stage, client)
        row("watchdog abort", f"{GUILTY}: cpu_stuck", described(found), took_s(stage, found))
        assert reasons(found) == {GUILTY: "cpu_stuck"}
        wait_for_ends(stage, 90.0)
        time.sleep(3.0)  # what the agent reports of the ends
        assert list(blamed(client)) == [GUILTY], blamed(client)
    done = frd("analyze", dumps, "--json")
    assert done.returncode == FINDINGS_PRESENT, done.stderr
    (verdict,) = json.loads(done.stdout)["findings"]
    assert reasons(verdict) == {GUILTY: "cpu_stuck"}


def test_a_dump_by_fifo_leaves_the_job_alone(dumps: Path, tmp_path: Path) -> None:
    """torch's own FIFO asks rank 1 for a dump, which takes it seconds the first time: the file is
    read, the job goes on, and that is no finding."""
    with watched(scenario("fifo", "ordinary.py"), 2, 15.0, ["mixed", "20"]) as (stage, client):
        fifo = tmp_path / "fifo_1.pipe"
        wait_for_progress(stage, client)
        until(fifo.exists, lambda: logs(stage))

        def asked() -> bool:
            pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
            return True

        until(asked, lambda: logs(stage), ignoring=OSError)
        until((dumps / "rank_1").exists, lambda: logs(stage))
        assert wait_for_ends(stage, 120.0) == [0, 0], logs(stage)
        assert findings(client) == []
    done = frd("analyze", dumps, "--json")
    ranks = json.loads(done.stdout)["ranks"]
    assert ranks["1"]["entries"] > 0
