"""A folder of dumps as columns: the offline counterpart of the wire's batches.

A dump of 2,000 entries as Python objects costs milliseconds and megabytes; as numpy columns over
shared dictionaries it costs a fraction. A `RankTrace` holds the rows of one rank in recording
order; groups, names, signatures and stacks are indexes into the dictionaries of its `Trace`.
Nothing is matched or judged here, and no column is invented: a value missing in a format is the
value that its field's note names.

`FileColumns` are one dump over `Dictionaries` that many dumps share: the values that repeat
(groups, names, signatures, stacks, threads) repeat in every dump of a job, and are kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from frd.flight.entry import SHAPES, Dump, Entry, Frame, Hole, Name, Status, parse_profiling_name
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Bools,
    Float64s,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    Signature,
    UInt8s,
)

STATES = ("scheduled", "started", "completed")
SCHEDULED, STARTED, COMPLETED = range(3)
"""Values of the `state` column, indexes into `STATES`."""
# Rows of the blocks of a `FileColumns`, by the names of `RankTrace`.
WIDE = {
    "record_id": "record_id",
    "pg_id": "pg_id",
    "seq": "collective_seq_id",
    "p2p_seq": "p2p_seq_id",
    "op_id": "op_id",
    "created_ns": "time_created_ns",
    "started_ns": "time_discovered_started_ns",
    "completed_ns": "time_discovered_completed_ns",
    "timeout_ms": "timeout_ms",
}
"""Each with its key in a dump."""
NARROW = ("group", "name", "signature", "stack", "thread")
TINY = ("is_p2p", "state", "retired", "damaged")

STATE_OF = {word: number for number, word in enumerate(STATES)}

_wide_fields = attrgetter(*WIDE.values())
_words = attrgetter(
    "process_group", "profiling_name", *SHAPES, "frames", "thread_name", "thread_id"
)

T = TypeVar("T")


class Values(Generic[T]):
    """Distinct values in order of first appearance; values with an equal `key` are the same."""

    __slots__ = ("_index", "_key", "items")

    def __init__(self, key: Callable[[T], Hashable] = lambda value: value) -> None:
        self.items: list[T] = []
        self._index: dict[Hashable, int] = {}
        self._key = key

    def index(self, value: T) -> int:
        found = self._index.setdefault(self._key(value), len(self.items))
        if found == len(self.items):
            self.items.append(value)
        return found


@dataclass(frozen=True, slots=True)
class Dictionaries:
    """The tables of the index columns; the fields have the order of `NARROW`."""

    groups: Values[GroupInfo] = field(default_factory=lambda: Values(attrgetter("name", "ranks")))
    names: Values[Name] = field(default_factory=Values)
    signatures: Values[Signature] = field(default_factory=Values)
    stacks: Values[tuple[Frame, ...]] = field(default_factory=Values)
    threads: Values[str] = field(default_factory=Values)

    @property
    def tables(self) -> tuple[Values[Any], ...]:
        return (self.groups, self.names, self.signatures, self.stacks, self.threads)

    def thread(self, name: str, thread_id: str) -> int:
        """-1 when the dump has neither."""
        if not thread_id:
            return self.threads.index(name) if name else -1
        return self.threads.index(f"{name} ({thread_id})" if name else thread_id)

    def stack(self, frames: tuple[Frame, ...]) -> int:
        return self.stacks.index(frames) if frames else -1

    def signature(self, name: Name, entry: Entry) -> int:
        shapes = {shape: getattr(entry, shape) for shape in SHAPES}
        return self.signatures.index(Signature(backend=name.backend, op=name.op, **shapes))


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The rows of one dump in recording order, in blocks: (column, row), C-contiguous.

    A few large arrays instead of many small ones, because processes exchange them.
    """

    version: str
    wide: Int64s
    """Rows named by `WIDE`."""
    narrow: Int32s
    """Rows named by `NARROW`, indexes into the dictionaries; -1 for no stack and no thread."""
    tiny: UInt8s
    """Rows named by `TINY`."""
    duration_ms: Float64s
    status: Mapping[int, Status]
    groups: tuple[int, ...]
    """Groups that `pg_config` describes: the rank belongs to them whether it used them or not."""
    holes: tuple[Hole, ...]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.duration_ms)

    def rows(self, narrow: Sequence[Int32s] | None = None) -> dict[str, Any]:
        """The columns of a `RankTrace` by name; `narrow` in place of the own ones."""
        indexes = self.narrow if narrow is None else narrow
        blocks = ((WIDE, self.wide), (NARROW, indexes), (TINY, self.tiny))
        found: dict[str, Any] = {"duration_ms": self.duration_ms}
        for names, block in blocks:
            found |= zip(names, block, strict=True)
        return found


def columns_of(dump: Dump, into: Dictionaries) -> FileColumns:
    """The entries of a parsed dump."""
    entries = dump.entries
    known = known_groups(dump, into)
    fields = chain.from_iterable(map(_wide_fields, entries))
    wide = np.fromiter(fields, np.int64, len(WIDE) * len(entries)).reshape(-1, len(WIDE))
    narrow, p2p_kind = _indexes(entries, known, into)
    tiny = np.empty((len(TINY), len(entries)), np.uint8)
    tiny[0] = p2p_kind | np.array([entry.is_p2p for entry in entries], np.bool_)
    tiny[1] = [STATE_OF[entry.state] for entry in entries]
    tiny[2] = [entry.retired for entry in entries]
    tiny[3] = 0
    tiny[3, [*dump.damaged]] = 1
    durations = [np.nan if e.duration_ms is None else e.duration_ms for e in entries]
    return FileColumns(
        version=dump.version,
        wide=np.ascontiguousarray(wide.T),
        narrow=narrow,
        tiny=tiny,
        duration_ms=np.array(durations, np.float64),
        status=dump.status,
        groups=tuple(known.values()),
        holes=dump.holes,
        warnings=dump.warnings,
    )


def known_groups(dump: Dump, into: Dictionaries) -> dict[str, int]:
    """Indexes, by name, of the groups whose members are in the dump."""
    return {name: into.groups.index(info) for name, info in dump.groups.items()}


def group_index(group: tuple[str, str], known: Mapping[str, int], into: Dictionaries) -> int:
    """Index of the group that an entry names; `known` as by `known_groups`."""
    index = known.get(group[0])
    return into.groups.index(GroupInfo(*group)) if index is None else index


def _indexes(
    entries: Sequence[Entry], known: Mapping[str, int], into: Dictionaries
) -> tuple[Int32s, Bools]:
    """The dictionary columns, and whether the op's name says that it involves two ranks."""
    first: dict[Hashable, int] = {}
    """By what an index may depend on, in order of appearance. A job repeats a few ops."""
    kinds = [first.setdefault(words, len(first)) for words in map(_words, entries)]
    of_kind: list[Entry] = []
    for entry, kind in zip(entries, kinds, strict=True):
        if kind == len(of_kind):
            of_kind.append(entry)
    rows = []
    for entry in of_kind:
        name = parse_profiling_name(entry.profiling_name)
        indexes = (
            group_index(entry.process_group, known, into),
            into.names.index(name),
            into.signature(name, entry),
            into.stack(entry.frames),
            into.thread(entry.thread_name, entry.thread_id),
        )
        rows.append((*indexes, name.is_p2p_kind))
    table = np.array(rows, np.int32).reshape(-1, len(NARROW) + 1)
    columns = table[np.array(kinds, np.intp)].T
    return np.ascontiguousarray(columns[:-1]), columns[-1].astype(np.bool_)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's recorder as columns of shape (n,), one element an entry, in recording order."""

    rank: int
    source: str
    """The file, for people."""
    version: str
    info: RankInfo | None
    """Identity, if the folder has it (`frd dump` folders do)."""
    clock_offset_ns: int | None
    """Service clock minus node clock, if the folder has it."""
    record_id: Int64s
    group: Int32s
    """Index into `Trace.groups`."""
    pg_id: Int64s
    """Process-local; the key of `status` and of nothing else."""
    seq: Int64s
    """`collective_seq_id`."""
    p2p_seq: Int64s
    op_id: Int64s
    is_p2p: UInt8s
    """1 when the entry, or its op's name, says so."""
    name: Int32s
    """Index into `Trace.names`."""
    signature: Int32s
    """Index into `Trace.signatures`."""
    state: UInt8s
    """`SCHEDULED`, `STARTED` or `COMPLETED`."""
    retired: UInt8s
    """0 or 1."""
    damaged: UInt8s
    """1 when the signature says nothing, see `Dump.damaged`."""
    created_ns: Int64s
    """CLOCK_REALTIME of the node, ns since the epoch, as are the next two; 0 when unknown."""
    started_ns: Int64s
    """When torch noticed the start; 0 when unknown."""
    completed_ns: Int64s
    """When torch noticed the completion; 0 when unknown."""
    duration_ms: Float64s
    """On the device, ms; NaN when unknown."""
    stack: Int32s
    """Index into `Trace.stacks`, -1 for none."""
    thread: Int32s
    """Index into `Trace.threads`, -1 when unknown."""
    timeout_ms: Int64s
    """0 when unknown."""
    status: Mapping[int, Status] = field(default_factory=dict)
    """Raw `pg_status` by `pg_id`."""
    holes: tuple[Hole, ...] = ()
    """Entries that cannot be read."""
    member_of: tuple[int, ...] = ()
    """Index into `Trace.groups` of groups whose members the dump has, used or not."""
    clock_uncertainty_ns: int | None = None
    """Bound on the error of `clock_offset_ns`; None if the folder has none."""
    dumped_from_ns: int = 0
    """The dump was not taken before this time of the node's clock; 0 when unknown."""
    dumped_until_ns: int = 0
    """Nor after this one; 0 when unknown."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def newest_ns(self) -> int:
        """The latest time in the dump; 0 when unknown."""
        columns = (self.created_ns, self.started_ns, self.completed_ns)
        return max(int(column.max(initial=0)) for column in columns)

    def unread_before(self, group: GroupInfo) -> int:
        """The row that follows all entries that cannot be read and may be of this group."""
        return max((one.before for one in self.holes if one.group in (None, group.name)), default=0)

    def take(self, rows: Int64s | Bools) -> RankTrace:
        """The columns of some rows. Of holes it stays unknown what follows them."""
        columns: dict[str, Any] = {
            name: column[rows]
            for name in self.__slots__
            if isinstance(column := getattr(self, name), np.ndarray)
        }
        return replace(self, **columns)


@dataclass(frozen=True, slots=True)
class Trace:
    """All ranks of one job from one folder of dumps."""

    key: AttemptKey
    ranks: Mapping[int, RankTrace]
    """By global rank; a rank without a readable file is absent."""
    groups: Sequence[GroupInfo]
    """Distinguished by name and ranks; `ranks` is empty if no dump has the membership."""
    names: Sequence[Name]
    signatures: Sequence[Signature]
    stacks: Sequence[tuple[Frame, ...]]
    """Innermost first."""
    threads: Sequence[str]
    world_size: int
    """Maximum over identities and groups; 0 if unknown."""
    warnings: Sequence[str] = ()
    """Each names a file that was left out, and why."""
    standing: Mapping[int, Activity] = field(default_factory=dict)
    """What a rank's program was doing when the dump was taken, if the folder holds its stack."""
    taken_at: AlignedNs | None = None
    """When the dumps were taken, if the folder has it."""
    stall_after_s: float | None = None
    """The stall threshold of the service that took the dumps, if the folder has it."""
    folder: str = ""
    """Where the dumps were found."""
    outside: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By rank, groups that it recorded in although they exclude it: these entries are not
    judged."""


def minor_version(version: str) -> tuple[int, int]:
    """Of a dump's format; an unreadable version counts as old."""
    major, _, minor = version.partition(".")
    return int(major) if major.isdigit() else 2, int(minor) if minor.isdigit() else 0
