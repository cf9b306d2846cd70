"""Dump files that torch writes by itself, when a collective times out.

They are the last dump of a rank that is about to be killed, and the only dumps of ranks without a
tap. A file contains neither the rank nor the job: the rank is the number at the end of its
name, the membership is the recorder's own. torch writes in place and overwrites, so a file is read
once it has stopped changing. Nothing of a file is trusted: another process decodes it, and
a hostile or damaged one is refused, counted and left where it is.

The time of writing may be of a file server, whose clock is another one. The times of entries are of
the rank's node: they decide which process a dump is of, and which of two dumps is the later one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from frd.errors import DumpError
from frd.flight.entry import Dump
from frd.model import MAX_WORLD_SIZE, NodeNs
from frd.readers.pool import ReaderDied, ReaderProcess, read_dump
from frd_agent.untrusted_files import check_home

_NAMED: Final = re.compile(r"[^.].*?(?<!\d)(?P<rank>\d+)")
_MAX_FILES: Final = 4_096
_MAX_BYTES: Final = 64 * 1024 * 1024
"""As of a rank's answer: a ring of 100,000 entries."""
_READER_BYTES: Final = 320 * 1024 * 1024
"""Memory of the process that reads: with the agent, less than a container of 512 MiB has."""

_Stamp: TypeAlias = tuple[int, int, int]
"""Inode, modification time, size."""


@dataclass(frozen=True, slots=True)
class DumpFile:
    path: Path
    rank: int
    written_at_ns: NodeNs
    """By the clock of the file server."""
    last_op_ns: NodeNs
    """See `last_op_ns`."""
    dump: Dump


def last_op_ns(dump: Dump) -> NodeNs:
    """When the rank created its last entry, by the wall clock of its node; 0 without entries."""
    return NodeNs(max((entry.time_created_ns for entry in dump.entries), default=0))


class DumpFiles:
    """The dump files of some folders, which need not exist. `run_dir` has one of them, which must
    be safe as it is."""

    def __init__(self, folders: Sequence[Path], run_dir: Path | None = None) -> None:
        self._folders = [*([run_dir / "dumps"] if run_dir else []), *folders]
        self._run_dir = run_dir
        self._seen: dict[Path, _Stamp] = {}
        self._read: dict[Path, _Stamp] = {}
        self._reader: ReaderProcess | None = None

    def changed(self) -> list[Path]:
        """Files that have changed since they were read, but not since the last call."""
        seen = dict(self._list())
        settled = [
            path
            for path, stamp in seen.items()
            if self._seen.get(path) == stamp and self._read.get(path) != stamp
        ]
        self._seen = seen
        self._read = {path: stamp for path, stamp in self._read.items() if path in seen}
        return settled

    def read(self, path: Path) -> DumpFile:
        """May take long: do not call it on the event loop.

        Raises:
            DumpError: it is no dump, or a malicious one. It is not read again before it changes.
        """
        stamp = self._read[path] = self._seen[path]
        named = _NAMED.fullmatch(path.name)
        # The length first: int() itself refuses very long numbers.
        if named is None or len(named["rank"]) > 7 or int(named["rank"]) >= MAX_WORLD_SIZE:
            raise DumpError(f"{path}: no rank at the end of its name: name it rank_<number>")
        if self._reader is None:
            self._reader = ReaderProcess(_READER_BYTES)
        try:
            self._reader.ask(read_dump, path, _MAX_BYTES)
            head = self._reader.answer()
            entries = tuple(chain.from_iterable(iter(self._reader.answer, None)))
        except ReaderDied as error:
            self.rest()
            raise DumpError(f"{path}: {error}") from None
        if isinstance(head, str):
            raise DumpError(head)
        dump = replace(head, entries=entries)
        return DumpFile(path, int(named["rank"]), NodeNs(stamp[1]), last_op_ns(dump), dump)

    def rest(self) -> None:
        """End the process that reads, if there is one; the next file starts another."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _list(self) -> list[tuple[Path, _Stamp]]:
        found: list[tuple[Path, _Stamp]] = []
        for folder in self._folders:
            try:
                if folder.parent == self._run_dir:
                    check_home(folder)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if len(found) >= _MAX_FILES:
                            break
                        if _NAMED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            stat = entry.stat(follow_symlinks=False)
                            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                            found.append((folder / entry.name, stamp))
            except OSError:
                continue  # not there, or not there any more
        return found
