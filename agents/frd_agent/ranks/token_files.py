"""Files of the run directory that are named after the token of a process.

Training processes wrote everything in the run directory, so nothing in it is trusted: a file that
is foreign, torn or absurd becomes a `TokenFile` with a `problem`, never an exception, and names in
files never lead out of the directory.

Ranks of another user publish what this agent may not read, or may not publish at all: they must not
look as if there were none (`unreadable`). A tap that may not write in the directory leaves
``refused.UID`` in its parent (`frd_agent.tap`). What a rank left when it ended counts no more: a
clean end removes its socket, and after any other end its counters are no longer written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar

import msgspec

from frd.decodable import is_heavy
from frd.wire.messages import MAX_UNREADABLE, Unreadable
from frd_agent import tap, untrusted_files
from frd_agent.counters import Counters
from frd_agent.inspection.reading.files import printable

STILL_S: Final = 600.0
"""A process that is not seen is taken to live this long after it has written last: while its GIL is
held, it does not write, and must not be overlooked."""
_MAX_ENTRIES: Final = 10_000
_MAX_BYTES: Final = 4096
_LOG_EVERY_S: Final = 60.0

log = logging.getLogger(__name__)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What a tap writes as JSON. Keys that a later tap adds are ignored."""

    schema: Literal[1]
    token: str


_Form = TypeVar("_Form", bound=Published)


@dataclass(frozen=True)
class TokenFile(Generic[_Form]):
    """One file: either its `content`, or a `problem` as text for users."""

    SUFFIX: ClassVar[str]
    MAX_BYTES: ClassVar[int]
    DECODER: ClassVar[msgspec.json.Decoder[Any]]

    path: Path
    stamp: tuple[int, int, int]
    """Changes with every replacement of the file."""
    content: _Form | None
    problem: str = ""
    owner: int | None = None
    """Uid; None if it is not known."""
    is_forbidden: bool = False
    """The problem is that we may not read it."""

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
        known = {file.path.name: file for file in previous}
        try:
            untrusted_files.check_home(run_dir)
            names = sorted(name for name in os.listdir(run_dir) if name.endswith(cls.SUFFIX))
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno is None:  # others could have changed what is in it
                owner, mine = _owner(run_dir, error)[0], os.geteuid()
                owner = None if mine in (0, owner) else owner
                return [cls(run_dir, (0, 0, 0), None, str(error), owner, is_forbidden=True)]
            why = f"{run_dir}: {error.strerror}: name a directory that can be read with --run-dir"
            return [cls(run_dir, (0, 0, 0), None, why, *_owner(run_dir, error))]
        paths = (known[name].path if name in known else run_dir / name for name in names)
        found = (cls.look(path, known.get(path.name), node) for path in paths)
        return [file for file in found if file is not None]

    @classmethod
    def look(cls, path: Path, previous: Self | None, node: str = "") -> Self | None:
        """One file: `previous` if it is unchanged, None if it does not exist."""
        stamp = (0, 0, 0)
        try:
            # Most files are unchanged at most looks: these are not opened.
            if previous is not None and previous.stamp == _stamp(os.lstat(path)):
                return previous
            token = path.name.removesuffix(cls.SUFFIX)
            if re.fullmatch(r"[0-9a-f]{12}", token) is None:
                raise ValueError("not a tap's file")
            with untrusted_files.opened(path) as fd:
                found = os.fstat(fd)
                stamp = _stamp(found)
                if found.st_size > cls.MAX_BYTES:
                    raise ValueError("too large")
                raw = untrusted_files.read_up_to(fd, cls.MAX_BYTES)
            if is_heavy(raw):
                raise ValueError("too many values")
            with contextlib.suppress(FileNotFoundError):
                if path.with_suffix(".json").lstat().st_uid != found.st_uid:
                    raise ValueError("of another user than the rank's identity")
            content = cls.DECODER.decode(raw)
            if content.token != token:
                raise ValueError(f"token: {content.token!r}: not the file's own")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, *untrusted_files.NOT_THE_FORM) as error:
            why = getattr(error, "strerror", None) or error
            return cls(path, stamp, None, f"{path}: {why}: ignored", *_owner(path, error))
        return cls(path, stamp, cls.on(content, node) if node else content, "", found.st_uid)


class Refused:
    """The unusable files of one kind: each content is counted, one in `_LOG_EVERY_S` is logged."""

    def __init__(self, kind: str, stats: Counters) -> None:
        self._kind, self._stats = kind, stats
        self._known: dict[Path, tuple[int, int, int]] = {}
        self._logged_at_s = -_LOG_EVERY_S

    def update(self, files: Collection[TokenFile[Any]]) -> None:
        """`files`: all of this kind that there are now."""
        known = self._known
        self._known = {file.path: file.stamp for file in files if file.problem}
        for file in files:
            if file.problem and known.get(file.path) != file.stamp:
                self._stats.refused_files[self._kind] += 1
                is_due = time.monotonic() - self._logged_at_s >= _LOG_EVERY_S
                if is_due and file.path not in known and not file.is_forbidden:
                    self._logged_at_s = time.monotonic()
                    log.warning("%s", file.problem)


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _owner(path: Path, error: Exception) -> tuple[int | None, bool]:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid, isinstance(error, PermissionError)
    return None, False


def unreadable(run_dir: Path, files: Iterable[TokenFile[Any]]) -> Unreadable:
    """One text for each user. `files` are those of the run directory."""
    forbidden = [file for file in files if file.is_forbidden and _is_of_living(file)]
    owners = {file.owner for file in forbidden if file.owner is not None}
    texts = {
        owner: f"{run_dir}: the agent of uid {os.geteuid()} may not read what ranks of uid {owner} "
        f"publish: {_advice(owner)}"
        for owner in owners
    }
    texts.update((-1, file.problem) for file in forbidden if file.owner is None)
    for uid, job in _refused(run_dir):
        texts[uid] = (
            f"{run_dir}: ranks of uid {uid}{job} may not write there, so the agent of uid "
            f"{os.geteuid()} knows nothing of them: {_advice(uid)}"
        )
    return Unreadable(tuple(texts[uid] for uid in sorted(texts))[:MAX_UNREADABLE])


def _advice(uid: int) -> str:
    if os.geteuid() == uid:
        return "the system forbids it: do both have the same SELinux label?"
    if os.geteuid() == 0:
        return f"{tap.same_user(uid)}, or give it CAP_DAC_OVERRIDE"
    return tap.same_user(uid)


def _is_of_living(file: TokenFile[Any]) -> bool:
    if file.path.suffix != file.SUFFIX:
        return True  # the directory itself
    with contextlib.suppress(OSError):
        if file.SUFFIX == ".json":
            file.path.with_suffix(".sock").lstat()
        written = file.path.with_suffix(".shm" if file.SUFFIX == ".json" else file.SUFFIX)
        return abs(time.time() - written.lstat().st_mtime) < STILL_S
    return False


def _refused(run_dir: Path) -> Iterator[tuple[int, str]]:
    """Users whose ranks may not write in the run directory, and the job of one of them as text."""
    if str(run_dir) == tap.default_run_dir(os.environ):
        return  # its parent has the files of all users
    with contextlib.suppress(OSError), os.scandir(run_dir.parent) as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            match = re.fullmatch(r"refused\.(\d{1,10})", entry.name)
            if match is None:
                continue
            uid = int(match[1])
            with (
                contextlib.suppress(OSError, UnicodeDecodeError),
                untrusted_files.opened(entry.path) as fd,
            ):
                found = os.fstat(fd)
                text = untrusted_files.read_up_to(fd, _MAX_BYTES).decode()
                name, _, job = text.partition("\n")
                is_fresh = abs(time.time() - found.st_mtime) < STILL_S
                if found.st_uid == uid and is_fresh and name == run_dir.name:
                    yield uid, f" (job {printable(job)})" if job else ""
