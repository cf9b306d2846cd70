"""The agent checks the commands of its run directory and warns about ranks without a tap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from frd_agent.launch import commands

_EVERY_S: Final = 1.0
_LOOK_S: Final = 5.0
_LOOK_LATER_S: Final = 30.0
"""Interval after a minute without a new command: a command that is no job may run for days."""

log = logging.getLogger(__name__)


class LaunchWatch:
    """Warns about ranks without a tap.

    `living` returns the pids of the ranks that the agent watches. A process may have torch without
    the tap for `grace_s`.
    """

    def __init__(
        self, run_dir: Path, living: Callable[[], set[int]], grace_s: float = commands.GRACE_S
    ) -> None:
        self._directory = str(run_dir)
        self._living = living
        self._grace_s = grace_s
        self._settled: set[commands.Command] = set()
        """Commands of which a rank has been seen."""
        self.warnings: dict[commands.Command, str] = {}
        self._met: dict[commands.Command, float] = {}
        """When this agent first saw each running command."""
        self._look_at = 0.0

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # an error here must not stop the watching of ranks
                log.exception("%s: commands could not be read", self._directory)
            await asyncio.sleep(_EVERY_S)

    async def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        running = commands.running(self._directory)
        self._settled &= set(running)
        self.warnings = {one: text for one, text in self.warnings.items() if one in running}
        self._met = {command: self._met.get(command, now) for command in running}
        fresh = [command for command in running if command not in self._settled]
        if fresh:
            await asyncio.to_thread(self._check, fresh, self._living())
        new = any(now - self._met[command] < 60 for command in fresh)
        self._look_at = now + (_LOOK_S if new or not fresh else _LOOK_LATER_S)

    def _check(self, fresh: list[commands.Command], living: set[int]) -> None:
        """Off the event loop: this reads all of /proc."""
        for command in fresh:
            pids, found = commands.untapped(command, self._grace_s)
            if pids & living:
                self._settled.add(command)
            if pids & living or not found:
                self.warnings.pop(command, None)
            elif command not in self.warnings:
                self.warnings[command] = warning(command, found)
                log.warning("%s", self.warnings[command])


def warning(command: commands.Command, found: list[commands.Untapped]) -> str:
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"pid {first.pid}{more} ({first.words}), started by `frd-agent exec -- {command.words}`: "
        "has loaded torch without the tap, so its rank is not watched: does the launch script "
        "replace PYTHONPATH, or start python -S? install frd in that environment, and check with "
        "`frd-agent exec --check -- CMD`"
    )
