"""What watching memory costs the agent of a node with 8 ranks and 8 GPUs, at ten samples a second.

The ranks are processes that publish what a tap publishes, allocator included, with four children
each, as data loaders are; they make progress, so the agent samples at its full rate. The GPUs are
those of a scripted driver (`tests/nvml`), under the real pynvml. On every second sample one device
has changed, so that its list of processes is read too. The whole agent is measured, once with the
sampling of memory and once without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.ingest import service
from frd_agent import tap
from tests.world.daemons import metric
from tests.world.nvml import GIB, Driver, build, uuid
from tests.world.played_rank import PlayedRank

RANKS: Final = 8
CHILDREN: Final = 4
COLLECTIVES_PER_S: Final = 5
"""Few: what reading them costs is the matter of `bench.overhead`."""
_SETTLE_S: Final = 10.0


def agent_cpu_share(seconds: float) -> dict[str, float]:
    """Shares of one core: the agent, and the same agent with ``memory_hz = 0``.

    Raises:
        SystemExit: there is no compiler for the scripted driver, or the samples did not arrive.
    """
    return {"agent_cpu_share": _share(seconds, 10.0), "agent_cpu_share_off": _share(seconds, 0.0)}


def _share(seconds: float, hz: float) -> float:
    with tempfile.TemporaryDirectory() as folder, service() as (_, address, http):
        library = build(Path(folder, "nvml"))
        if library is None:
            raise SystemExit("memory: no C compiler: install one to build the scripted driver")
        driver = Driver(Path(folder, "driver.txt"))
        run_dir = Path(folder, "run")
        with _processes(run_dir, driver, library, address, hz) as agent:
            _alternate(driver, _SETTLE_S)
            before, began = _cpu_s(agent.pid), time.monotonic()
            _alternate(driver, seconds)
            share = (_cpu_s(agent.pid) - before) / (time.monotonic() - began)
            if metric(http, "frd_ingest_refused_total"):
                raise SystemExit("memory: the service refused what the agent sent: see the log")
    return share


def _alternate(driver: Driver, seconds: float) -> None:
    """Five times a second one device is used by 2 MiB more or less."""
    for turn in range(int(seconds * 5)):
        device = uuid(turn % RANKS)
        used, total = driver.devices[device]
        driver.devices[device] = (used ^ (2 << 20), total)
        driver.write()
        time.sleep(0.2)


@contextlib.contextmanager
def _processes(
    run_dir: Path, driver: Driver, library: Path, address: str, hz: float
) -> Iterator[subprocess.Popen[bytes]]:
    """The ranks, and the agent that watches them."""
    with contextlib.ExitStack() as stack:
        ranks = [
            _start(stack, [__file__, "--rank", str(rank), "--run-dir", str(run_dir)])
            for rank in range(RANKS)
        ]
        for rank, process in enumerate(ranks):
            driver.devices[uuid(rank)] = (40 * GIB, 80 * GIB)
            driver.processes.append((uuid(rank), "compute", process.pid, 39 * GIB))
        driver.write()
        environment = driver.environment(library) | {"FRD_AGENT_MEMORY_HZ": str(hz)}
        options = ["--service", address, "--run-dir", str(run_dir), "--metrics", "off"]
        yield _start(stack, ["-m", "frd_agent", "run", *options], environment)


def _start(
    stack: contextlib.ExitStack, command: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | (environment or {}),
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(_end, process)
    return process


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


# -- a rank ----------------------------------------------------------------------------------------


def rank(number: int, run_dir: Path) -> None:
    """Publishes until it is terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    files = PlayedRank(run_dir, number, RANKS)
    files.identity["devices"] = [uuid(number)]
    files.publish_identity()
    digits = bytes.fromhex(uuid(number).removeprefix("GPU-").replace("-", ""))
    children = [
        subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL) for _ in range(CHILDREN)
    ]
    try:
        for tick in range(10**9):
            time.sleep(tap.TICK_S - time.time() % tap.TICK_S)
            for _ in range(int(COLLECTIVES_PER_S * tap.TICK_S)):
                files.enter()
                files.leave()
            files.publish_memory([(digits, 80 * GIB, (tick % 9) * GIB, 38 * GIB, 38 * GIB, 0)])
            if tick % 5 == 0:
                files.publish()
    finally:
        for child in children:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options.rank, options.run_dir)
        return
    result: dict[str, Any] = agent_cpu_share(options.seconds)
    print(json.dumps(result) if options.json else result)


if __name__ == "__main__":
    main()
