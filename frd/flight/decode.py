"""Bytes of any Flight Recorder dump to `Dump`: JSON or pickle, gzipped or not, formats 2.x.

A JSON dump of the present format goes from bytes to `Entry` in one typed pass, because a live
agent parses one per rank every second or so. Whatever that pass refuses (pickles, numbers in
strings, one bad entry among two thousand) takes the second way, entry by entry. What cannot be
read is a warning with the index of the entry: an optional field gets the value for unknown, and
an entry without its identity (which op of which group, and whether it is over) is left out and
leaves a *hole*. Only a file that is no dump at all, or one
of another major version, is an error.

Input may be hostile. Its size, packed and unpacked, is bounded before it is parsed, and the work
that it may cause is bounded by its size. Its memory is not, except with `parse_answer`: parse files
where memory is limited (`frd.readers`).
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from frd.decodable import decodable, is_heavy
from frd.errors import DumpError
from frd.flight.batches import with_batch_ends
from frd.flight.entry import END_OF_BATCH, Dump, Entry, Hole, Int64, Status
from frd.flight.pickles.unpickle import load_plain
from frd.flight.plain_entries import Budget, extent, group_of
from frd.model import MAX_WORLD_SIZE, GroupInfo

MAX_BYTES = 256 * 1024 * 1024
"""Default bound on a dump, unpacked: a ring of 100,000 entries with stacks."""
MAX_ENTRIES = 1 << 20
MAX_ANSWERED = 200_000
"""Entries of a dump that becomes objects in the agent: its ring has half as many."""
MAX_WARNINGS = 32
_REMEMBERED = 128 * 1024
"""Characters of the longest list of ranks that is cached: a job of 16,384 ranks."""

_GZIP = b"\x1f\x8b"
PICKLE = b"\x80"
_NULL_TIME = re.compile(rb'("time_discovered_(?:started|completed)_ns"\s*:\s*)null')
_VERSION = re.compile(r"2\.\d{1,4}")
_NOT_TYPED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Header(msgspec.Struct, gc=False):
    """All but the entries; small, so that leniency costs nothing."""

    version: Any = None
    comm_lib_version: Any = None
    nccl_version: Any = None
    """The name of `comm_lib_version` up to 2.9."""
    pg_config: Any = None
    pg_status: Any = None


class _Document(_Header, gc=False):
    entries: list[Entry] = []


class _Undecoded(_Header, gc=False):
    entries: list[msgspec.Raw] = []


class Known(NamedTuple):
    """What was read of a recorder before."""

    record_id: int
    """Of the last entry, as is the time."""
    created_ns: int
    open: Collection[int]
    """Record ids of the entries before it that are not over."""


@decodable
class _Membership(msgspec.Struct):
    ranks: Any
    desc: str = ""


_document = msgspec.json.Decoder(_Document)
_undecoded = msgspec.json.Decoder(_Undecoded)
_entry = msgspec.json.Decoder(Entry)
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_WORLD_SIZE)]
_ranks = msgspec.json.Decoder(list[_Rank])


def parse(data: bytes, *, source: str, max_bytes: int = MAX_BYTES, most: int = MAX_ENTRIES) -> Dump:
    """The dump in `data`; `source` is what messages and `Dump.source` call it.

    Raises:
        DumpError: no Flight Recorder dump, another major version, damaged, hostile, or larger
            than `max_bytes` or `most` entries.
    """
    data = unpack(data, source, max_bytes)
    if data.startswith(PICKLE):
        return lenient(load_plain(data, source=source), len(data), source, most)
    return _parse_json(data, source, most)


def parse_answer(data: bytes, *, source: str, known: Known | None = None) -> Dump:
    """The dump in a rank's answer, which is JSON and nothing else. If it goes on where `known`
    ends, entries that are over and known are left out, except the first (`Dump.skipped`).

    Raises:
        DumpError: as `parse`, or its objects would take too much memory.
    """
    if is_heavy(data):
        raise DumpError(f"{source}: too large in memory: use a smaller TORCH_FR_BUFFER_SIZE")
    news = None if known is None else _news(data, known, source)
    return news or _parse_json(data, source, MAX_ANSWERED)


def _news(data: bytes, known: Known, source: str) -> Dump | None:
    """None if it does not go on there, or if any of what is new is not as torch writes it."""
    try:
        document = _undecoded.decode(data)
        raw = document.entries
        last, *still_open = (
            bisect_left(raw, number, key=lambda one: _entry.decode(one).record_id)
            for number in (known.record_id, *known.open)
        )
        again = [_entry.decode(one) for one in raw[last : last + 1]]
        if [(one.record_id, one.time_created_ns) for one in again] != [known[:2]]:
            return None
        kept = sorted(at for at in {0, *still_open} if at < last)
        entries = [_entry.decode(raw[at]) for at in (*kept, *range(last, len(raw)))]
    except _NOT_TYPED:
        return None
    check_count(len(raw), source, MAX_ANSWERED)
    names = {entry.profiling_name for entry in entries}
    if any(name.endswith(END_OF_BATCH) for name in names):
        return None  # what such an entry closes depends on all before it
    return replace(_dump(document, entries, [], source), skipped=len(raw) - len(entries))


def check_count(entries: int, source: str, most: int) -> None:
    """
    Raises:
        DumpError: there are too many.
    """
    if entries > most:
        raise DumpError(f"{source}: over {most} entries: use a smaller TORCH_FR_BUFFER_SIZE")


def _parse_json(data: bytes, source: str, most: int) -> Dump:
    if not data.lstrip(b" \t\r\n").startswith((b"{", b"[")):
        raise DumpError(f"{source}: neither JSON nor a pickle: is it a Flight Recorder dump?")
    document = _typed(data)
    if document is None and b"null" in data:
        document = _typed(_NULL_TIME.sub(rb"\g<1>0", data))
    if document is None:
        return lenient(_json(data, source), len(data), source, most)
    check_count(len(document.entries), source, most)
    return _dump(document, document.entries, [], source)


def _typed(data: bytes) -> _Document | None:
    """JSON in one pass; None if any of it is not as torch writes it."""
    try:
        return _document.decode(data)
    except _NOT_TYPED:
        return None


def too_large(source: str, max_bytes: int) -> DumpError:
    return DumpError(
        f"{source}: more than {max_bytes} bytes: too large, use a smaller TORCH_FR_BUFFER_SIZE"
    )


def unpack(data: bytes, source: str, max_bytes: int) -> bytes:
    """`data` itself, or what it holds when it is gzipped."""
    if data.startswith(_GZIP):
        unpacked = bytearray()
        while data.startswith(_GZIP) and len(unpacked) <= max_bytes:
            member = zlib.decompressobj(wbits=31)
            try:
                unpacked += member.decompress(data, max_bytes + 1 - len(unpacked))
            except zlib.error as error:
                raise DumpError(f"{source}: damaged gzip ({error}): take the dump again") from error
            data = member.unused_data
        data = bytes(unpacked)
    if len(data) > max_bytes:
        raise too_large(source, max_bytes)
    return data


def _json(data: bytes, source: str) -> Any:
    try:
        return msgspec.json.decode(data.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DumpError(f"{source}: damaged JSON ({error}): take the dump again") from error


def lenient(document: Any, size: int, source: str, most: int = MAX_ENTRIES) -> Dump:
    """The second way: `document` is made of plain values of any shape. Its entries are taken out,
    so that each exists once, as plain values or as an `Entry`."""
    if not isinstance(document, dict):
        raise DumpError(
            f"{source}: a {type(document).__name__} without version: "
            "frd reads Flight Recorder formats 2.x"
        )
    header = _Header(*(document.get(name) for name in _Header.__struct_fields__))
    raw = document.pop("entries", None)
    warnings: list[str] = []
    if not isinstance(raw, (list, tuple)):
        if raw is not None:
            warnings.append(f"entries: a {type(raw).__name__}: left out")
        raw = ()
    check_count(len(raw), source, most)
    budget = Budget(size, source)
    entries: list[Entry] = []
    holes: dict[str | None, Hole] = {}
    damaged: set[int] = set()
    raw = deque(raw)
    for index in range(len(raw)):
        fields = raw.popleft()
        try:
            entry, lost = budget.entry(fields)
        except (msgspec.MsgspecError, RecursionError) as error:
            warnings.append(f"entry {index}: {error}: left out")
            group = group_of(fields)
            before = holes.get(group, Hole(group, 0, 0))
            holes[group] = Hole(group, len(entries), before.entries + 1)
            damaged |= {max(0, len(entries) - 1), len(entries)}
            continue
        if lost:
            warnings.append(f"entry {index}: {', '.join(lost)}: not readable, taken as unknown")
            damaged.add(len(entries))
        entries.append(entry)
    for table in (header.pg_config, header.pg_status):
        for row in table.values() if isinstance(table, dict) else ():
            budget.pay(extent(row))
    dump = _dump(header, entries, warnings, source)
    return replace(dump, holes=(*holes.values(),), damaged=frozenset(damaged - {len(entries)}))


def _dump(header: _Header, entries: list[Entry], warnings: list[str], source: str) -> Dump:
    version = _supported(header.version, source)
    library = header.comm_lib_version or header.nccl_version
    groups = dict(_groups(header.pg_config, warnings))
    if "" in groups and "" not in {entry.process_group[0] for entry in entries}:
        del groups[""]
    status = dict(_statuses(header.pg_status, warnings))
    if len(warnings) > MAX_WARNINGS:
        more = len(warnings) - MAX_WARNINGS
        warnings[MAX_WARNINGS:] = [f"{more} more like these"]
    return Dump(
        version=version,
        comm_lib_version=library if isinstance(library, str) else "",
        entries=with_batch_ends(entries),
        groups=groups,
        status=status,
        warnings=tuple(warnings),
    )


def _supported(version: Any, source: str) -> str:
    if isinstance(version, str) and _VERSION.fullmatch(version):
        return version
    # The text of a list that has itself in it many times would have no end.
    named = version[:32] if isinstance(version, str) else type(version).__name__
    raise DumpError(f"{source}: version {named!r}: frd reads Flight Recorder formats 2.x")


def _groups(config: Any, warnings: list[str]) -> Iterator[tuple[str, GroupInfo]]:
    """Groups of known membership. Gloo writes one row for all its groups, without a name, and with
    the members of one of them or none. torchft has a group without a name, in which entries are."""
    if not isinstance(config, Mapping):
        return
    for name, raw in config.items():
        try:
            row = msgspec.convert(raw, _Membership)
            ranks = row.ranks
            is_usual = isinstance(ranks, str) and len(ranks) <= _REMEMBERED
            info = (_group if is_usual else _new_group)(str(name), row.desc, ranks)
        except msgspec.MsgspecError as error:
            warnings.append(f"pg_config {str(name)[:64]!r}: {error}: left out")
            continue
        if info.ranks:
            yield str(name), info


def _new_group(name: str, desc: str, ranks: Any) -> GroupInfo:
    """`ranks` are global ones: ``"[0, 1]"`` or a list of numbers."""
    if isinstance(ranks, str):
        members = set(_ranks.decode(ranks))
    else:
        members = msgspec.convert(ranks, set[_Rank], strict=False)
    return GroupInfo(name, desc, tuple(sorted(members)))


# Thousands of dumps list the same thousands of ranks.
_group = lru_cache(maxsize=64)(_new_group)


def _statuses(status: Any, warnings: list[str]) -> Iterator[tuple[int, Status]]:
    if not isinstance(status, Mapping):
        return
    for key, raw in status.items():
        try:
            pg_id = msgspec.convert(key, Int64, strict=False)
            row = msgspec.convert(raw, Status, strict=False)
        except msgspec.MsgspecError as error:
            warnings.append(f"pg_status {str(key)[:64]!r}: {error}: left out")
            continue
        yield pg_id, row
