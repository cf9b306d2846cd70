"""Real gloo ranks that do what a test commands; `tests/e2e/jobs/puppet.py` is their script."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.world.daemons import JOBS, end, exec_command, free_port, rank_environment, start


class Puppet:
    """One rank. With a run directory it is started by `exec`, without one as it is."""

    def __init__(
        self,
        rank: int,
        world: int,
        port: int,
        run_dir: Path | None,
        stderr: int | IO[str] = subprocess.PIPE,
        **environ: str,
    ) -> None:
        command = [sys.executable, str(JOBS / "puppet.py")]
        env = rank_environment(rank, world, port) | environ
        if run_dir is not None:
            command = exec_command(run_dir, *command)
        self.process = start(
            command, env=env, without=("FRD_", "SLURM_"), stdin=subprocess.PIPE, stderr=stderr
        )

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """What the rank printed before its `done`."""
        assert self.process.stdout is not None
        printed = []
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, f"rank is gone: {self.process.communicate()[1]}"
            printed.append(line)
        return "".join(printed)

    def do(self, command: str) -> str:
        self.send(command)
        return self.answer()

    def leave(self, command: str = "") -> tuple[int, str, str]:
        """The last command; returns exit code, stdout and stderr of the rank.

        Process groups are destroyed first: torch alone, without the tap, now and then aborts at the
        end of an interpreter that still has some.
        """
        self.do("destroy")
        if command:
            self.send(command)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        stdout, stderr = self.process.communicate(timeout=30)
        return self.process.returncode, stdout, stderr or ""


@contextlib.contextmanager
def puppets(world: int, run_dir: Path | None, **more: Any) -> Iterator[list[Puppet]]:
    port = free_port()
    ranks = [Puppet(rank, world, port, run_dir, **more) for rank in range(world)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            end(rank.process)


def everywhere(ranks: list[Puppet], command: str) -> list[str]:
    for rank in ranks:
        rank.send(command)
    return [rank.answer() for rank in ranks]
