"""Many lines of a trace as columns.

Lines are decoded by msgspec into structs that have only the keys that are needed, about eight times
as fast as `json.loads`; numpy columns are made of these. A block whose lines do not all fit the
schema is decoded line by line with `frd.dftracer.line`, which is exact and counts what is broken.
The results are the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from frd.dftracer.block import Block, Calls
from frd.dftracer.line import (
    FORKS,
    ITEMS,
    LATEST,
    MAX_INT,
    MOST_BYTES,
    TRACER,
    Event,
    Kind,
    Metadata,
    Phase,
    Record,
    file_key,
    kind_of,
    parse_line,
    records_of,
)
from frd.dftracer.scan import scan
from frd.model import Int64s, UInt8s

_EXCERPT: Final = 60
_HOST: Final = re.compile(rb'"hhash":\s*("[^"]*"|\d+)|"hostname":\s*"([^"]*)"')
_SPAN: Final = frozenset({1, "X"})
_NONE: Final = np.empty(0, np.int64)
_INT: Final = frozenset({int})
NO_DURATION: Final = MAX_INT


class Args(msgspec.Struct, gc=False):
    """The keys that columns need. Numbers may be strings, and names take the place of hashes, as in
    v0."""

    fhash: str | int = ""
    fname: str = ""
    ret: int | float | str | None = None
    size: int | float | str | None = None
    epoch: int | float | str | None = None
    step: int | float | str | None = None


class Line(msgspec.Struct, gc=False):
    ph: int | str
    name: str
    cat: str
    pid: int = 0
    tid: int = 0
    ts: int = 0
    dur: int = NO_DURATION
    args: Args = msgspec.field(default_factory=Args)


LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line, strict=False)


class BlockReader:
    """Turns blocks of whole lines into columns over one set of dictionaries."""

    def __init__(self, calls: Calls | None = None) -> None:
        self.calls = Calls() if calls is None else calls

    def read(self, data: bytes) -> Block:
        """The records in `data`, whole lines; the last one may have no newline."""
        if (scanned := scan(data, self.calls)) is None:
            return self._decoded(data)
        usual, others = scanned
        rest = self._decoded(others)
        columns: dict[str, Any] = {
            name: np.concatenate((column, getattr(rest, name))) for name, column in usual.items()
        }
        return replace(rest, **columns, host=_host(data))

    def _decoded(self, data: bytes) -> Block:
        """By a parser of JSON."""
        text = _without_brackets(data)
        try:
            return self._block(LINES.decode_lines(text), text)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return self._exact(data)

    def _exact(self, data: bytes) -> Block:
        """Line by line."""
        lines: list[Line] = []
        others: list[Record] = []
        broken, first = 0, ""
        for text in data.split(b"\n"):
            records, is_broken = records_of(text)
            if is_broken:
                broken += 1
                first = first or text[:_EXCERPT].decode("utf-8", "backslashreplace")
            for record in records:
                if _is_apart(record):
                    others.append(record)
                if isinstance(record, Event):
                    lines.append(_line_of(record))
        return self._columns(lines, others, data, broken, first)

    def _block(self, lines: Sequence[Line], text: bytes) -> Block:
        """Raises if a line is of no known kind."""
        apart = self._apart(lines)
        if not apart:
            return self._columns(lines, (), text)
        # These few are parsed again, as objects with all of their arguments.
        raw = [line for line in text.split(b"\n") if line.strip()]
        if len(raw) != len(lines):
            raise ValueError("two records in a line")
        others: list[Record] = []
        without = set()
        for at in apart:
            record = parse_line(raw[at])
            if isinstance(record, Event):
                lines[at].ph = int(record.phase)
            else:
                without.add(at)
            if record is not None and _is_apart(record):
                others.append(record)
        kept = [line for at, line in enumerate(lines) if at not in without]
        return self._columns(kept, others, text)

    def _apart(self, lines: Sequence[Line]) -> list[int]:
        """Which lines are needed as objects: metadata, counters, and events of a process."""
        name, cat = self.calls.names, self.calls.cats
        apart = np.array([cat[line.cat] for line in lines], np.int64) == cat[TRACER]
        names = np.array([name[line.name] for line in lines], np.int64)
        for fork in sorted(FORKS):
            apart |= names == name[fork]
        phases = [line.ph for line in lines]
        if not _SPAN.issuperset(phases):
            apart |= np.array([phase not in _SPAN for phase in phases], np.bool_)
        return [int(at) for at in np.flatnonzero(apart)]

    def _columns(
        self,
        lines: Sequence[Line],
        others: Sequence[Record],
        text: bytes,
        broken: int = 0,
        first_broken: str = "",
    ) -> Block:
        phases = [line.ph for line in lines]
        if not _SPAN.issuperset(phases):
            lines = [line for line in lines if line.ph in _SPAN]
        durations = [line.dur for line in lines]
        if NO_DURATION in durations:
            lines = [line for line in lines if line.dur != NO_DURATION]
            durations = [line.dur for line in lines]
        name, cat = self.calls.names, self.calls.cats
        names = np.array([name[line.name] for line in lines], np.int64)
        cats = np.array([cat[line.cat] for line in lines], np.int64)
        kind = self._kinds(names, cats)
        args = [line.args for line in lines]
        dur, stepped = _durations(durations)
        nbytes, failed = self._returned(kind, names, args)
        epoch, step = (_numbers_at(kind, args, key) for key in ("epoch", "step"))
        return Block(
            name=names,
            cat=cats,
            kind=kind,
            pid=np.array([line.pid for line in lines], np.int64),
            tid=np.array([line.tid for line in lines], np.int64),
            start=np.clip(np.array([line.ts for line in lines], np.int64), 0, LATEST),
            dur=dur,
            file=self._files(args),
            nbytes=nbytes,
            failed=failed,
            epoch=epoch,
            step=step,
            host=_host(text),
            metadata=[one for one in others if isinstance(one, Metadata)],
            tracer=[one for one in others if isinstance(one, Event)],
            aggregated=phases.count(Phase.AGGREGATED),
            broken=broken,
            first_broken=first_broken,
            stepped=stepped,
        )

    def _kinds(self, names: Int64s, cats: Int64s) -> UInt8s:
        both = (cats << 32) | names
        different, index = np.unique(both, return_inverse=True)
        known, calls = self.calls.kinds, self.calls
        if any(key not in known for key in different.tolist()):
            name, cat = list(calls.names), list(calls.cats)
            for key in different.tolist():
                known[key] = kind_of(cat[key >> 32], name[key & 0xFFFFFFFF])
        return np.array([known[key] for key in different.tolist()], np.uint8)[index]

    def _files(self, args: Sequence[Args]) -> Int64s:
        files = self.calls.files
        nothing = files[""]
        keys = (file_key(one.fhash, one.fname) for one in args)
        index = np.array([files[key] for key in keys], np.int64)
        index[index == nothing] = -1
        return index

    def _returned(self, kind: UInt8s, names: Int64s, args: Sequence[Args]) -> tuple[Int64s, UInt8s]:
        """Bytes moved, and whether the call failed, of calls whose result is known."""
        nbytes, failed = np.zeros(len(kind), np.int64), np.zeros(len(kind), np.uint8)
        moves = (kind == Kind.READ) | (kind == Kind.WRITE)
        rows = np.flatnonzero(moves | (kind == Kind.OPEN))
        ret = _integers([args[at].ret for at in rows.tolist()], 0)
        nbytes[rows], failed[rows] = np.where(moves[rows], np.clip(ret, 0, MOST_BYTES), 0), ret < 0
        of_items = [self.calls.names[name] for name in ITEMS if name in self.calls.names]
        items = np.flatnonzero(moves & np.isin(names, of_items)) if of_items else _NONE
        if len(items):
            size = _integers([args[at].size for at in items.tolist()], 1)
            moved = nbytes[items] * np.maximum(size, 0).astype(np.float64)
            nbytes[items] = np.minimum(moved, MOST_BYTES).astype(np.int64)
        return nbytes, failed


def _is_apart(record: Record) -> bool:
    return isinstance(record, Metadata) or record.cat == TRACER or record.name in FORKS


def _without_brackets(data: bytes) -> bytes:
    """Without the first and last line of the JSON array, which some dialects have."""
    text = data.strip()
    if text.startswith(b"["):
        text = text[1:].lstrip()
    return text[:-1].rstrip() if text.endswith(b"]") else text


def _line_of(event: Event) -> Line:
    args = event.args
    plain: dict[str, Any] = {
        key: args[key] for key in ("ret", "size", "epoch", "step") if _is_plain(args.get(key))
    }
    for key in ("fhash", "fname"):
        if isinstance(value := args.get(key), str | int):
            plain[key] = value if key == "fhash" else str(value)
    dur = NO_DURATION if event.dur is None else -1 if event.stepped else event.dur
    head = (int(event.phase), event.name, event.cat, event.pid, event.tid, event.ts, dur)
    return Line(*head, Args(**plain))


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | str)


def _host(text: bytes) -> str:
    """The key of the first host that is named."""
    if (found := _HOST.search(text)) is None:
        return ""
    hashed, name = found.groups()
    if hashed is not None:
        return hashed.strip(b'"').decode("utf-8", "replace")
    return file_key(None, name.decode("utf-8", "replace"))


def _durations(values: list[int]) -> tuple[Int64s, int]:
    """Durations, and how many are impossible and count as 0."""
    try:
        dur = np.array(values, np.int64)
    except OverflowError:
        dur = np.array([value if value <= MAX_INT else -1 for value in values], np.int64)
    stepped = int((dur < 0).sum())
    return np.clip(dur, 0, LATEST), stepped


def _numbers_at(kind: UInt8s, args: Sequence[Args], key: str) -> Int64s:
    """A number of annotated calls, -1 elsewhere."""
    out = np.full(len(kind), -1, np.int64)
    rows = np.flatnonzero(kind < Kind.IO)
    of = attrgetter(key)
    out[rows] = _integers([of(args[at]) for at in rows.tolist()], -1)
    return out


def _integers(values: list[Any], missing: int) -> Int64s:
    """Integers; any other value counts as missing."""
    if not _INT.issuperset(map(type, values)):
        values = [_integer(value, missing) for value in values]
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([v if abs(v) <= MAX_INT else missing for v in values], np.int64)


def _integer(value: object, missing: int) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return missing
