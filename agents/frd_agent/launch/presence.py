"""Does an agent watch this run directory? A lock says so, and it vanishes with the agent.

The agent holds an exclusive flock on `agent.lock` in the run directory as long as it lives; the
file's text says who it is. Whoever asks tries for a shared lock without waiting: if it gets it,
no agent is there. A network file system without locks gives no answer; no answer is no warning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from frd_agent import tap

_NAME: Final = "agent.lock"
_MAX_BYTES: Final = 65_536


class Watched(Enum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Watcher:
    watched: Watched
    said: Mapping[str, Any]
    """Of the agent, if there is one: ``pid``, ``node``, ``version``, ``service``, and whether it is
    ``connected`` to that."""


class Presence:
    """The agent's side."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._text = b""
        self._fd: int | None = None

    def take(self, said: Mapping[str, Any]) -> str:
        """Hold the lock, now or at a later call, and write what is said; empty, or why not yet.

        Makes the run directory, so that commands which are started before any rank find the lock.
        """
        text = json.dumps(dict(said)).encode()
        if self._fd is not None and self._is_in_place(self._fd):
            return self._write(self._fd, text) if text != self._text else ""
        self.close()
        path = os.path.join(self._directory, _NAME)
        try:
            tap.make_run_dir(self._directory, os.environ)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(path, flags, 0o644)
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EWOULDBLOCK:
                return f"{self._directory}: another agent watches it too"
            return f"{path}: {error.strerror}"
        self._fd = fd
        return self._write(fd, text)

    def _write(self, fd: int, text: bytes) -> str:
        """In one piece, padded: whoever reads meanwhile sees the old text or the new one."""
        try:
            os.pwrite(fd, text.ljust(len(self._text)), 0)
        except OSError as error:
            return f"{self._directory}/{_NAME}: {error.strerror}"
        self._text = text
        os.ftruncate(fd, len(text))
        return ""

    def _is_in_place(self, fd: int) -> bool:
        """False if somebody has removed the file, or the directory."""
        with contextlib.suppress(OSError):
            found = os.stat(os.path.join(self._directory, _NAME), follow_symlinks=False)
            return found.st_ino == os.fstat(fd).st_ino
        return False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def look(directory: str) -> Watcher:
    """Ask without waiting."""
    path = os.path.join(directory, _NAME)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Watcher(Watched.NO, {})
    except OSError:
        return Watcher(Watched.UNKNOWN, {})
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            return Watcher(Watched.YES, _said(fd))
        return Watcher(Watched.UNKNOWN, {})
    finally:
        os.close(fd)
    return Watcher(Watched.NO, {})


def _said(fd: int) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(os.pread(fd, _MAX_BYTES, 0))
        if isinstance(said, dict):
            return said
    return {}


def elsewhere(directory: str) -> str | None:
    """Another run directory of this user that an agent watches: sessions of `su` and cron have no
    XDG_RUNTIME_DIR, so what they start looks in another place than the agent of the login session.
    """
    uid = os.getuid()
    places = (f"/run/user/{uid}/frd", tap.default_run_dir({}), tap.default_run_dir(os.environ))
    for place in dict.fromkeys(places):
        if place != directory and look(place).watched is Watched.YES:
            return place
    return None
