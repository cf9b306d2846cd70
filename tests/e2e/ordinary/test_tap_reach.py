"""The tap reaches ranks however people start them; where it does not, frd says so."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frd import __version__
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd_agent.launch import commands
from frd_agent.launch.commands import LaunchWatch
from frd_agent.launch.run_lock import Holder, RunLock, holder
from frd_agent.ranks import tap_files
from tests.e2e.conftest import shows_gloo
from tests.world.daemons import (
    JOBS,
    end,
    first_line,
    free_address,
    free_port,
    run_program,
    running,
    until,
    watched,
)

AGENT = [sys.executable, "-m", "frd_agent"]
OURS = ("FRD_", "SLURM_", "PYTHON", "TORCH_", "RANK", "LOCAL_RANK", "XDG_")
"""Prefixes of variables that a test's own environment must not set."""
pytestmark = pytest.mark.timeout(150)


def environ(run_dir: Path, **more: str) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return base | {"FRD_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1"} | more


def living(run_dir: Path, count: int) -> list[tap_files.TapIdentity]:
    found = [file.content for file in tap_files.TapFile.scan(run_dir) if file.content is not None]
    ordered = sorted(found, key=lambda identity: identity.info.rank)
    return ordered if len(ordered) == count else []


@pytest.mark.torch
def test_forked_ranks_below_a_script_that_replaces_pythonpath(tmp_path: Path) -> None:
    """A shell script sets PYTHONPATH and starts a launcher that forks two ranks; no agent watches.

    Both ranks are published, under the names of script and user, and leave exit records; the
    launcher, the workers of the data loaders and the helpers are no ranks. exec warns that no agent
    watches, and torch does not warn about old names of variables.
    """
    run_dir, stop, port = tmp_path / "run", tmp_path / "end", free_port()
    script = tmp_path / "launch.sh"
    script.write_text(f'PYTHONPATH=/opt/mine "{sys.executable}" "{JOBS}/forked.py" "$@"\n')
    launch = [*AGENT, "exec", "--", "bash", str(script), str(port), str(stop)]
    pipe = subprocess.PIPE
    with running(launch, env=environ(run_dir), without=OURS, stderr=pipe) as process:
        ranks = until(lambda: living(run_dir, 2), "two ranks")
        assert [rank.attempt.job for rank in ranks] == [
            f"launch-{getpass.getuser()}@{socket.gethostname()}:{port}"
        ] * 2
        time.sleep(2)  # the helpers' chance to be taken for ranks
        assert living(run_dir, 2)
        [command] = commands.running(str(run_dir))
        assert (command.pid, command.words) == (process.pid, f"bash {script}")
        assert commands.untapped(command, 0.0)[1] == []
        stop.touch()
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    helpers = dict(re.findall(r"rank (\d) (\d+) helper", stdout))
    assert helpers == {str(rank.info.rank): str(rank.info.pid) for rank in ranks}
    assert re.findall(r"worker (.*)", stdout) != []
    assert "frd-tap" not in stdout
    assert "variables TORCH_FR_DUMP_TEMP_FILE" in stdout  # below torch 2.10 the old name follows
    assert "deprecated" not in stderr or not shows_gloo()  # 2.8 and 2.9 read both names
    assert [line for line in stderr.splitlines() if line.startswith("frd:")] == [
        f"frd: warning: exec: {run_dir}: no agent watches this directory yet: start `frd up` or "
        "`frd-agent run`, or name the agent's directory with --run-dir or FRD_RUN_DIR"
    ]
    assert [rank.exit is not None for rank in living(run_dir, 2)] == [True, True]
    assert commands.running(str(run_dir)) == []


@pytest.mark.torch
def test_ranks_that_the_tap_cannot_reach_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A script empties the environment: the agent names the process that has torch and no tap."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watch = LaunchWatch(run_dir, set, grace_s=0.0)
    agent = RunLock(run_dir, Holder())
    assert agent.keep(0.0)
    code = "import torch, sys; print('up', flush=True); sys.stdin.read()"
    command = [*AGENT, "exec", "--", "env", "-i", sys.executable, "-c", code]
    pipe = subprocess.PIPE
    options = {"env": environ(run_dir), "without": OURS, "stdin": pipe, "stderr": pipe}
    with running(command, **options) as process:
        assert first_line(process) == "up\n"
        watch._check(commands.running(str(run_dir)), set())
        stderr = process.communicate("")[1]
    agent.close()
    assert stderr == "", "an agent watches"
    assert f"pid {process.pid} (" in caplog.text
    assert "has loaded torch without the tap, so its rank is not watched" in caplog.text


def test_an_agent_in_another_directory_is_named(tmp_path: Path) -> None:
    """The agent watches the session's directory. A command from cron, which knows no session, says
    where the agent is; without the agent it says that there is none."""
    session, other = tmp_path / "session", tmp_path / "other"
    session.mkdir()
    command = [*AGENT, "run", "--metrics", "off", "--service", free_address()]
    own = environ(session / "frd", XDG_RUNTIME_DIR=str(session))
    with running(command, env=own, without=OURS) as agent:
        found = until(lambda: holder(session / "frd"))
        assert (found.pid, found.version) == (agent.pid, __version__)

        def start(run_dir: Path) -> str:
            env = environ(run_dir, XDG_RUNTIME_DIR=str(session))
            done = run_program([*AGENT, "exec", "--", "true"], env=env, check=True)
            return done.stderr

        assert start(session / "frd") == ""
        assert f"no agent watches this directory, one watches {session}/frd: say" in start(other)
        end(agent)
        assert "no agent watches this directory yet" in start(session / "frd")


@pytest.mark.torch
def test_the_doctor_finds_what_is_broken(tmp_path: Path) -> None:
    """Service and agent run: all is well. Then the agent dies, the recorder is switched off and the
    address is wrong: each is one line that says what to do."""
    doctor = [sys.executable, "-m", "frd", "doctor"]
    with watched(SCENARIOS["healthy"], 2, 3.0, job=False) as (stage, client):

        def knows_the_clock() -> bool:
            return 'frd_clock_uncertainty_seconds{node="' in client.text("/metrics")

        env = environ(stage.run_dir)
        stage.run_dir.mkdir(mode=0o700, exist_ok=True)
        until(knows_the_clock, "the agent's clock")
        until(lambda: holder(stage.run_dir))
        well = run_program(
            [*doctor, "--http", client.address, "--json", "--", sys.executable, "train.py"], env=env
        )
        found = {check["name"]: check for check in json.loads(well.stdout)["checks"]}
        assert [name for name, check in found.items() if check["state"] == "failed"] == []
        assert well.returncode == 0
        assert "also where PYTHONPATH is replaced" in found["tap"]["text"]
        for name in ("agent", "service, gRPC", "service, HTTP", "service hears the agent", "clock"):
            assert found[name]["state"] == "ok", found[name]

        stage.process("agent").kill()
        stage.process("agent").wait()
        broken = run_program(
            [*doctor, "--http", free_address(), "--", "bash", "run.sh"],
            env=env | {"TORCH_FR_BUFFER_SIZE": "0", "PATH": f"{Path(sys.executable).parent}:/bin"},
        )
    assert broken.returncode == 1
    state = {line[9:].partition(":")[0]: line[:9].strip() for line in broken.stdout.splitlines()}
    assert state["command"] == "warning"
    assert [state[name] for name in ("variables", "agent", "service, HTTP")] == ["failed"] * 3
    assert "start `frd up` or `frd-agent run`" in broken.stdout
