"""A `Dump` in PyTorch's own pickle layout, so that PyTorch's own tools read it.

torchfrtrace wants what only a pickle has (``None`` for absent times, a tuple for the group, the
``entries`` key even when empty) and dies of a group that `pg_config` does not describe, which is
every group of a Gloo dump. So the caller says who the members are. Nothing else is made up: states,
times and `retired` go out as they came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from frd.flight.entry import Dump, Entry, Frame
from frd.flight.pickles.torch_pickle import TorchPickler

Membership: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Group name to description and global ranks."""


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
            str(pg_id): {
                "last_enqueued_collective": status.enqueued,
                "last_started_collective": status.started,
                "last_completed_collective": status.completed,
            }
            for pg_id, status in dump.status.items()
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

    fields: dict[str, Any] = {}
    if entry.frames:
        fields["frames"] = [frames[frame] for frame in entry.frames]
    fields |= {
        "record_id": entry.record_id,
        "pg_id": entry.pg_id,
        "process_group": entry.process_group,
        "thread_name": entry.thread_name,
        "thread_id": entry.thread_id,
        "collective_seq_id": entry.collective_seq_id,
        "p2p_seq_id": entry.p2p_seq_id,
        "op_id": entry.op_id,
        "profiling_name": entry.profiling_name,
        "time_created_ns": entry.time_created_ns,
    }
    if entry.duration_ms is not None:
        fields["duration_ms"] = entry.duration_ms
    return fields | {
        "input_sizes": once(entry.input_sizes),
        "input_dtypes": once(entry.input_dtypes),
        "output_sizes": once(entry.output_sizes),
        "output_dtypes": once(entry.output_dtypes),
        "state": entry.state,
        "time_discovered_started_ns": entry.time_discovered_started_ns or None,
        "time_discovered_completed_ns": entry.time_discovered_completed_ns or None,
        "retired": entry.retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": entry.is_p2p,
    }
