"""Records what torch's FlightRecorderHook wrote while jobs hung on CPUs: OUT [FAULT ...].

The files are the fixtures of tests that run with any torch (`tests/golden/hooks`). A folder for
each fault and form of the backend, a file for each rank and way to get it, gzipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import pickle
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Stage
from frd.errors import ServiceUnavailable
from frd_agent.recorder.worker_server import Handlers
from tests.hooks.backend import FORMS, library
from tests.world.daemons import JOBS, until

FAULTS: Final = ("absent", "crossed", "size", "killed", "receive")
TIMEOUT_S: Final = 12
LASTS_S: Final = 4.0
"""Completion comes about once a second."""


def record(fault: str, form: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    scenario = Scenario(fault, fault, str(JOBS / "hooked.py"))
    with Stage(scenario, 4, 10.0, [fault, form, str(library())]) as stage:
        own = {
            "HOOKED_STEPS": "3",
            "HOOKED_TIMEOUT_S": str(TIMEOUT_S),
            "TORCH_FR_DUMP_TEMP_FILE": f"{stage.folder}/dump_",
        }
        with patch.dict(os.environ, own):  # the stage gives its ranks the environment
            stage.start_job()

        def logs() -> str:
            return "".join(stage.log(f"rank{rank}") for rank in range(4))

        until(lambda: "hangs at" in logs(), logs)
        time.sleep(LASTS_S)
        for socket in sorted(stage.run_dir.glob("*.sock")):
            with contextlib.suppress(ServiceUnavailable):  # this rank was killed
                asyncio.run(_ask(Handlers(socket), folder, _rank_of(socket), form))
        alive = sum(rank.poll() is None for rank in stage.ranks)
        _keep_dumps(stage, folder, "file", alive)
        _keep_dumps(stage, folder, "aborted", alive - (fault == "absent"))


def _keep_dumps(stage: Stage, folder: Path, ending: str, count: int) -> None:
    """The handler answers before it has written its file; torch writes one when an op times out."""
    dumps = lambda: len(list(stage.folder.glob("dump_?"))) == count  # noqa: E731
    until(dumps, f"{count} files", 3.0 * TIMEOUT_S)
    time.sleep(1.0)
    for dump in stage.folder.glob("dump_?"):
        whole = pickle.loads(dump.read_bytes())  # noqa: S301  of a rank that this program started
        for entry in whole["entries"]:
            for frame in entry.get("frames", ()):
                frame["filename"] = Path(frame["filename"]).name
        _write(folder / f"{dump.name.replace('dump', 'rank')}.{ending}", pickle.dumps(whole))
        dump.unlink()


def _rank_of(socket: Path) -> int:
    identity: Mapping[str, Any] = json.loads(socket.with_suffix(".json").read_text())
    return int(identity["rank"])


async def _ask(handlers: Handlers, folder: Path, rank: int, form: str) -> None:
    active = await handlers.ask("fr_trace_json", timeout_s=None, first=None, backend=form)
    _write(folder / f"rank_{rank}.active.json", active)
    await handlers.ask("fr_dump_file", backend=form)


def _write(path: Path, data: bytes) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 9, mtime=0))


def main() -> None:
    out = Path(sys.argv[1])
    for fault in sys.argv[2:] or FAULTS:
        for form in FORMS:
            record(fault, form, out / f"{fault}_{form}")
    print(f"{sum(1 for _ in out.rglob('*.gz'))} files in {out}")


if __name__ == "__main__":
    main()
