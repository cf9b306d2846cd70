"""`frd dump` of a job that hangs: PyTorch's own analyzer reads it, and so does `frd analyze`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import finding_with, frd, run_program, watched

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(120)]


def test_dump_now_and_after_the_job_is_gone(tmp_path: Path) -> None:
    """Dump a hanging job with one frozen rank; kill it all; fetch the finding's own dump."""
    with watched(SCENARIOS["missing_rank"], 4, 3.0) as (stage, client):
        found = finding_with(client, "dump")
        stage.ranks[3].send_signal(signal.SIGSTOP)

        now = tmp_path / "now"
        result = frd("dump", "--http", client.address, "--stacks", "-o", str(now))
        assert result.returncode == 0, result.stderr
        summary = json.loads((now / "summary.json").read_text())
        assert set(summary["answered"]) >= {0, 1, 2}
        files = sorted(path.name for path in (now / stage.job).iterdir())
        assert {"rank_0", "rank_1", "rank_2"} <= set(files)
        about = now / f"{stage.job}.meta"
        assert json.loads((about / "rank_0.json").read_text())["rank"] == 0
        assert "load_batch" in (about / "rank_2.stack.txt").read_text()
        again = frd("dump", "--http", client.address, "-o", str(now))
        assert again.returncode == 1
        assert "exists" in again.stderr

        read = run_program(
            [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
            + ["--allow-incomplete-ranks", str(now / stage.job)],
            env=os.environ | {"LOGLEVEL": "INFO"},
        )
        if "name formatting error? gloo" not in read.stderr:  # as of torch 2.10
            assert read.returncode == 0, read.stderr
            assert "all_reduce" in read.stdout + read.stderr

        for rank in stage.ranks:
            rank.kill()
            rank.wait()
        later = tmp_path / "later"
        result = frd("dump", "--http", client.address, "--finding", found["id"], "-o", str(later))
        assert result.returncode == 0, result.stderr
        assert (later / stage.job / "rank_2").exists()
        assert "load_batch" in (later / f"{stage.job}.meta" / "rank_2.stack.txt").read_text()

        verdict = frd("analyze", str(later))
        assert verdict.returncode == 3, verdict.stderr
        assert "Rank 2" in verdict.stdout
        assert "in load_batch" in verdict.stdout
