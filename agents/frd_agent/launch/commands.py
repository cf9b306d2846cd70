"""Commands that `frd-agent exec` has started in a run directory, and ranks that lack the tap.

exec writes one small file per command, named by its pid, which is also the command's. The agent
removes the file when the command has ended. A process below a command that has loaded torch and has
no thread called `frd-tap` was not reached by the tap: its rank would not be watched, silently.
Forked children share their parent's program and have no tap unless multiprocessing made them, so
they are not counted. The agent warns of such processes (`LaunchWatch`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from frd.decodable import decodable
from frd_agent import tap, untrusted_files
from frd_agent.launch.command_line import brief
from frd_agent.proc import (
    by_parent,
    content,
    descendants,
    has_tap,
    is_of,
    own_start_ticks,
    read_all,
    read_same,
    started_at,
    status_line,
)

_FOLDER: Final = "commands"
_LIBRARY: Final = b"/libtorch_cpu.so"
_MAX_COMMANDS: Final = 1024
_MAX_BYTES: Final = 16 * 1024
_MAX_WORDS: Final = 4 * 1024 * 1024
_MAX_MAPS: Final = 16 * 1024 * 1024
GRACE_S: Final = 15.0
"""A process that has just loaded torch may be about to load the tap."""


@decodable
class Command(msgspec.Struct, frozen=True):
    start_ticks: int
    words: Annotated[str, msgspec.Meta(max_length=4096)]
    """Program and script; arguments may hold secrets."""
    pid: int = 0
    """The file's name has it."""


@dataclass(frozen=True, slots=True)
class Untapped:
    """A process that has loaded torch, but not the tap."""

    pid: int
    words: str


def record(directory: str, cmd: Sequence[str]) -> Path:
    """Record that this process is about to become `cmd`; returns the file.

    Raises:
        OSError: the run directory cannot be written to.
    """
    folder = Path(directory) / _FOLDER
    tap.make_run_dir(str(folder))
    path = folder / f"{os.getpid()}.json"
    words = brief(cmd).encode("utf-8", "replace").decode()
    write_private(path, Command(own_start_ticks(), words))
    return path


def write_private(path: Path, content: msgspec.Struct) -> None:
    """Replace `path` by `content` as JSON, through a new file: an existing one could be a pipe,
    which would block the command's start.

    Raises:
        OSError: the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.stem}.tmp")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(content))
    temporary.replace(path)


def running(directory: str) -> list[Command]:
    """Running commands; files of ended commands are removed."""
    found: list[Command] = []
    folder = Path(directory) / _FOLDER
    with contextlib.suppress(OSError), untrusted_files.home(folder) as fd:
        owner = os.fstat(fd).st_uid
        for entry in sorted(os.listdir(fd)):
            if len(found) >= _MAX_COMMANDS:
                break
            name, path = entry.removesuffix(".json"), f"/proc/self/fd/{fd}/{entry}"
            if not (entry.endswith(".json") and name.isdecimal()):
                continue
            command = untrusted_files.json_of(path, Command, _MAX_BYTES)
            if command is not None and read_same(int(name), command.start_ticks) is not None:
                if is_of(int(name), owner):
                    found.append(msgspec.structs.replace(command, pid=int(name)))
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)
    return found


# -- processes ---------------------------------------------------------------------------------


def untapped(command: Command, grace_s: float = GRACE_S) -> tuple[set[int], list[Untapped]]:
    """All processes of a running command, and the processes that have loaded torch for longer than
    `grace_s` without the tap. Processes of other users, and those that this one may not read, are
    left out."""
    stats, users = read_all(), status_line(command.pid, "Uid")
    pids = {command.pid, *descendants(command.pid, by_parent(stats))}
    found = []
    for pid in sorted(pids & stats.keys()):
        if status_line(pid, "Uid") != users:
            continue
        words, parent = _command_line(pid), stats[pid].parent
        is_forked = parent in pids and words == _command_line(parent)
        maps = b"" if not words or is_forked else content(f"{pid}/maps", _MAX_MAPS)
        if _LIBRARY not in maps or has_tap(pid):
            continue
        text = brief(words.decode("utf-8", "replace").rstrip("\0").split("\0"))
        if time.time_ns() - started_at(stats[pid]) > grace_s * 1e9:
            found.append(Untapped(pid, text))
    return pids, found


def _command_line(pid: int) -> bytes:
    return content(f"{pid}/cmdline", _MAX_WORDS)


_EVERY_S: Final = 1.0
_LOOK_S: Final = 5.0
_LOOK_LATER_S: Final = 30.0
"""Interval after a minute without a new command: a command that is no job may run for days."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LaunchWatch:
    """Warns about ranks without a tap."""

    run_dir: Path
    living: Callable[[], set[int]]
    """Returns the pids of the ranks that the agent watches."""
    grace_s: float = GRACE_S
    """A process may have torch without the tap for so long."""
    warnings: dict[Command, str] = field(default_factory=dict)
    _settled: set[Command] = field(default_factory=set)
    """Commands of which a rank has been seen."""
    _met: dict[Command, float] = field(default_factory=dict)
    """When this agent first saw each running command."""
    _look_at: float = 0.0

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # an error here must not stop the watching of ranks
                log.exception("%s: commands could not be read", self.run_dir)
            await asyncio.sleep(max(self._look_at - time.monotonic(), _EVERY_S))

    async def _look(self) -> None:
        now = time.monotonic()
        found = running(str(self.run_dir))
        self._settled &= set(found)
        self.warnings = {one: text for one, text in self.warnings.items() if one in found}
        self._met = {command: self._met.get(command, now) for command in found}
        fresh = [command for command in found if command not in self._settled]
        if fresh:
            await asyncio.to_thread(self._check, fresh, self.living())
        new = any(now - self._met[command] < 60 for command in fresh)
        self._look_at = now + (_LOOK_S if new or not fresh else _LOOK_LATER_S)

    def _check(self, fresh: list[Command], living: set[int]) -> None:
        """Off the event loop: this reads all of /proc."""
        for command in fresh:
            pids, found = untapped(command, self.grace_s)
            if pids & living:
                self._settled.add(command)
            if pids & living or not found:
                self.warnings.pop(command, None)
            elif command not in self.warnings:
                self.warnings[command] = warning(command, found)
                log.warning("%s", self.warnings[command])


def warning(command: Command, found: list[Untapped]) -> str:
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"pid {first.pid}{more} ({first.words}), started by `frd-agent exec -- {command.words}`: "
        "has loaded torch without the tap, so its rank is not watched: does the launch script "
        "replace PYTHONPATH, or start python -S? install frd in that environment, and check with "
        "`frd-agent exec --check -- CMD`"
    )
