"""Files of the run directory that are named after the token of a process.

Training processes wrote everything in the run directory, so nothing in it is trusted: a file that
is foreign, torn or absurd becomes a `TokenFile` with a `problem`, never an exception, and names in
files never lead out of the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from frd_agent import untrusted_files


class _HasToken(Protocol):
    @property
    def token(self) -> str: ...


_Form = TypeVar("_Form", bound=_HasToken)


@dataclass(frozen=True)
class TokenFile(Generic[_Form]):
    """One file: either its `content`, or a `problem` as text for users."""

    SUFFIX: ClassVar[str]
    MAX_BYTES: ClassVar[int]
    MAX_FILES: ClassVar[int | None] = None
    """How many of a directory are read."""
    DECODER: ClassVar[msgspec.json.Decoder[Any]]

    path: Path
    stamp: tuple[int, int, int]
    """Changes with every replacement of the file."""
    content: _Form | None
    problem: str = ""
    owner: int | None = None
    """Whose it is, if the problem is that we may not read it."""

    @staticmethod
    def on(content: _Form, node: str) -> _Form:
        """With that name of the node."""
        raise NotImplementedError

    @classmethod
    def scan(cls, run_dir: Path, previous: Iterable[Self] = (), node: str = "") -> list[Self]:
        """All such files, sorted by name. Unchanged files of `previous` are not read again.

        `node`: name of the node; empty: the name in each file.
        A directory that does not exist has no files; one that cannot be read is a problem.
        """
        known = {file.path: file for file in previous}
        try:
            with os.scandir(run_dir) as entries:
                names = sorted(entry.name for entry in entries if entry.name.endswith(cls.SUFFIX))
        except FileNotFoundError:
            return []
        except OSError as error:
            why = f"{run_dir}: {error.strerror}: name a directory that can be read with --run-dir"
            return [cls(run_dir, (0, 0, 0), None, why, _owner(run_dir, error))]
        found = (cls._look(run_dir / name, known, node) for name in islice(names, cls.MAX_FILES))
        return [file for file in found if file is not None]

    @classmethod
    def look(cls, path: Path, previous: Self | None) -> Self | None:
        """One file: `previous` if it is unchanged, None if it does not exist."""
        return cls._look(path, {} if previous is None else {path: previous}, "")

    @classmethod
    def _look(cls, path: Path, known: dict[Path, Self], node: str) -> Self | None:
        """None if the file no longer exists."""
        stamp = (0, 0, 0)
        try:
            token = path.name.removesuffix(cls.SUFFIX)
            if re.fullmatch(r"[0-9a-f]{12}", token) is None:
                raise ValueError("not a tap's file")
            with untrusted_files.opened(path) as fd:
                found = os.fstat(fd)
                stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
                if (same := known.get(path)) is not None and same.stamp == stamp:
                    return same
                if found.st_size > cls.MAX_BYTES:
                    raise ValueError("too large")
                raw = untrusted_files.read_up_to(fd, cls.MAX_BYTES)
            content = cls.DECODER.decode(raw)
            if content.token != token:
                raise ValueError(f"token: {content.token!r}: not the file's own")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, *untrusted_files.NOT_THE_FORM) as error:
            why = getattr(error, "strerror", None) or error
            return cls(path, stamp, None, f"{path}: {why}: ignored", _owner(path, error))
        return cls(path, stamp, cls.on(content, node) if node else content)


def _owner(path: Path, error: Exception) -> int | None:
    if isinstance(error, PermissionError):
        with contextlib.suppress(OSError):
            return path.lstat().st_uid
    return None
