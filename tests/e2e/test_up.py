"""`frd up`: two daemons that live and die together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from tests.world.daemons import first_line, frd, running

pytestmark = pytest.mark.timeout(90)


@contextmanager
def up(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The running command and its first line."""
    ports = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--agent-metrics", "off"]
    places = ["--data-dir", str(folder / "data"), "--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "frd", "up", "--json", *ports, *places]
    with running(command, stderr=subprocess.PIPE) as process:
        yield process, json.loads(first_line(process))


def children(pid: int) -> dict[str, int]:
    """Pids by what they run: ``frd`` or ``frd_agent``."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in found}
    return {words[2].decode(): int(child) for child, words in commands.items()}


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_it_serves_until_sigterm(tmp_path: Path) -> None:
    """Both daemons answer, and SIGTERM ends all three with exit code 0 within ten seconds."""
    with up(tmp_path) as (process, line):
        assert line["run_dir"] == str(tmp_path / "run")
        assert Client(line["http"]).get("/api/v1/jobs")["jobs"] == []
        pids = children(process.pid)
        assert set(pids) == {"frd", "frd_agent"}
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 10
        assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize("victim", ["frd", "frd_agent"])
def test_one_does_not_outlive_the_other(tmp_path: Path, victim: str) -> None:
    """A daemon that is killed takes the other with it, and the exit code and a line say so."""
    with up(tmp_path) as (process, _):
        pids = children(process.pid)
        os.kill(pids[victim], signal.SIGKILL)
        assert process.wait(30) == 1
        assert all(gone(pid) for pid in pids.values())
        assert process.stderr is not None
        name = "service" if victim == "frd" else "agent"
        assert f"frd: error: up: the {name} ended with -9: " in process.stderr.read()


def test_a_service_that_cannot_start(tmp_path: Path) -> None:
    """The service's own line says why, and the command fails."""
    (tmp_path / "bad.toml").write_text("[policy]\nstall_after_s = 0\n")
    run = frd("up", "--config", tmp_path / "bad.toml")
    assert run.returncode == 1
    assert "policy.stall_after_s" in run.stderr
    assert "up: the service did not start" in run.stderr
