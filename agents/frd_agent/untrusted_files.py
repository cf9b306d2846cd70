"""Reading small files that other processes have written: nothing of them is trusted.

A link leads elsewhere, a pipe would block its reader, a directory cannot be read, and a hostile
JSON document can be too large or too deep. Each of them costs an error or a None, and no
descriptor stays open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from frd_agent import tap

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TORN_READS: Final = 5
_HEAD: Final = tap.PREFIX.size + 8
NOT_THE_FORM: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not of the form."""

_Form = TypeVar("_Form")


def check_home(path: str | os.PathLike[str]) -> int:
    """Whether this agent may read what is in the run directory, or in one below it: it is this
    user's or, if this is root, any user's, and no other user could have changed what is in it.
    Returns that user.

    Raises:
        PermissionError: it is not; without an errno, the text says why.
        OSError: it does not exist.
    """
    owner = os.geteuid() or os.lstat(path).st_uid
    tap.check_home(os.fspath(path), owner)
    return owner


@contextmanager
def home(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of the directory that was checked, in which an agent may change something. The
    user who owns it could lead an agent of root elsewhere after a check by its name.

    Raises:
        OSError: as `check_home`.
    """
    owner = check_home(path)
    with opened(path, stat.S_IFDIR) as fd:
        if not os.geteuid() and os.fstat(fd).st_uid != owner:
            raise PermissionError(errno.EPERM, "replaced by a directory of another user")
        yield fd


@contextmanager
def opened(path: str | os.PathLike[str], kind: int = stat.S_IFREG) -> Iterator[int]:
    """A descriptor of a regular file, or of another `kind`.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    fd = os.open(path, _FLAGS)
    try:
        if stat.S_IFMT(os.fstat(fd).st_mode) != kind:
            raise OSError(errno.EINVAL, "not a regular file")
        yield fd
    finally:
        os.close(fd)


def try_lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock the file, if no other process has.

    Raises:
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def read_up_to(fd: int, most: int) -> bytes:
    """The first `most` bytes at the most."""
    with open(fd, "rb", closefd=False) as file:
        return file.read(most)


def json_of(path: str | os.PathLike[str], form: type[_Form], most: int) -> _Form | None:
    """None if the file is missing, unreadable, longer than `most` bytes, or of another form."""
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(form)
    try:
        with opened(path) as fd:
            found: _Form = decoder.decode(read_up_to(fd, most))
    except (OSError, *NOT_THE_FORM):
        return None
    return found


class Section(Generic[_Form]):
    """A part of a file that another process writes again and again, as a whole. It is read with
    pread and not through a mapping: if the other process truncates the file, a read is short, and
    this process does not die of SIGBUS."""

    def __init__(
        self,
        path: Path,
        at: int,
        size: int,
        parse: Callable[[bytes], _Form | None],
        still_s: float = 0.0,
    ) -> None:
        """`parse` gives None for what is not one whole writing. If nothing has changed for longer
        than `still_s`, the next reading opens the file again: it may have been replaced."""
        self._path, self._at, self._size, self._parse = path, at, size, parse
        self._fd: int | None = None
        self._head = b""
        """How the newest one begins: each has another number and time there."""
        self._latest: _Form | None = None
        self._still_s, self._moved_s = still_s, time.monotonic()

    def read(self) -> _Form | None:
        """What was written last, the same object until there is another; None if the file is
        missing, corrupt or not written yet."""
        now_s = time.monotonic()
        for _ in range(_TORN_READS):
            raw = self._read()
            if raw[:_HEAD] == self._head:
                if now_s - self._moved_s >= self._still_s:
                    self.close()
                    self._moved_s = now_s
                return self._latest
            if (found := self._parse(raw)) is not None:
                self._head, self._latest, self._moved_s = raw[:_HEAD], found, now_s
                return found
            if not any(raw[: tap.PREFIX.size]):
                break  # not torn: nothing was ever written there
        return None

    def _read(self) -> bytes:
        try:
            if self._fd is None:
                self._fd = os.open(self._path, _FLAGS)
            return os.pread(self._fd, self._size, self._at)
        except OSError:
            self.close()
            return b""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_begun(raw: bytes, magic: bytes) -> bool:
    """Whether a section of the counters file begins so, and is not being written."""
    if len(raw) < tap.PREFIX.size:
        return False
    found, sequence = tap.PREFIX.unpack_from(raw)
    return bool(found == magic and sequence > 0 and sequence % 2 == 0)
