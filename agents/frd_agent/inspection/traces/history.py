"""What the records of a rank's traces say: the last call that ended, its file, the last step. Pure.

Records are in the order in which calls ended. Names of files are hashed; a hash is resolved by the
files that the process has open, because the hash is of the real path, and else by the trace's own
definition, which may have been written long before what is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from frd.dftracer.line import (
    ITEMS,
    TRACER,
    Event,
    Kind,
    Metadata,
    Phase,
    Record,
    file_hash,
    inline_text,
    kind_of,
)

_MAX_NAMES: Final = 1024
_MAX_PATH: Final = 4096
_MAX_PROCESSES: Final = 64
_FILE: Final = "FH"
_UNITS_NS: Final = (1, 1_000, 1_000_000, 1_000_000_000)
_PAST_NS: Final = 30 * 86_400 * 1_000_000_000
_FUTURE_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class LastCall:
    """The last call of a process that ended."""

    name: str
    cat: str
    file: str
    """Its key; empty if it is of no file."""
    end: int | None
    """Since the epoch, on the node's wall clock, in the unit of the trace."""
    nbytes: int | None = None
    """That it read or wrote, if that is known."""
    begun: str = ""
    """The file of a call that has begun since: the key is defined just before the first call."""

    @property
    def kind(self) -> Kind:
        return kind_of(self.cat, self.name)


class Names:
    """Paths by their hash, of all traces of a rank: a forked child uses its parent's hashes."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def define(self, key: str, path: str) -> None:
        self._paths.pop(key, None)
        self._paths[key] = path[:_MAX_PATH]
        if len(self._paths) > _MAX_NAMES:
            del self._paths[next(iter(self._paths))]

    def path(self, key: str, opened: Iterable[str]) -> str:
        """Empty if it is not known. `opened`: paths that the process has open."""
        if (text := inline_text(key)) is not None:
            return text
        by_hash = (path for path in opened if file_hash(path) == key)
        return next(by_hash, "") or self._paths.get(key, "")


class History:
    """Of one trace."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.last: dict[int, LastCall] = {}
        """By the process id that the trace has; the latest one last."""
        self.step: tuple[int | None, int | None] = (None, None)
        """Epoch and step of the last call that has a number."""

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Metadata):
                self._define(record)
            elif record.phase is Phase.COMPLETE and record.dur is not None:
                self._ended(record, record.dur)

    def _define(self, record: Metadata) -> None:
        if record.kind != _FILE:
            return
        self._names.define(record.key, record.value)
        if (last := self.last.get(record.pid)) is not None:
            self._keep(record.pid, replace(last, begun=record.key))

    def _ended(self, event: Event, dur: int) -> None:
        if event.cat == TRACER:
            return
        end = None if event.stepped else event.ts + dur
        nbytes = _nbytes(event)
        self._keep(event.pid, LastCall(event.name, event.cat, event.file, end, nbytes))
        epoch, step = (_number(event.args.get(key)) for key in ("epoch", "step"))
        if epoch is not None or step is not None:
            self.step = (epoch, step)

    def _keep(self, pid: int, last: LastCall) -> None:
        self.last.pop(pid, None)
        self.last[pid] = last
        if len(self.last) > _MAX_PROCESSES:
            del self.last[next(iter(self.last))]


def _nbytes(event: Event) -> int | None:
    if kind_of(event.cat, event.name) not in (Kind.READ, Kind.WRITE):
        return None
    returned = _number(event.args.get("ret"))
    size = _number(event.args.get("size")) if event.name in ITEMS else 1
    return None if returned is None or returned < 0 or size is None else returned * size


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:  # as v0 writes it
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def end_ns(last: LastCall, now_ns: int) -> int | None:
    """When the call ended, on the node's wall clock, which shows `now_ns`; None if that is not
    known. The unit is the only one with which it ended in the last month."""
    if last.end is None:
        return None
    for unit in _UNITS_NS:
        at_ns = last.end * unit
        if now_ns - _PAST_NS <= at_ns <= now_ns + _FUTURE_NS:
            return at_ns
    return None
