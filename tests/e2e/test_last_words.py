"""Where people find a rank that died, and what it wrote last: of a real torchrun job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from tests.world.daemons import (
    JOBS,
    STEADY,
    exec_command,
    findings,
    frd,
    launched,
    until,
    watched,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SAYS = """
import os, runpy, sys
rank = os.environ["RANK"]
print(f"\\x1b[31mrank {rank} is about to die\\x1b[0m", file=sys.stderr, flush=True)
sys.argv = sys.argv[:5]
runpy.run_path(%r, run_name="__main__")
"""


@pytest.mark.parametrize("how", [("--redirects", "2"), ("--tee", "3")])
def test_a_rank_of_torchrun_is_killed(how: tuple[str, str], tmp_path: Path) -> None:
    """Rank 1 is killed by SIGKILL, and torchrun ends the job: the finding has its pid and command
    line, without a secret, and the last lines of the file that torchrun made of its stderr."""
    script = tmp_path / "train.py"
    script.write_text(SAYS % str(JOBS / "steady.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"), *how]
    torchrun += [str(script), "0.01", "0", "0", "/never", "--token", "hunter2"]
    env = {"SLURM_JOB_ID": "4711"}
    with watched(STEADY, 2, 3.0, job=False) as (stage, client):
        with launched(exec_command(stage.run_dir, *torchrun), env=env) as job:
            pids = until(lambda: living(client), "two living ranks")
            os.kill(pids[1], signal.SIGKILL)
            job.wait()
        found = until(lambda: with_dump(client), "a finding with a dump")
        (suspect,) = found["suspects"]
        log = client.get(f"/api/v1/findings/{found['id']}/log")
        shown = frd("findings", found["id"], "--log", "--http", client.address)
        said = Path(stage.folder, "agent.log").read_text()
    address = suspect["address"]
    assert (suspect["rank"], address["pid"], address["slurm_job"]) == (1, pids[1], "4711")
    assert address["command"].endswith("/train.py 0.01 0 0 /never --token REDACTED")
    (file,) = tmp_path.glob("logs/*/attempt_0/1/stderr.log")
    assert address["log"] == str(file)
    (of_rank,) = log["ranks"]
    assert (of_rank["rank"], of_rank["path"], of_rank["why"]) == (1, str(file), "")
    assert "rank 1 is about to die" in of_rank["lines"]
    assert shown.returncode in (0, 3), shown.stderr
    assert "\nrank 1 is about to die\n" in shown.stdout
    assert "about to die" not in str(found) + said
    assert "hunter2" not in str(found) + str(log) + said


def living(client: Client) -> dict[int, int] | None:
    """Pids by rank, if both live."""
    jobs = client.get("/api/v1/jobs")["jobs"]
    ranks = client.get(f"/api/v1/jobs/{jobs[0]['job']}")["ranks"] if jobs else []
    pids = {one["rank"]: one["pid"] for one in ranks if one["as_of"]}
    return pids if len(pids) == 2 else None


def with_dump(client: Client) -> dict[str, Any] | None:
    return next((one for one in findings(client) if one.get("dump")), None)
