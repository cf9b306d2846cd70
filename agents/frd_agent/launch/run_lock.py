"""The lock on a run directory: one agent watches it, and other processes can see which.

The agent holds `agent.lock` in the run directory with flock for as long as it lives. The kernel
drops the lock when the process ends, however it ends, so the lock proves that the agent is alive;
the file itself and its content (JSON: pid, node, service, started_at, version) may be left over
from an agent that has ended. `frd-agent exec` reads it with `holder`.

The agent makes the default run directory, which belongs to its user. Any other directory belongs to
the ranks, which may run as another user: the agent waits until it exists, and takes the lock then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from frd.decodable import decodable
from frd.errors import FrdError
from frd_agent import tap
from frd_agent.untrusted_files import NOT_THE_FORM, home, opened, try_lock

NAME: Final = "agent.lock"
PATIENCE_S: Final = 6.0
"""How long the lock may be busy: an agent that is being replaced may still be sending its last
rows, and `holder` takes the lock for a moment."""
_MAX_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


@decodable
@dataclass(frozen=True, slots=True)
class Holder:
    """The agent that watches a run directory, from its lock file; unknown fields are empty."""

    pid: int = 0
    """In the agent's own pid namespace."""
    node: str = ""
    service: str = ""
    """Address of the service that it reports to."""
    started_at: float = 0.0
    """Unix time."""
    version: str = ""

    def __str__(self) -> str:
        agent = f"agent pid {self.pid}" if self.pid else "another agent"
        node = f" on {self.node}" if self.node else ""
        return f"{agent}{node}" + (f" (service {self.service})" if self.service else "")


class RunDirBusy(FrdError):
    """Another agent watches the run directory."""


class RunLock:
    """`keep` takes the lock and notices when its file has been removed; `close` releases it."""

    def __init__(self, run_dir: Path, me: Holder) -> None:
        self._run_dir = run_dir
        self._path = run_dir / NAME
        self._me = me
        self._fd: int | None = None
        self._busy_since: float | None = None
        self._warned = False

    @property
    def is_busy(self) -> bool:
        """Another process held the lock when `keep` tried last."""
        return self._busy_since is not None

    def keep(self, now_s: float) -> bool:
        """Take or keep the lock; returns whether it is held. Call it at every turn.

        False if the directory does not exist, or is not writable, which is logged once.

        Raises:
            RunDirBusy: another agent has held the lock for `PATIENCE_S`.
        """
        if self._fd is not None and self._is_current(self._fd):
            return True
        self.close()
        try:
            self._fd = self._take()
        except RunDirBusy:
            if self._busy_since is None:
                self._busy_since = now_s
            if now_s - self._busy_since >= PATIENCE_S:
                raise
            return False
        except FileNotFoundError:
            return False
        except OSError as error:
            if not self._warned:
                log.warning(
                    "run_dir: %s: %s: no lock taken: `frd-agent exec` cannot see this agent there",
                    self._path,
                    error.strerror or error,
                )
            self._warned = True
            return False
        self._busy_since = None
        return True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _take(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with home(self._run_dir) as folder:
            fd = os.open(NAME, flags, 0o644, dir_fd=folder)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise OSError(errno.EINVAL, "not a regular file with one name")
            if not try_lock(fd):
                raise RunDirBusy(
                    f"run_dir: {self._run_dir}: {_read(fd)} watches it already: "
                    "stop that agent (a second SIGTERM if it stays for its ranks), "
                    "or give this one its own --run-dir"
                )
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(self._me), 0)
            with contextlib.suppress(OSError):
                # Ranks of another user may read it if the directory is guarded. In a directory of
                # all users, each of them could hold the lock of a file that it may read.
                is_shared = self._run_dir.stat().st_mode & 0o002
                os.fchmod(fd, 0o600 if is_shared else 0o644)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _is_current(self, fd: int) -> bool:
        """Whether the path still refers to this file: the directory may have been cleaned up."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._path))
        except OSError:
            return False


def make_default(run_dir: Path, environ: Mapping[str, str]) -> None:
    """Make the run directory if it is the user's default one and the place for it is the user's.

    Not in the runtime folder of another user, as after `sudo -E`: that user's ranks could not use
    it. A failure is no error: the agent uses the directory when it appears.
    """
    if str(run_dir) != tap.default_run_dir(environ):
        return
    with contextlib.suppress(OSError):
        parent = run_dir.parent.stat()
        if parent.st_uid == os.geteuid() or parent.st_mode & stat.S_ISVTX:
            tap.make_run_dir(str(run_dir))


def holder(run_dir: Path) -> Holder | None:
    """The live agent that watches `run_dir`; None if there is none.

    Raises:
        OSError: the lock exists and cannot be read.
    """
    with contextlib.suppress(FileNotFoundError), opened(run_dir / NAME) as fd:
        if not try_lock(fd, fcntl.LOCK_SH):
            return _read(fd)
    return None


def _read(fd: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(fd, _MAX_BYTES, 0), type=Holder)
    except (OSError, *NOT_THE_FORM):
        return Holder()
