"""Reading small files that other processes have written: nothing of them is trusted.

A link leads elsewhere, a pipe would block its reader, a directory cannot be read, and a hostile
JSON document can be too large or too deep. Each of them costs an error or a None, and no
descriptor stays open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from frd_agent import tap

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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


class KeptOpen:
    """A file that is read again and again, with pread and not through a mapping: if another
    process truncates it, a read is short, and this process does not die of SIGBUS."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self, size: int, at: int = 0) -> bytes:
        """Empty if the file cannot be read; the next call opens it again."""
        try:
            if self._fd is None:
                self._fd = os.open(self._path, _FLAGS)
            return os.pread(self._fd, size, at)
        except OSError:
            self.close()
            return b""

    def close(self) -> None:
        """The next `read` opens the file again: it may have been replaced."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
