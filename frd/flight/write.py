"""A `Dump` in PyTorch's own pickle layout, so that PyTorch's own tools read it.

torchfrtrace wants what only a pickle has (``None`` for absent times, a tuple for the group, the
``entries`` key even when empty) and stops at a group that `pg_config` does not describe, which is
every group of a Gloo dump, so the caller passes the members. Nothing else is invented: states,
times and `retired` are written as they were read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from frd.flight.entry import SHAPES, TIMES, Dump, Entry, Frame
from frd.flight.pickles.layout import KINDS

Membership: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Group name to description and global ranks."""

_values = attrgetter(*KINDS)


def write_pickle(dump: Dump, membership: Membership | None = None) -> bytes:
    """The bytes of a dump file; `membership` adds to the dump's own groups, and overrides them.

    torchfrtrace stops at an entry whose group is in neither. Ranks that recorded entries in such a
    group are the best answer that a caller with all dumps can give.
    """
    groups = {name: (group.desc, group.ranks) for name, group in dump.groups.items()}
    groups.update(
        {name: (desc, tuple(ranks)) for name, (desc, ranks) in (membership or {}).items()}
    )
    frames = {
        frame: {"name": frame.name, "filename": frame.filename, "line": frame.line}
        for entry in dump.entries
        for frame in entry.frames
    }
    lists: dict[Any, list[Any]] = {}
    document = {
        "version": dump.version,
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(sorted(map(int, ranks)))}
            for name, (desc, ranks) in groups.items()
        },
        "comm_lib_version": dump.comm_lib_version,
        "pg_status": {
            str(pg_id): msgspec.to_builtins(status) for pg_id, status in dump.status.items()
        },
        "entries": [_fields(entry, frames, lists) for entry in dump.entries],
    }
    return TorchPickler(shared=tuple(frames.values())).dumps(document)


def _fields(
    entry: Entry, frames: Mapping[Frame, dict[str, Any]], lists: dict[Any, list[Any]]
) -> dict[str, Any]:
    """An entry with its keys in PyTorch's order; equal shapes become one object, made once."""

    def once(shapes: tuple[Any, ...]) -> list[Any]:
        if (found := lists.get(shapes)) is None:
            found = [list(part) if isinstance(part, tuple) else part for part in shapes]
            lists[shapes] = found
        return found

    fields = dict(zip(KINDS, _values(entry), strict=True))
    for name in SHAPES:
        fields[name] = once(fields[name])
    for name in TIMES:
        fields[name] = fields[name] or None
    if entry.frames:
        fields["frames"] = [frames[frame] for frame in entry.frames]
    else:
        del fields["frames"]
    if entry.duration_ms is None:
        del fields["duration_ms"]
    return fields


# -- pickles as torch writes them ---------------------------------------------------------------


class TorchPickler:
    """One pickle of None, bool, int, float, str, list, dict and tuples of two, in the layout of
    c10's pickler, byte for byte.

    Python's own pickler numbers every container, PyTorch's strings, by value, and the containers
    that are used again, which in a Flight Recorder dump are stack frames. So dumps that frd writes
    are what PyTorch would have written, and are read back as fast (`frd.flight.pickles.lockstep`).

    Containers in `shared` are written once and referred to after that. Lists and tuples that are
    passed again as the same object are written from a cache: they must not change in between.
    """

    def __init__(self, shared: tuple[Any, ...] = ()) -> None:
        self._shared = {id(value) for value in shared}
        self._strings: dict[str, bytes] = {}
        self._containers: dict[int, bytes] = {}
        self._fragments: dict[int, bytes] = {}
        self._numbers = 0

    def dumps(self, value: Any) -> bytes:
        return b"\x80\x02" + self._encode(value) + self._put() + b"."

    def _encode(self, value: Any) -> bytes:
        # In order of frequency: thousands of entries have a hundred thousand values.
        kind = type(value)
        if kind is str:
            return self._strings.get(value) or self._spelled(value)
        if kind is int:
            return _integer(value)
        if value is None:
            return b"N"
        if kind is bool:
            return b"\x88" if value else b"\x89"
        if kind is float:
            return b"G" + struct.pack(">d", value)
        at = id(value)
        return self._containers.get(at) or self._fragments.get(at) or self._container(value, at)

    def _spelled(self, value: str) -> bytes:
        """A string where it is first used, which gives it its number."""
        data = value.encode("utf-8", "surrogatepass")
        put = self._put()
        self._strings[value] = _get(put)
        return b"X%b%b%b" % (struct.pack("<I", len(data)), data, put)

    def _container(self, value: Any, at: int) -> bytes:
        before = self._numbers
        encode = self._encode
        if isinstance(value, dict):
            items = [part for key, value in value.items() for part in (encode(key), encode(value))]
            data = b"}(%bu" % b"".join(items)
        elif isinstance(value, list):
            data = b"](%be" % b"".join(map(encode, value))
        elif isinstance(value, tuple) and len(value) == 2:
            data = b"%b%b\x86" % (encode(value[0]), encode(value[1]))
        else:
            raise TypeError(f"{type(value).__name__}: no value of a dump")
        if at in self._shared:
            put = self._put()
            self._containers[at] = _get(put)
            return data + put
        if before == self._numbers and not isinstance(value, dict):
            self._fragments[at] = data
        return data

    def _put(self) -> bytes:
        number = self._numbers
        self._numbers += 1
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)


def _get(put: bytes) -> bytes:
    return (b"h" if put[:1] == b"q" else b"j") + put[1:]


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)
