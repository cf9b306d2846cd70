"""A `Dump` in PyTorch's own pickle layout, so that PyTorch's own tools read it.

torchfrtrace wants what only a pickle has (``None`` for absent times, a tuple for the group, the
``entries`` key even when empty) and dies of a group that `pg_config` does not describe, which is
every group of a Gloo dump. So the caller says who the members are. Nothing else is made up: states,
times and `retired` go out as they came in.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from frd.flight.entry import Dump, Entry

Membership: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Group name to description and global ranks."""

_PROTOCOL = 2
"""The one that PyTorch writes."""


def write_pickle(dump: Dump, membership: Membership | None = None) -> bytes:
    """The bytes of a dump file; `membership` adds to the dump's own groups, and overrides them.

    torchfrtrace stops at an entry whose group is in neither. Ranks that recorded entries in such a
    group are the best answer that a caller with all dumps can give.
    """
    groups = {name: (group.desc, group.ranks) for name, group in dump.groups.items()}
    groups.update(
        {name: (desc, tuple(ranks)) for name, (desc, ranks) in (membership or {}).items()}
    )
    # Equal strings become one object, which a pickle writes once.
    shared: dict[str, str] = {}
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
        "entries": [_fields(entry, shared) for entry in dump.entries],
    }
    return pickle.dumps(document, _PROTOCOL)


def _fields(entry: Entry, shared: dict[str, str]) -> dict[str, Any]:
    def once(text: str) -> str:
        return shared.setdefault(text, text)

    fields: dict[str, Any] = {
        "record_id": entry.record_id,
        "pg_id": entry.pg_id,
        "process_group": (once(entry.group_name), once(entry.group_desc)),
        "thread_name": once(entry.thread_name),
        "thread_id": once(entry.thread_id),
        "collective_seq_id": entry.collective_seq_id,
        "p2p_seq_id": entry.p2p_seq_id,
        "op_id": entry.op_id,
        "profiling_name": once(entry.profiling_name),
        "time_created_ns": entry.time_created_ns,
        "input_sizes": [list(shape) for shape in entry.input_sizes],
        "input_dtypes": [once(dtype) for dtype in entry.input_dtypes],
        "output_sizes": [list(shape) for shape in entry.output_sizes],
        "output_dtypes": [once(dtype) for dtype in entry.output_dtypes],
        "state": once(entry.state),
        "time_discovered_started_ns": entry.time_discovered_started_ns or None,
        "time_discovered_completed_ns": entry.time_discovered_completed_ns or None,
        "retired": entry.retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": entry.is_p2p,
    }
    if entry.duration_ms is not None:
        fields["duration_ms"] = entry.duration_ms
    if entry.frames:
        fields["frames"] = [
            {"name": once(frame.name), "filename": once(frame.filename), "line": frame.line}
            for frame in entry.frames
        ]
    return fields
