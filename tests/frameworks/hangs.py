"""A job that some launcher starts, its hang, and what frd must say about it.

Each job has one rank that gets stuck in a function `load_shard` and leaves a file at that moment.
The launcher runs below `frd-agent exec`, with a real service and a real agent.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.stage import Stage
from frd_agent.proc import PROC
from tests.world.daemons import STEADY, exec_command, findings, opened_s, running, until

JOBS: Final = Path(__file__).with_name("jobs")
BIN: Final = Path(sys.executable).parent
STALL_AFTER_S: Final = 3.0
_FOUND_WITHIN_S: Final = 90.0
_WRITTEN: Final = (
    *("torch", "accelerate", "lightning", "transformers", "ray", "deepspeed", "pytorch-ignite"),
    "uv",
)
"""Packages whose versions the summary shows."""

MARK: Final = "FRD_TEST_FOLDER"
"""Variable of all processes of a test; its value is the folder of the test."""

Finding = dict[str, Any]
MEASURED: list[tuple[str, float, str]] = []
"""Launcher, seconds from hang to finding, summary; the terminal shows them at the end."""


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a test, in one line, where a framework is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed: make test-frameworks installs it",
    )


def versions() -> str:
    found = [f"python {sys.version.split()[0]}"]
    for name in _WRITTEN:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


@dataclass(frozen=True, slots=True)
class Launch:
    """Service, agent and launcher of one job."""

    stage: Stage
    client: Client
    grpc: str
    """The service's address for agents."""
    folder: Path
    """The job's files; it has the file ``stuck`` once the rank is stuck."""

    def log(self) -> str:
        """The end of what launcher, ranks and agent have written."""
        job = (self.folder / "log").read_text(errors="replace")
        return f"{job[-4000:]}\n{self.stage.log('agent')[-2000:]}\n{findings(self.client)}"

    def running(
        self, *command: object, env: Mapping[str, str] = MappingProxyType({})
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """`command` below `frd-agent exec`."""
        return self.starting(exec_command(self.stage.run_dir, *command), env)

    def starting(
        self, command: Sequence[object], env: Mapping[str, str] = MappingProxyType({})
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """`command` without frd."""
        return running(
            [str(word) for word in command],
            env={"OMP_NUM_THREADS": "1", MARK: str(self.folder)} | dict(env),
            log=self.folder / "log",
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def until(self, condition: Callable[[], Any], what: str, within_s: float = 90.0) -> Any:
        return until(condition, lambda: f"{what}\n{self.log()}", within_s)


def end_all(folder: Path) -> None:
    """Kill what this test has started: launchers give ranks their own sessions, and a launcher that
    is killed leaves them."""
    mark = f"{MARK}={folder}".encode()
    for process in PROC.iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


@contextmanager
def watching(folder: Path, *, agent: bool = True) -> Iterator[Launch]:
    """Service and agent; the job comes later."""
    with Stage(STEADY, 0, STALL_AFTER_S) as stage:
        addresses = stage.start_service()
        if agent:
            stage.start_agent(addresses)
        (folder / "log").touch()
        try:
            yield Launch(stage, Client(addresses.http), addresses.grpc, folder)
        finally:
            end_all(folder)


@contextmanager
def launched(
    folder: Path, command: Sequence[object], env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Launch]:
    """`command` below `frd-agent exec`, with service and agent."""
    with watching(folder) as launch, launch.running(*command, env=env):
        yield launch


def assert_found(
    launch: Launch, launcher: str, *, world: int, rank: int = 1, where: str = "load_shard"
) -> Finding:
    """The one open finding of the job names the stuck rank, the place and all victims."""

    def found() -> Finding | None:
        for one in findings(launch.client, state="open"):
            if one["kind"] == "stall" and any(suspect.get("stack") for suspect in one["suspects"]):
                return one
        return None

    stuck_file = launch.folder / "stuck"
    launch.until(stuck_file.exists, "the rank gets stuck", 120.0)
    finding: Finding = launch.until(found, "a finding with a stack", _FOUND_WITHIN_S)
    (suspect,) = finding["suspects"]
    assert (suspect["rank"], suspect["reason"]) == (rank, "cpu_stuck")
    assert finding["victims"] == [other for other in range(world) if other != rank]
    assert where in finding["summary"], finding
    assert any(where in frame for frame in suspect["stack"]), suspect
    of_job = findings(launch.client, state="open", job=finding["job"])
    assert [one["id"] for one in of_job] == [finding["id"]]
    took_s = opened_s(finding) - stuck_file.stat().st_mtime
    MEASURED.append((launcher, took_s, finding["summary"]))
    return finding
