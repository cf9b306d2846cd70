"""A training program with and without frd: what it prints, and how it ends, must be the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.world.daemons import JOBS, free_port, rank_environment, run_program

PROGRAM = JOBS / "sacred.py"
_TORCHS_OWN = "WorkerServer.cpp"
"""In lines by which torch announces its worker server."""


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> Outcome:
        lines = [line for line in done.stderr.splitlines() if _TORCHS_OWN not in line]
        return cls(done.returncode, done.stdout, "\n".join(lines))


def environment(run_dir: Path | None) -> dict[str, str]:
    """Of the program; with the tap if there is a run directory."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FRD_")}
    if run_dir is not None:
        env["FRD_RUN_DIR"] = str(run_dir)
    return env | rank_environment(0, 1, free_port())


def command(*how: object) -> list[str]:
    return [sys.executable, str(PROGRAM), *map(str, how)]


def outcomes(run_dir: Path, *how: object) -> tuple[Outcome, Outcome]:
    """Without the tap, and with it."""
    without, with_tap = [
        Outcome.of(run_program(command(*how), env=environment(taps))) for taps in (None, run_dir)
    ]
    return without, with_tap
