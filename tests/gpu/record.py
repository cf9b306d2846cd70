"""Records what NCCL's Flight Recorder says while a job hangs: OUT [JOB ...].

The files are the fixtures of tests that run without a GPU (`tests/golden/nccl`, `nccl2`). Each is
what one handler of one rank answered, gzipped; `abort` has the files that torch itself wrote. The
backend nccl2 answers a request for JSON with the active entries only; `.file` has the whole ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frd.cli.commands.demo.stage import Stage
from frd_agent.recorder.worker_server import HandlerFailed, Handlers
from tests.gpu.machine import SHARING
from tests.gpu.watch import logs, scenario
from tests.world.daemons import free_address, until

TIMING = {"TORCH_NCCL_ENABLE_TIMING": "1"}
ABORT = {
    "FRD_GPU_TIMEOUT_S": "10",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5",
}
JOBS: Mapping[str, tuple[str, int, Mapping[str, str]]] = {
    "cpu": ("cpu 1", 3, {}),
    "kernel": ("kernel 1", 3, {}),
    "kernel_timing": ("kernel 1", 3, TIMING),
    "mismatch": ("mismatch 1", 3, {}),
    "batch": ("batch 1", 3, {}),
    "receive": ("receive 1", 3, {}),
    "order": ("order 0", 3, {}),
    "abort": ("cpu 1", 3, ABORT),
}
HANDLERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "json": ("dump_nccl_trace_json", {}),
    "active.json": ("dump_nccl_trace_json", {"onlyactive": "true"}),
    "status.json": ("dump_nccl_trace_json", {"includecollectives": "false"}),
    "pickle": ("dump_nccl_trace_pickle", {"includestacktraces": "false"}),
    "generic.json": ("fr_trace_json", {}),
    "nccl2.json": ("fr_trace_json", {"backend": "nccl2"}),
}
DUMP_FILE = "fr_dump_file"
"""This handler writes the ring of nccl2 to a file, without stacks, within 20 ms."""
LASTS_S = 4.0
AT_A_TIME = 3
"""Ranks that share a GPU take turns on it, which slows all of them."""


def record(name: str, folder: Path, changing: threading.Lock) -> None:
    arguments, ranks, environ = JOBS[name]
    folder.mkdir(parents=True)
    with Stage(scenario(name, "hangs.py"), ranks, 10.0, arguments.split()) as stage:
        own = {
            "NCCL_RAS_ADDR": free_address(),
            "TORCH_FR_DUMP_TEMP_FILE": f"{stage.folder}/dump_",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{stage.folder}/dump_",
        }
        with changing:  # the stage gives its ranks the environment of this process
            before = dict(os.environ)
            os.environ.update({**environ, **own})
            stage.start_job()
            os.environ.clear()
            os.environ.update(before)
        until(
            lambda: any("hangs at" in stage.log(f"rank{rank}") for rank in range(ranks)),
            lambda: logs(stage),
        )
        time.sleep(LASTS_S)
        for socket in sorted(stage.run_dir.glob("*.sock")):
            asyncio.run(_ask(Handlers(socket), folder, _rank_of(socket)))
        time.sleep(1.0)
        _keep_dumps(stage, folder, "file")
        if name == "abort":  # with nccl2 the rank that is stuck goes on
            until(lambda: sum(rank.poll() is None for rank in stage.ranks) < 2, "the abort", 60.0)
            _keep_dumps(stage, folder, "aborted")


def _keep_dumps(stage: Stage, folder: Path, ending: str) -> None:
    for dump in stage.folder.glob("dump_*"):
        _write(folder / f"rank_{dump.name.removeprefix('dump_')}.{ending}", dump.read_bytes())
        dump.unlink()


def _rank_of(socket: Path) -> int:
    identity = json.loads(socket.with_suffix(".json").read_text())
    return int(identity["rank"])


async def _ask(handlers: Handlers, folder: Path, rank: int) -> None:
    offered = await handlers.names()
    for ending, (handler, parameters) in HANDLERS.items():
        if handler in offered:
            try:
                answer = await handlers.ask(handler, timeout_s=None, first=None, **parameters)
            except Exception as error:  # an older torch refuses some parameters
                answer = repr(error).encode()
            _write(folder / f"rank_{rank}.{ending}", answer)
    if DUMP_FILE in offered:
        with contextlib.suppress(HandlerFailed):  # this rank has no recorder of nccl2
            await handlers.ask(DUMP_FILE, backend="nccl2")


def _write(path: Path, data: bytes) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 9, mtime=0))


def main() -> None:
    os.environ.update(SHARING)
    out = Path(sys.argv[1])
    changing = threading.Lock()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in [
            pool.submit(record, name, out / name, changing) for name in sys.argv[2:] or JOBS
        ]:
            done.result()
    print(f"{sum(1 for _ in out.rglob('*.gz'))} files in {out}")


if __name__ == "__main__":
    main()
