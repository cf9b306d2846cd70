"""`frd up`: two daemons that live and die together; and what `frd serve` says when it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frd.cli import FAILED, USAGE
from frd.cli.client import Client
from tests.world.daemons import first_line, frd, running, serve_command

pytestmark = pytest.mark.timeout(90)


def up_command(folder: Path, *options: str) -> list[str]:
    ports = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--agent-metrics", "off"]
    places = ["--data-dir", str(folder / "data"), "--run-dir", str(folder / "run")]
    return [sys.executable, "-m", "frd", "up", *ports, *places, *options]


@contextmanager
def up(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The running command and its first line."""
    command = up_command(folder, "--json", *options)
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
        assert line["page"] == f"http://{line['http']}/"
        assert Client(line["http"]).get("/api/v1/jobs")["jobs"] == []
        pids = children(process.pid)
        assert set(pids) == {"frd", "frd_agent"}
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 10
        assert all(gone(pid) for pid in pids.values())


def test_it_outlives_a_terminal_under_nohup(tmp_path: Path) -> None:
    """A signal that nohup has the command ignore stays ignored, by all three."""
    with running(["nohup", *up_command(tmp_path, "--json")], stderr=subprocess.PIPE) as process:
        first_line(process)
        for pid in (process.pid, *children(process.pid).values()):
            (mask,) = re.findall(r"SigIgn:\s+([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
            assert int(mask, 16) & 1 << signal.SIGHUP - 1


def test_a_person_sees_first_what_to_open_in_a_browser(tmp_path: Path) -> None:
    """The address of the page, then the commands. With --no-web the service has no page, and no
    address of one is shown."""
    with running(up_command(tmp_path), stderr=subprocess.DEVNULL) as process:
        page = re.fullmatch(r"page: (http://(127\.0\.0\.1:\d+)/)\n", first_line(process))
        assert page
        assert f"metrics: {page[1]}metrics" in first_line(process)
        assert Client(page[2]).has_page()
    with up(tmp_path, "--no-web") as (_, line):
        assert line["page"] is None
        assert not Client(line["http"]).has_page()
        assert Client(line["http"]).get("/api/v1/jobs")["jobs"] == []
    with running(up_command(tmp_path, "--no-web"), stderr=subprocess.DEVNULL) as process:
        assert first_line(process).startswith("frd is up")


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
    """A wrong value is wrong usage: one line, before anything starts. Of another reason, the
    service's own line says why."""
    run = frd("up", "--stall-after", "0")
    assert run.returncode == USAGE
    assert run.stderr.startswith("frd: error: policy.stall_after_s: 0.0: ")
    assert run.stderr.count("\n") == 1
    (tmp_path / "data").touch()
    run = frd(*up_command(tmp_path)[3:])
    assert run.returncode == FAILED
    assert "frd: error: data directory" in run.stderr
    assert "up: the service did not start" in run.stderr


def test_a_second_one_says_what_runs_and_where(tmp_path: Path) -> None:
    """On the same address: one line, exit code 1, and the first one stays."""
    with up(tmp_path) as (process, line):
        second = frd("up", "--http", line["http"], "--data-dir", tmp_path / "other")
        assert second.returncode == FAILED
        assert second.stderr.startswith(
            f"frd: error: up: {line['http']}: a service runs there already, watching 0 jobs, "
        )
        assert "use it, stop it, or name other addresses with --grpc and --http" in second.stderr
        assert second.stderr.count("\n") == 1
        assert process.poll() is None


@pytest.mark.parametrize(
    ("public", "flags", "pages"),
    [
        ("", (), ["page: http://{http}/"]),
        ("https://frd.example", (), ["page: https://frd.example/"]),
        ("https://frd.example", ("--no-web",), []),
    ],
)
def test_the_log_of_the_service_has_the_address_of_the_page(
    tmp_path: Path, public: str, flags: tuple[str, ...], pages: list[str]
) -> None:
    """Where people open it, or no line without the page; the line on standard output has only the
    addresses at which the service listens."""
    command = serve_command(tmp_path, *flags)
    with running(command, env={"FRD_PUBLIC_URL": public}, stderr=subprocess.PIPE) as service:
        bound = json.loads(first_line(service))
        service.terminate()
        log = service.communicate(timeout=30)[1]
    assert set(bound) == {"grpc", "http"}
    assert re.findall(r"page: \S+", log) == [page.format(**bound) for page in pages]
