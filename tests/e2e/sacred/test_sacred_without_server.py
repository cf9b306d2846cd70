"""Ranks near a limit have no worker server: they are watched by what their taps publish."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import first_line, frd, run_program, running, until, watched
from tests.world.sacred import command, environment

pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]
FEW_FILES = "ulimit -n 80; exec "
"""Less than 64 descriptors would remain."""


SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in ("mismatch", "cascade")]


@pytest.mark.recorder
@pytest.mark.parametrize("scenario", ["missing_rank", *SOAK])
def test_a_hang_has_the_same_verdict(scenario: str) -> None:
    """A rank without progress publishes its recorder: the demo finds the rank that it expects."""
    demo = [sys.executable, "-m", "frd", "demo", "--scenario", scenario, "--json"]
    done = run_program(["sh", "-c", FEW_FILES + shlex.join(demo)])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["matched"]


def test_status_and_doctor_say_why() -> None:
    """The rank has the reason, with the limit and what is in use."""
    with watched(SCENARIOS["missing_rank"], 1, 3.0, job=False) as (stage, client):
        rank = FEW_FILES + shlex.join(command("stand"))
        env = environment(stage.run_dir) | {"FRD_JOB": "near"}
        with running(["sh", "-c", rank], env=env, stdin=subprocess.PIPE) as process:
            assert first_line(process) == "ready\n"
            why = "torch's worker server is not started: RLIMIT_NOFILE: "
            status = ["status", "--http", client.address, "--json"]
            until(lambda: why in frd(*status).stdout, "the reason")
            doctor = frd("doctor", "--run-dir", stage.run_dir, "--http", client.address)
            (line,) = [line for line in doctor.stdout.splitlines() if " recorder: " in line]
            assert line.startswith("warning  recorder: rank 0: ")
            assert why in line
