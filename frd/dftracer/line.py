"""One line of a DFTracer trace, of any dialect, as a typed value.

The dialect is decided line by line from its shape, because the version that a trace states is
unreliable. DFTracer writes strings without escaping them, cuts a line that is longer than its
buffer, and then loses the newline, so that the next record is glued to the cut one: `records_of`
recovers what can be recovered.

A quote or a backslash in a text, such as ``"note":"a"c"``, makes a line that is no JSON, but breaks
nothing of it that frd needs: all fields up to ``args`` have a fixed order and form. The fields of
``args`` are separated at commas, as `frd.dftracer.scan` does it, and those whose value is JSON are
kept. So the same line means the same whether it is read by the fast way or by this one, and is not
counted as broken. A line that was cut or has lost bytes before ``args`` is broken.

What a call is follows from its category and name. I/O is what the C library was asked for:
categories POSIX, STDIO, MPIIO and HDF5, without calls about processes. Fetch and compute are
annotations of the Python program. An unknown call is OTHER.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgspec

from frd.forms import encodable

MAX_INT: Final = (1 << 63) - 1
TRACER: Final = "dftracer"
"""The category of DFTracer's own events: ``start`` and ``end`` of a process, and of metadata."""
LATEST: Final = 1 << 61
"""No real time or duration is larger, in any unit; columns have no larger ones."""
MOST_BYTES: Final = 1 << 42
"""No call moves more than 4 TiB; larger results are damage, and would make sums overflow."""
_UNSIGNED: Final = 1 << 64
_GLUE: Final = re.compile(rb'(?<!"args":)(?=\{"(?:id|name)":)')
"""Where a record begins. The arguments of a v1 metadata line begin with a name as well."""
_ARRAY: Final = (b"[", b"]")
"""The first and last line of the dialects before 2.2."""
_HEAD: Final = re.compile(
    rb'\{(?:"id":[^,]*,)?"name":"([^"\\]*)","cat":"([^"\\]*)",(?:"type":[^,]*,)?'
    rb'"pid":"?(\d{1,20})"?,"tid":"?(\d{1,20})"?,'
    rb'(?:"ts":"?(\d{1,20})"?,)?(?:"dur":"?(\d{1,20})"?,)?"ph":(?:"([A-Z])"|(\d)),'
    rb'"args":\{(.*)\}\}',
    re.DOTALL,
)
_FIELD: Final = re.compile(rb'"(\w{1,64})":(.*)', re.DOTALL)
_PATH: Final = re.compile(rb'(?:.*,)?"(name|fname)":"(.*?)"(?:,"\w+":.*)?', re.DOTALL)
"""In a definition (`name`) or in a call of v0 (`fname`): up to the next field or the end."""
_LONGEST: Final = 1 << 14
"""The buffer of DFTracer for a line."""


class BrokenLine(ValueError):
    """A line that is no record: cut, glued to another one, or damaged."""


class Phase(IntEnum):
    """`ph` as 2.2 writes it; the other dialects have letters."""

    COMPLETE = 1
    COUNTER = 2
    AGGREGATED = 3
    METADATA = 4


PHASES: Final[Mapping[object, Phase]] = {
    **{phase.value: phase for phase in Phase},
    "X": Phase.COMPLETE,
    "C": Phase.COUNTER,
    "A": Phase.AGGREGATED,
    "M": Phase.METADATA,
}
"""By what a line may have; "C" is also that of an aggregated record, which has ``dft_cnt``."""


@dataclass(frozen=True, slots=True)
class Event:
    """A call that has returned, or a counter."""

    phase: Phase
    name: str
    cat: str
    pid: int
    tid: int
    ts: int
    """Its begin since the epoch, on the node's real-time clock, in the unit of the trace: µs unless
    a `Metadata` with `key` ``time_metric`` has another one."""
    dur: int | None
    """In the same unit, at least 0; None if the record has no duration, so is no span."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Empty unless the job had DFTRACER_INC_METADATA=1."""
    stepped: bool = False
    """The clock stepped back during the call: `dur` is 0 and means nothing."""

    @property
    def host(self) -> str:
        """The key of its host, of the form of `file_key`."""
        return file_key(self.args.get("hhash"), self.args.get("hostname"))

    @property
    def file(self) -> str:
        """The key of its file, see `file_key`; empty if it has none."""
        return file_key(self.args.get("fhash"), self.args.get("fname"))


@dataclass(frozen=True, slots=True)
class Metadata:
    """A definition: the text of a hash, or a fact about the process."""

    kind: str
    """``HH`` (host), ``FH`` (file), ``SH`` (other text), ``PR`` and ``CM`` (facts), ..."""
    key: str
    """Of FH, HH and SH: the hash. Of others: the name of the fact, such as ``rank``."""
    value: str
    """Of FH, HH and SH: the text. Of others: the fact."""
    pid: int
    host: str = ""


Record: TypeAlias = Event | Metadata

_HASHES: Final = frozenset({"FH", "HH", "SH"})
_INLINE: Final = "="
"""Begins the key of a text that the line itself has (v0), which no hash begins with."""


def file_key(hashed: object, text: object) -> str:
    """The hash as text, or for dialect v0 ``=`` and the name itself; empty if there is neither."""
    if hashed is not None and hashed != "":
        return str(hashed)
    return f"{_INLINE}{text}" if text else ""


def file_hash(path: str) -> str:
    """The key that DFTracer 2 gives a path: every second byte of its MD5."""
    digest = hashlib.md5(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return digest[::2].hex()


def inline_text(key: str) -> str | None:
    """The text of a key that has it; None for a hash."""
    return key[1:] if key.startswith(_INLINE) else None


def parse_line(line: bytes) -> Record | None:
    """The record in one line; None for an empty line or a bracket of the JSON array.

    Raises:
        BrokenLine: the line is no record.
    """
    line = _bare(line)
    return _record(_object(line)) if line and line not in _ARRAY else None


def _bare(line: bytes) -> bytes:
    """Without what surrounds a record in an array."""
    line = line.strip().removesuffix(b",").rstrip()
    line = line[1:] if line.startswith(b"[{") else line
    return line[:-1].rstrip() if line.endswith((b"}]", b"} ]")) else line


def records_of(line: bytes) -> tuple[list[Record], bool]:
    """All records that a line has, and whether a part of it is lost.

    A line that is cut is glued to the next record; two whole records may be glued, too. One whose
    texts are not escaped has lost nothing that is needed.
    """
    try:
        record = parse_line(line)
    except BrokenLine:
        parts = [part for part in _GLUE.split(line) if part.strip(b" \t\r\n,[]")]
    else:
        return ([record] if record is not None else []), False
    records: list[Record] = []
    lost = False
    for part in parts:
        try:
            record = _whole_or_salvaged(part)
        except BrokenLine:
            lost = True
        else:
            records += [record] if record is not None else []
    return records, lost


def _whole_or_salvaged(part: bytes) -> Record | None:
    try:
        return parse_line(part)
    except BrokenLine:
        if (document := _salvaged(_bare(part))) is None:
            raise
    return _record(document)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:  # raw control characters in strings, or bytes that are not UTF-8
            document = json.loads(line.decode("utf-8", "replace"), strict=False)
            document = encodable(document) if b"\\u" in line else document
        except (ValueError, RecursionError):
            raise BrokenLine("no JSON object") from None
    if not isinstance(document, dict):
        raise BrokenLine("no JSON object")
    return document


def _record(document: Mapping[str, Any]) -> Record:
    name, cat = document.get("name"), document.get("cat")
    ph, args = document.get("ph"), document.get("args", {})
    if not isinstance(name, str) or not isinstance(cat, str) or not isinstance(args, dict):
        raise BrokenLine("a record has a name, a category and arguments")
    phase = PHASES.get(ph) if isinstance(ph, int | str) else None
    if phase is None:
        raise BrokenLine(f"ph: {ph!r}: no known phase")
    if phase is Phase.METADATA:
        return _metadata(name, args, _integer(document, "pid"))
    if phase is Phase.COUNTER and "dft_cnt" in args:
        phase = Phase.AGGREGATED
    dur, stepped = None, False
    if "dur" in document and phase is Phase.COMPLETE:
        dur = _integer(document, "dur", limit=_UNSIGNED)
        if stepped := not 0 <= dur <= MAX_INT:  # negative, written as an unsigned number
            dur = 0
    pid, tid, ts = (_integer(document, key) for key in ("pid", "tid", "ts"))
    return Event(phase, name, cat, pid, tid, ts, dur, args, stepped)


def _metadata(kind: str, args: Mapping[str, Any], pid: int) -> Metadata:
    name, value = str(args.get("name", "")), str(args.get("value", ""))
    host = file_key(args.get("hhash"), None)
    if kind in _HASHES:
        return Metadata(kind, key=value, value=name, pid=pid, host=host)
    return Metadata(kind, key=name, value=value, pid=pid, host=host)


def _integer(document: Mapping[str, Any], key: str, limit: int = MAX_INT) -> int:
    value = document.get(key, 0)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BrokenLine(f"{key}: {value!r}: no integer") from None
    if not -MAX_INT <= number <= limit:
        raise BrokenLine(f"{key}: {value!r}: out of range")
    return number


# -- lines that are no JSON ------------------------------------------------------------------------


def _salvaged(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line that is no JSON; None if its head is not as usual."""
    if (found := _HEAD.fullmatch(line)) is None:
        return None
    name, cat, *numbers, letter, digit, args = found.groups()
    document: dict[str, Any] = {
        key: int(number)
        for key, number in zip(("pid", "tid", "ts", "dur"), numbers, strict=True)
        if number is not None
    }
    document |= {"name": name.decode("utf-8", "replace"), "cat": cat.decode("utf-8", "replace")}
    document["ph"] = letter.decode() if letter else int(digit)
    document["args"] = _arguments(args)
    return document


def _arguments(text: bytes) -> dict[str, Any]:
    """What can be read. Behind a brace, fields may be those of a nested object."""
    args: dict[str, Any] = {}
    flat, brace, _ = text.partition(b"{")
    fields = flat.split(b",")
    for part in fields[:-1] if brace else fields:
        if (found := _FIELD.fullmatch(part)) is None:
            continue
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            args[found[1].decode()] = msgspec.json.decode(found[2])
    if len(text) <= _LONGEST and (path := _PATH.fullmatch(text)) is not None:
        args.setdefault(path[1].decode(), path[2].decode("utf-8", "replace"))
    return args


class Kind(IntEnum):
    OTHER = 0
    FETCH = 1
    """The training loop waits for a batch."""
    COMPUTE = 2
    IO = 3
    """Other I/O than the next four. All from here on are I/O."""
    READ = 4
    WRITE = 5
    OPEN = 6
    CLOSE = 7


_IO_CATEGORIES: Final = frozenset({"POSIX", "STDIO", "MPIIO", "HDF5"})
_BYTES_IN: Final = frozenset({"POSIX", "STDIO"})
"""Where results are bytes. Calls of MPIIO and HDF5 end in calls of POSIX, which are counted."""
_READS: Final = frozenset(
    {"read", "pread", "pread64", "readv", "preadv", "preadv64", "preadv2", "fread"}
)
_WRITES: Final = frozenset(
    {"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64", "pwritev2", "fwrite"}
)
_OPENS: Final = frozenset(
    {"open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64"}
)
_CLOSES: Final = frozenset({"close", "fclose"})
ITEMS: Final = frozenset({"fread", "fwrite"})
"""Calls that return a number of items of ``size`` bytes."""
FORKS: Final = frozenset({"fork", "vfork"})
"""Calls that return the pid of a child."""
_OF_PROCESSES: Final = frozenset(
    {"clone", "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "exit", "_exit"}
    | {"fork", "vfork", "kill", "posix_spawn", "posix_spawnp", "wait", "wait3", "wait4", "waitid"}
    | {"waitpid", "sleep", "usleep", "nanosleep"}
)
_BEFORE_READS: Final = frozenset(
    {"fstat", "fstat64", "__fxstat", "__fxstat64", "lseek", "lseek64", "ftell", "fseek"}
)
_LOADERS: Final = frozenset({"dataloader", "data_loader"})


def kind_of(cat: str, name: str) -> Kind:
    if cat in _IO_CATEGORIES:
        return _io_kind(cat, name)
    if cat == "compute" or (cat == "ai_framework" and name.endswith("compute")):
        return Kind.COMPUTE
    if cat in _LOADERS and (name == "fetch" or name.endswith(".iter")):
        return Kind.FETCH
    return Kind.OTHER


def may_read_next(kind: Kind, name: str) -> bool:
    """Whether a read of its file usually follows a call: if the file is open and the process has
    made no other call since, it probably waits for that read, which a trace shows once it ends."""
    return kind in (Kind.READ, Kind.OPEN) or (kind is Kind.IO and name in _BEFORE_READS)


def _io_kind(cat: str, name: str) -> Kind:
    if name in _OF_PROCESSES:
        return Kind.OTHER
    if name in _CLOSES:
        return Kind.CLOSE
    if name in _OPENS:
        return Kind.OPEN
    if cat in _BYTES_IN and name in _READS:
        return Kind.READ
    if cat in _BYTES_IN and name in _WRITES:
        return Kind.WRITE
    return Kind.IO
