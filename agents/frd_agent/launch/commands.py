"""Commands that `frd-agent exec` has started in a run directory, and torch that runs without a tap.

exec writes one small file per command, named by its pid, which is also the command's. The agent
removes the file when the command has ended. A process below a command that has loaded torch and has
no thread called `frd-tap` is one that the tap did not reach: its rank would not be watched,
silently. Forked children share their parent's program and have no tap unless multiprocessing made
them, so they are not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from frd_agent import tap, untrusted_files
from frd_agent.launch.command_line import brief
from frd_agent.proc import PROC, by_parent, descendants, read_all, read_stat, started_at

_FOLDER: Final = "commands"
_LIBRARY: Final = b"/libtorch_cpu.so"
_MAX_COMMANDS: Final = 1024
_MAX_WORDS: Final = 4096
GRACE_S: Final = 15.0
"""A process that has just loaded torch may be about to load the tap."""


@dataclass(frozen=True, slots=True)
class Command:
    pid: int
    start_ticks: int
    words: str
    """Program and script; arguments may hold secrets."""


class _Written(msgspec.Struct):
    """The content of a command's file."""

    start_ticks: int
    words: str


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
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = read_stat(os.getpid())
    path = folder / f"{os.getpid()}.json"
    text = json.dumps({"start_ticks": stat.start_ticks if stat else 0, "words": brief(cmd)})
    write_private(path, text)
    return path


def write_private(path: Path, text: str) -> None:
    """Replace `path`, through a new file: an existing one could be a pipe, which would block the
    command's start.

    Raises:
        OSError: the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.stem}.tmp")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    temporary.replace(path)


def running(directory: str) -> list[Command]:
    """Running commands; files of ended commands are removed."""
    found: list[Command] = []
    with contextlib.suppress(OSError), os.scandir(os.path.join(directory, _FOLDER)) as entries:
        for entry in entries:
            if len(found) >= _MAX_COMMANDS:
                break
            name = entry.name.removesuffix(".json")
            if not (entry.name.endswith(".json") and name.isdecimal()):
                continue
            command = _read(Path(entry.path), int(name))
            stat = read_stat(command.pid) if command is not None else None
            if command is not None and stat and stat.start_ticks == command.start_ticks:
                found.append(command)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
    return found


def _read(path: Path, pid: int) -> Command | None:
    written = untrusted_files.json_of(path, _Written, 4 * _MAX_WORDS)
    return (
        None if written is None else Command(pid, written.start_ticks, written.words[:_MAX_WORDS])
    )


# -- processes ---------------------------------------------------------------------------------


def untapped(command: Command, grace_s: float = GRACE_S) -> tuple[set[int], list[Untapped]]:
    """All processes of a running command, and the processes that have loaded torch for longer than
    `grace_s` without the tap. Processes that this user may not read are left out."""
    stats = read_all()
    pids = {command.pid, *descendants(command.pid, by_parent(stats))}
    found = []
    for pid in sorted(pids & stats.keys()):
        words, parent = _text(pid, "cmdline"), stats[pid].parent
        is_forked = parent in pids and words == _text(parent, "cmdline")
        if not words or is_forked or _LIBRARY not in _text(pid, "maps") or _has_tap(pid):
            continue
        shown = brief(words.decode("utf-8", "replace").rstrip("\0").split("\0"))
        if time.time_ns() - started_at(stats[pid]) > grace_s * 1e9:
            found.append(Untapped(pid, shown))
    return pids, found


def _has_tap(pid: int) -> bool:
    with contextlib.suppress(OSError):
        threads = os.listdir(PROC / str(pid) / "task")
        return any(_text(pid, f"task/{tid}/comm").strip() == tap.THREAD_NAME for tid in threads)
    return True  # the process has ended


def _text(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / name).read_bytes()
    return b""
