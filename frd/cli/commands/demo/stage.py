"""The demo's processes: a service, an agent and the ranks of one job, all on this machine.

All files are below one temporary folder, and each process has its own process group, so that
leaving the stage removes everything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import frd
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.signals import first_line
from frd.errors import ServiceUnavailable

_READY_WITHIN_S = 20.0
_STOP_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Addresses:
    grpc: str
    http: str


ANY_PORTS = Addresses("127.0.0.1:0", "127.0.0.1:0")


def examples() -> Path:
    """Folder of the example scripts: inside the package in a wheel, next to it in a checkout."""
    package = Path(frd.__file__).parent
    packed = package / "examples"
    return packed if packed.is_dir() else package.parent / "examples"


class Stage:
    """Starts and stops the demo's processes; use as a context manager."""

    Process: type[subprocess.Popen[Any]] = subprocess.Popen
    """What starts a process; a subclass of the stage may have another."""

    def __init__(
        self,
        scenario: Scenario,
        ranks: int,
        stall_after_s: float,
        script_arguments: Sequence[str] | None = None,
        *,
        scripted: bool = False,
    ) -> None:
        self.scenario = scenario
        self.scripted = scripted or importlib.util.find_spec("torch") is None
        self._arguments = (
            scenario.arguments(ranks) if script_arguments is None else list(script_arguments)
        )
        self.world = ranks
        self.job = f"demo-{scenario.name}"
        self._stall_after_s = stall_after_s
        self.folder = Path(tempfile.mkdtemp(prefix="frd-demo-"))
        self.run_dir = self.folder / "run"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._named: dict[str, subprocess.Popen[bytes]] = {}
        self.ranks: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- parts ---------------------------------------------------------------------------------

    def start_service(
        self,
        at: Addresses = ANY_PORTS,
        *,
        name: str = "service",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Addresses:
        """Start `frd serve` and wait until it prints its addresses.

        Raises:
            ServiceUnavailable: it ended or was not ready in time; the message has its last output.
        """
        policy = {f"FRD_POLICY__{key.upper()}": str(v) for key, v in self.scenario.policy.items()}
        service = self.spawn(
            name,
            [sys.executable, "-m", "frd", "serve"]
            + ["--grpc", at.grpc, "--http", at.http]
            + ["--data-dir", str(self.folder / ("data" if name == "service" else f"{name}-data"))]
            + ["--stall-after", str(self._stall_after_s)],
            environment={**os.environ, "FRD_WEB": "true", **policy, **environment},
            stdout=subprocess.PIPE,
        )
        if not (line := first_line(service, _READY_WITHIN_S)):
            raise ServiceUnavailable(f"frd serve: did not start: {self.log(name)[-500:]}")
        return Addresses(**json.loads(line))

    def start_agent(self, *services: Addresses) -> None:
        addresses = ",".join(service.grpc for service in services)
        bytes_ = self.scenario.machine_bytes
        agent = ["frd.cli.commands.demo.small_machine", str(bytes_)] if bytes_ else ["frd_agent"]
        self.spawn(
            "agent",
            [sys.executable, "-m", *agent, "run", "--service", addresses]
            + ["--run-dir", str(self.run_dir), "--metrics", "off"],
        )

    def start_job(self) -> None:
        """Start the ranks as a launcher such as torchrun would: a process each, with variables."""
        port = free_port()
        command = self._rank_command()
        start_at = time.time() + 2.0
        for rank in range(self.world):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "FRD_JOB": self.job,
                "FRD_RUN_DIR": str(self.run_dir),
                "FRD_DEMO_START_AT": str(start_at),
                "TMPDIR": str(self.folder),
            }
            self.ranks.append(self.spawn(f"rank{rank}", command, environment=environment))

    def inject(self) -> None:
        """Send the scenario's signal to the first suspect; a scripted rank sends it to itself."""
        if self.scenario.signal is not None and not self.scripted:
            first, *_ = self.scenario.suspects(self.world)
            self.ranks[first].send_signal(self.scenario.signal)

    def log(self, name: str) -> str:
        """The output of a part so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace").strip() if path.exists() else ""

    def stop(self) -> None:
        """End every process, ranks first, and remove the folder."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL if process in self.ranks else signal.SIGTERM)
        deadline = time.monotonic() + _STOP_WITHIN_S
        for process in self._processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- helpers -------------------------------------------------------------------------------

    def _rank_command(self) -> list[str]:
        if self.scripted:
            return [sys.executable, "-m", "frd.cli.commands.demo.scripted", self.scenario.name]
        script = str(examples() / self.scenario.script)
        tap = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(self.run_dir), "--"]
        return [*tap, sys.executable, script, *self._arguments]

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a part."""
        return self._named[name]

    def spawn(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = self.Process(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        self._named[name] = process
        return process


def watch(every_s: float, within_s: float) -> Iterator[float]:
    """Yield the seconds passed, about every `every_s`, until `within_s` is over."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < within_s:
        yield passed
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
