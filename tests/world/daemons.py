"""Processes of tests: how they start and end, how a test waits for them, and what they answer.

They start warm where that makes no difference (`tests.world.warm`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, TypeVar

from frd.cli.client import Client
from frd.cli.commands.demo import stage as demo
from frd.cli.commands.demo.scenarios import Scenario
from tests.world.warm import Process

T = TypeVar("T")
JOBS: Final = Path(__file__).parents[1] / "e2e" / "jobs"
"""Training scripts of real ranks."""
STEADY: Final = Scenario("steady", "nothing is wrong", str(JOBS / "steady.py"), "0.01 0 0 /never")
"""A healthy job that mostly sleeps, unlike that of the demo."""
PATIENCE_S: Final = 60.0
"""Limit for operations that take a few seconds on a quiet machine."""
_POLL_S: Final = 0.05
_MOST_S: Final = 0.3
_NEVER_EPHEMERAL: Final = (16_000, 32_000)

# -- waiting -------------------------------------------------------------------------------------


def until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str] = "a condition",
    within_s: float = PATIENCE_S,
    *,
    ignoring: type[Exception] | None = None,
) -> T:
    """Poll `condition` until it returns a true value, and return that.

    Errors of the kind `ignoring` mean not yet, such as those of a daemon that is starting.
    """
    began = time.monotonic()
    while True:
        with contextlib.suppress(*filter(None, (ignoring,))):
            if value := condition():
                return value
        if (passed_s := time.monotonic() - began) > within_s:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"{text}: not within {within_s} s")
        time.sleep(_pause_s(passed_s))


def _pause_s(passed_s: float) -> float:
    """The longer the wait, the less a moment matters; each poll takes milliseconds of a core."""
    return min(max(_POLL_S, passed_s / 10), _MOST_S)


async def async_until(
    condition: Callable[[], T | None], what: str, within_s: float = PATIENCE_S
) -> T:
    """`until` for a condition that tasks of this event loop make true."""
    began = time.monotonic()
    while not (value := condition()):
        passed_s = time.monotonic() - began
        assert passed_s < within_s, f"{what}: not within {within_s} s"
        await asyncio.sleep(_pause_s(passed_s))
    return value


def throughout(seconds: float, check: Callable[[], None]) -> None:
    """Call `check`, which asserts something, again and again for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        check()
        time.sleep(0.2)


# -- starting and ending -------------------------------------------------------------------------


def start(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    without: tuple[str, ...] = (),
    log: Path | None = None,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = subprocess.PIPE,
    stderr: int | IO[str] | None = None,
) -> subprocess.Popen[str]:
    """A process in its own group, with `env` added to the environment of this process, except for
    variables with prefixes `without`.

    Standard error is appended to `log`, or else goes to pytest, which shows it when a test fails.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    with contextlib.ExitStack() as files:
        return Process(
            command,
            env=inherited | dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=files.enter_context(log.open("a")) if log else stderr,
            text=True,
            start_new_session=True,
        )


def end(process: subprocess.Popen[str]) -> None:
    """Kill it and all processes of its group, and close its pipes."""
    with process, contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`start`, and at last `end`."""
    process = start(command, **options)
    try:
        yield process
    finally:
        end(process)


@contextlib.contextmanager
def launched(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`running` for a launcher such as torchrun, whose ranks have separate process groups: it is
    asked to end them first."""
    with running(command, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)


def freeze(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP; returns once it has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


_GLOOS_OWN = "[Gloo] Rank "
"""Begins a line that some releases of torch (2.9 and 2.10) write to stdout for each group."""


def first_line(process: subprocess.Popen[str]) -> str:
    """Of the program itself."""
    assert process.stdout is not None
    while (line := process.stdout.readline()).startswith(_GLOOS_OWN):
        pass
    return line


def run_program(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run to the end, and keep what the program wrote."""
    process = Process(
        command,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            output = process.communicate(timeout=120)
        finally:
            process.kill()
    lines = output[0].splitlines(keepends=True)
    stdout = "".join(line for line in lines if not line.startswith(_GLOOS_OWN))
    done = subprocess.CompletedProcess(command, process.returncode, stdout, output[1])
    if check:
        done.check_returncode()
    return done


# -- programs ------------------------------------------------------------------------------------


def frd(
    *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line in its own process."""
    return run_program([sys.executable, "-m", "frd", *map(str, arguments)], env=env)


def serve_command(data_dir: Path, *flags: object) -> list[str]:
    """A service on free ports, which its first line names."""
    command = [sys.executable, "-m", "frd", "serve", "--data-dir", str(data_dir)]
    return [*command, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", *map(str, flags)]


def agent_command(run_dir: Path, *flags: object) -> list[str]:
    """An agent, which serves no metrics unless `flags` say where."""
    command = [sys.executable, "-m", "frd_agent", "run", "--run-dir", str(run_dir)]
    return [*command, "--metrics", "off", *map(str, flags)]


def exec_command(run_dir: Path, *command: object) -> list[str]:
    """`command` below `frd-agent exec`, which puts the tap into its Python processes."""
    tap = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(run_dir), "--"]
    return [*tap, *map(str, command)]


def rank_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """As a launcher such as torchrun sets it for a rank of a job on one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


class Stage(demo.Stage):
    """The demo's, with processes that start warm."""

    Process = Process


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


# -- what they answer ----------------------------------------------------------------------------


def findings(client: Client, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/findings", query)["findings"]
    return found


def opened_s(finding: Mapping[str, Any]) -> float:
    """When it opened, in Unix time by the service's clock."""
    return datetime.fromisoformat(finding["opened_at"]).timestamp()


def finding_with(client: Client, key: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """The first open finding with a value under this key."""

    def found() -> dict[str, Any] | None:
        return next((one for one in findings(client, state="open") if one.get(key)), None)

    return until(found, f"a finding with {key}", within_s)


def fetch(address: str, path: str = "/metrics", timeout_s: float = 30.0) -> str:
    """The body of a plain HTTP answer of the daemon at HOST:PORT."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body.decode()


def get(address: str, path: str, timeout_s: float = 30.0) -> Any:
    return json.loads(fetch(address, path, timeout_s))


def metric(address: str, series: str) -> float:
    """The sum of the samples of `series`, a name, or a name with labels; 0 without any."""
    name, _, labels = series.rstrip("}").partition("{")
    return sum(
        float(line.rpartition(" ")[2])
        for line in fetch(address).splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
        and all(label in line for label in labels.split(","))
    )


def free_port() -> int:
    """A port outside the ephemeral range: it stays free while the daemon that uses it is down."""
    while True:
        port = random.SystemRandom().randrange(*_NEVER_EPHEMERAL)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"
