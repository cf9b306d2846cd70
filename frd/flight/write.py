"""A `Dump` in PyTorch's own pickle layout, so that PyTorch's own tools read it.

torchfrtrace wants what only a pickle has (``None`` for absent times, a tuple for the group, the
``entries`` key even when empty) and stops at a group that `pg_config` does not describe, which is
every group of a Gloo dump, so the caller passes the members. Nothing else is invented: states,
times and `retired` are written as they were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from frd.flight.entry import SHAPES, TIMES, Dump, Entry, Frame
from frd.flight.pickles.layout import KINDS
from frd.flight.pickles.torch_pickle import TorchPickler

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
