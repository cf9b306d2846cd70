"""Entries from plain values, with what other recorders and older formats write.

A pickle can refer to one list from everywhere, so its size does not bound the work that it causes.
`Budget` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from frd.errors import DumpError
from frd.flight.entry import SHAPES, TIMES, Entry, Frame, State

_FREE_ELEMENTS = 1_000_000
"""Elements that a pickle may hold beyond its own size in bytes, see `Budget`."""
_SIZED = (list, tuple, dict, str)
_STARTED, _COMPLETED = TIMES
_IDENTITY = ("is_p2p", "op_id", "p2p_seq_id", "pg_id", "retired", "state")
"""Not mandatory, but without them it is unknown which op it is, or whether it is over."""
_OPTIONAL = {
    one.name: one.type
    for one in msgspec.structs.fields(Entry)
    if not one.required and one.name not in _IDENTITY
}


_KEPT = {*SHAPES, "state"}
"""A None in them is damage, not the default."""


class Budget:
    """Bounds the work that one dump may cause, by its good entries and by its bad ones.

    A pickle can refer to one list a million times in two bytes each, and each reference costs time.
    In a valid dump an element of a container takes at least a byte of the file, except the three of
    a stack frame, which is referred to in two.
    """

    def __init__(self, size: int, source: str) -> None:
        self.size = size
        self._left = 2 * size + _FREE_ELEMENTS
        self._source = source
        self._stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
        """Entries share equal ones: with 60 frames one takes 4 kB, and all others take 1 kB."""

    def pay(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise DumpError(
                f"{self._source}: more elements than its size allows: "
                "no valid dump has them, the file may be malicious"
            )

    def entry(self, fields: Any) -> tuple[Entry, tuple[str, ...]]:
        """One entry and the names of its optional fields that cannot be read. It is paid for:
        afterwards where the schema bounds the work of one, else before."""
        if isinstance(fields, dict) and "frames" in fields:
            self.pay(_frames_extent(fields["frames"]))
        try:
            entry = _entry(fields)
            unreadable: tuple[str, ...] = ()
        except msgspec.MsgspecError:
            self.pay(extent(fields))
            entry, unreadable = _without_damage(fields)
        shapes = entry.input_sizes + entry.output_sizes
        dtypes = len(entry.input_dtypes) + len(entry.output_dtypes)
        self.pay(len(fields) + len(shapes) + sum(map(len, shapes)) + dtypes)
        stack = self._stacks.setdefault(entry.frames, entry.frames)
        msgspec.structs.force_setattr(entry, "frames", stack)
        return entry, unreadable


def group_of(fields: Any) -> str | None:
    """The name of the group of an entry that cannot be read, if it says so."""
    match fields:
        case {"process_group": [str(name), *_]}:
            return name
    return None


def extent(value: Any) -> int:
    """How many elements `value` has, three levels deep: as far as any schema here looks."""
    elements = 0
    level = [value]
    for _ in range(3):
        elements += sum(len(item) for item in level if isinstance(item, _SIZED))
        if elements > _FREE_ELEMENTS:
            break
        level = [inner for item in level for inner in _inner(item)]
    return elements


def _frames_extent(frames: Any) -> int:
    if not isinstance(frames, (list, tuple)):
        return extent(frames)
    return len(frames) + sum(len(frame) for frame in frames if isinstance(frame, _SIZED))


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _entry(fields: Any) -> Entry:
    if isinstance(fields, dict):
        for name in TIMES:
            if fields.get(name) is None:
                fields[name] = 0
    try:
        return msgspec.convert(fields, Entry)
    except msgspec.ValidationError:
        return msgspec.convert(_repaired(fields), Entry, strict=False)


def _without_damage(fields: Any) -> tuple[Entry, tuple[str, ...]]:
    """The entry without optional fields that cannot be read, and their names. That an op in state
    ``started`` has started is more than a time: without it, the device would seem stuck. One whose
    state cannot be read is over if it has a time of completion, and otherwise may be."""
    known = _repaired(fields) if isinstance(fields, dict) else {}
    kept = {_STARTED} if known.get("state") == "started" else set()
    bad = {n for n in _OPTIONAL if n in known and not _is_valid(known[n], _OPTIONAL[n])} - kept
    readable = {name: value for name, value in known.items() if name not in bad}
    if not _is_valid(readable.get("state", "scheduled"), State) and readable.get(_COMPLETED):
        bad.add("state")
        readable["state"] = "completed"
    return msgspec.convert(readable, Entry, strict=False), tuple(sorted(bad))


def _is_valid(value: Any, schema: Any) -> bool:
    try:
        msgspec.convert(value, schema, strict=False)
    except msgspec.MsgspecError:
        return False
    return True


def _repaired(fields: Any) -> Any:
    """Values of other recorders and older formats, in the present format."""
    if not isinstance(fields, dict):
        return fields
    known = {name: value for name, value in fields.items() if value is not None or name in _KEPT}
    for name in ("input_dtypes", "output_dtypes"):
        if isinstance(dtype := known.get(name), str):
            known[name] = (dtype,) if dtype else ()
    if isinstance(group := known.get("process_group"), (list, tuple)):
        known["process_group"] = tuple(
            "" if part is None else str(part) if isinstance(part, int) else part for part in group
        )
    if isinstance(thread := known.get("thread_id"), int):
        known["thread_id"] = str(thread)
    return known
