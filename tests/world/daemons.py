"""What tests with real processes need: patience, and free ports."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Stage

T = TypeVar("T")
PATIENCE_S: Final = 60.0
"""Limit for operations that take a few seconds on a quiet machine."""
_NEVER_EPHEMERAL: Final = (16_000, 32_000)


def until(
    said: Callable[[], T | None],
    what: str | Callable[[], str] = "what was waited for",
    within_s: float = PATIENCE_S,
    *,
    ignoring: type[Exception] | None = None,
) -> T:
    """Poll `said` until it returns a true value, and return that.

    Errors of the kind `ignoring` mean not yet, such as those of a daemon that is starting.
    """
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(*filter(None, (ignoring,))):
            if value := said():
                return value
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"{text}: not within {within_s} s")
        time.sleep(0.05)


@contextlib.contextmanager
def watched(
    scenario: Scenario,
    ranks: int,
    stall_after_s: float,
    arguments: Sequence[str] | None = None,
    *,
    job: bool = True,
) -> Iterator[tuple[Stage, Client]]:
    """A stage with a service and an agent, and with its job unless that comes later."""
    with Stage(scenario, ranks, stall_after_s, arguments) as stage:
        addresses = stage.start_service()
        stage.start_agent(addresses)
        if job:
            stage.start_job()
        yield stage, Client(addresses.http)


def run_program(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run to the end, and keep what was written."""
    return subprocess.run(
        command, env=env, cwd=cwd, check=check, capture_output=True, text=True, timeout=120
    )


def frd(
    *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line in its own process."""
    return run_program([sys.executable, "-m", "frd", *map(str, arguments)], env=env)


def finding_with(client: Client, key: str, within_s: float = 60.0) -> dict[str, Any]:
    """The first open finding with a value under this key."""

    def found() -> dict[str, Any] | None:
        findings = client.get("/api/v1/findings?state=open")["findings"]
        return next((finding for finding in findings if finding.get(key)), None)

    return until(found, f"a finding with {key}", within_s)


def fetch(address: str, path: str = "/metrics", timeout_s: float = 30.0) -> str:
    """The body of a plain HTTP answer of the daemon at HOST:PORT."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body.decode()


def metric(address: str, series: str) -> float:
    """The sum of the samples of `series`, a name, or a name with all its labels; 0 without any."""
    lines = fetch(address).splitlines()
    samples = [line for line in lines if line.startswith((f"{series} ", f"{series}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in samples)


def free_port() -> int:
    """A port outside the ephemeral range: it stays free while the daemon that uses it is down."""
    while True:
        port = random.SystemRandom().randrange(*_NEVER_EPHEMERAL)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
