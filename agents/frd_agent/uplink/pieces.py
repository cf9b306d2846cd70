"""Events in pieces that the service accepts: each within `frd.wire.limits`, as one message.

What has rows is built with few enough; the size of the rest depends on names and texts, so it is
encoded to find out, and halved until it fits. One status, declaration, event or moment of a series
always fits: the dictionary shortens what would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from frd.errors import WireError
from frd.model import MemoryColumns
from frd.wire.encode import encode_agent
from frd.wire.limits import check_message
from frd.wire.messages import AgentEvent, Declare, MemoryEvents, Statuses


def fits(event: AgentEvent) -> bool:
    """The service accepts the event in one message."""
    try:
        check_message(encode_agent(event))
    except WireError:
        return False
    return True


def pieces(event: Any) -> Iterator[Any]:
    """Events of the same kind that say together what `event` says, in the same order."""
    if not isinstance(event, (Declare, Statuses, MemoryEvents, MemoryColumns)) or fits(event):
        yield event
        return
    for half in _moments(event) if isinstance(event, MemoryColumns) else _items(event):
        yield from pieces(half)


def _items(event: Declare | Statuses | MemoryEvents) -> Iterator[Any]:
    """Halves. What is no tuple comes in both, which changes nothing."""
    tuples = [name for name in event.__slots__ if isinstance(getattr(event, name), tuple)]
    name = max(tuples, key=lambda one: len(getattr(event, one)))
    items = getattr(event, name)
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        yield replace(event, **{name: half})


def _moments(columns: MemoryColumns) -> Iterator[MemoryColumns]:
    """Halves: the moments, or the series of a single moment."""
    count, moments = columns.values.shape
    halved = moments if moments > 1 else count
    for half in (slice(halved // 2), slice(halved // 2, None)):
        series, some = (slice(None), half) if moments > 1 else (half, slice(None))
        yield MemoryColumns(
            series=columns.series[series],
            capacity=columns.capacity[series],
            begin_ns=columns.begin_ns[some],
            end_ns=columns.end_ns[some],
            values=columns.values[series, some],
        )
