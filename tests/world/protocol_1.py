"""Messages as agents of protocol 1 send them: times are what the node's wall clock showed.

Such an agent keeps the stamps as it reads them, so a row from before a step of the wall clock has a
time of before the step. Only `as_of_ns` of watermarks is set back with the clock, because it must
not stay in the future.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from frd.model import ChannelColumns, EntryColumns, Int64s, MemoryColumns
from frd.wire.messages import AgentEvent, Hello, MemoryEvents, Statuses, Watermarks

_TIMES = {
    EntryColumns: ("created_ns", "started_ns", "completed_ns"),
    ChannelColumns: ("head_created_ns",),
    MemoryColumns: ("begin_ns", "end_ns"),
}


def spoken(event: AgentEvent, shown: Callable[[int], int], ahead_ns: int) -> AgentEvent:
    """`event` of a node whose wall clock showed `shown` of a raw time, and is now `ahead_ns` ahead
    of the raw clock."""

    def column(raws: Int64s) -> Int64s:
        return np.array([shown(raw) if raw else 0 for raw in raws.tolist()], np.int64)

    match event:
        case Hello():
            return replace(event, protocol=1, sent_raw_ns=None)
        case EntryColumns():
            return _with_times(event, column)
        case MemoryColumns():
            return _with_times(event, column)
        case ChannelColumns():
            return _with_times(replace(event, as_of_ns=0), column)
        case Watermarks():
            columns = event.columns
            heads, as_of = column(columns.head_created_ns), columns.as_of_ns + ahead_ns
            columns = replace(columns, head_created_ns=heads, as_of_ns=as_of)
            return replace(event, columns=columns)
        case Statuses():
            found = [replace(s, at_ns=shown(s.at_ns), as_of_ns=0) for s in event.statuses]  # type: ignore[arg-type]
            return Statuses(tuple(found))
        case MemoryEvents():
            return MemoryEvents(
                tuple([replace(e, at_ns=shown(e.at_ns)) for e in event.events])  # type: ignore[arg-type]
            )
        case _:
            return event


_E = TypeVar("_E", EntryColumns, ChannelColumns, MemoryColumns)


def _with_times(event: _E, column: Callable[[Int64s], Int64s]) -> _E:
    times: dict[str, Any] = {name: column(getattr(event, name)) for name in _TIMES[type(event)]}
    return replace(event, **times)
