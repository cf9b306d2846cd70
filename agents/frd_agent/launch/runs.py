"""Numbers the runs of a job on this node, so that a rerun is a new attempt.

Only for commands that start a whole job (`command_line.is_whole_job`): ranks on other nodes could
not know the number. The count lives in the run directory and starts again when that is emptied, as
at a reboot; the service then sees the same attempt start over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec

from frd.decodable import decodable
from frd_agent import tap, untrusted_files
from frd_agent.launch.commands import write_private
from frd_agent.proc import Vital, own_start_ticks, read_same

_FOLDER: Final = "runs"
_MAX_JOBS: Final = 99
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.01
_KEPT_S: Final = 30 * 86_400.0
_MAX_BYTES: Final = 4096


@decodable
class _Run(msgspec.Struct):
    """The last run of a job, as its file holds it; the process is the command's."""

    pid: int
    start_ticks: int
    number: Annotated[int, msgspec.Meta(ge=0, lt=2**31 - 1)]


def begin(directory: str, job: str, *, must_be_free: bool) -> tuple[str, int]:
    """Count a run of `job`, which this process is about to become; returns its name and number.

    While another run of that name is alive: with `must_be_free` the first free name of ``job-2``,
    ``job-3``, ..; otherwise the same name and number, a conflict that the service reports.

    Raises:
        OSError: the run directory cannot be used.
    """
    folder = Path(directory) / _FOLDER
    tap.make_run_dir(str(folder))
    with _locked(folder / ".lock"):
        _tidy(folder)
        for number in range(1, _MAX_JOBS + 1):
            name = job if number == 1 else f"{job}-{number}"
            path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
            last, is_alive = _last(path)
            if not is_alive:
                write_private(path, _Run(os.getpid(), own_start_ticks(), last + 1))
                return name, last + 1
            if not must_be_free:
                return name, last
    return job, 0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock, or go on without it after a short wait: the command must start."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(_TRIES):
            if untrusted_files.try_lock(fd):
                break
            time.sleep(_TRY_EVERY_S)
        yield
    finally:
        os.close(fd)


def _last(path: Path) -> tuple[int, bool]:
    """The number of the last run, -1 for none, and whether it is alive."""
    last = untrusted_files.json_of(path, _Run, _MAX_BYTES)
    if last is None:
        return -1, False
    stat = read_same(last.pid, last.start_ticks)
    return last.number, stat is not None and stat.vital is not Vital.GONE


def _tidy(folder: Path) -> None:
    """Forget jobs that have not run for a month."""
    oldest = time.time() - _KEPT_S
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest and not _last(path)[1]:
                path.unlink()
