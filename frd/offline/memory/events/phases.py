"""The parts of an event that say in which phase of the program it was recorded.

Phase events (``phase_enter``, ``phase_exit``) have a ``metadata.phase_scope``. A sample may have
``origin_thread_id`` and ``origin_phase_scope_id``, in its metadata or as fields of the event.
Most events have neither, so metadata are decoded only in text in which one of these names occurs.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from frd.decodable import decodable
from frd.offline.memory.telemetry import KNOWN_VERSIONS, MAX_RANKS, Event, Origin
from frd.offline.phases.marks import ENTER, EXIT, PhaseMark

PHASES: Final = (ENTER, EXIT)
_ACTIONS: Final = {ENTER: "enter", EXIT: "exit"}
ORIGIN_KEYS: Final = (b"origin_thread_id", b"origin_phase_scope_id")
_NAMES: Final = (b"origin_", b"phase_enter", b"phase_exit")
_NOTHING: Final = msgspec.Raw(b"null")
MAX_DEPTH: Final = 64
_LAST_NS: Final = 1 << 62


@decodable
class FullEvent(Event, gc=False):
    """An event with the fields that phases need, of any type."""

    metadata: msgspec.Raw = _NOTHING
    origin_thread_id: msgspec.Raw = _NOTHING
    origin_phase_scope_id: msgspec.Raw = _NOTHING


class _Scope(msgspec.Struct, gc=False):
    action: str
    name: str
    path: list[str]
    scope_id: str
    thread_id: int
    thread_name: str
    sequence: int
    depth: int | None = None
    parent_scope_id: str | None = None


class _OfPhase(msgspec.Struct, gc=False):
    phase_scope: _Scope


class _OfSample(msgspec.Struct, gc=False):
    origin_thread_id: msgspec.Raw = _NOTHING
    origin_phase_scope_id: msgspec.Raw = _NOTHING


_of_phase = msgspec.json.Decoder(_OfPhase)
_of_sample = msgspec.json.Decoder(_OfSample)
_thread = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=-_LAST_NS, le=_LAST_NS)])
_scope_id = msgspec.json.Decoder(str)


def has_phases(text: bytes) -> bool:
    """True if events in `text` may be of phases or have origins: they need a `FullEvent`."""
    return any(name in text for name in _NAMES)


def mark_of(event: Event) -> PhaseMark:
    """The mark of a phase event.

    Raises:
        ValueError: it is not one, with the reason for people.
    """
    kind, rank = event.event_type, event.rank or 0
    try:
        metadata = event.metadata if isinstance(event, FullEvent) else _NOTHING
        scope = _of_phase.decode(metadata).phase_scope
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{kind}: metadata: {error}") from None
    if scope.action != _ACTIONS[kind]:
        raise ValueError(f"{kind}: metadata.phase_scope.action: {scope.action}")
    if not scope.path or not all(scope.path) or len(scope.path) > MAX_DEPTH:
        raise ValueError(f"{kind}: metadata.phase_scope.path: not 1 to {MAX_DEPTH} names")
    bounds = {
        "schema_version": (event.schema_version, KNOWN_VERSIONS[0], _LAST_NS),
        "rank": (rank, 0, MAX_RANKS),
        "timestamp_ns": (event.timestamp_ns, 1, _LAST_NS),
        "metadata.phase_scope.thread_id": (scope.thread_id, -_LAST_NS, 1 << 64),
        "metadata.phase_scope.sequence": (scope.sequence, -_LAST_NS, _LAST_NS),
    }
    for name, (value, least, end) in bounds.items():
        if not least <= value < end:
            raise ValueError(f"{kind}: {name}: {value}")
    return PhaseMark(
        job=event.job_id or "",
        rank=rank,
        host=event.host or "",
        pid=-1 if event.pid is None else event.pid,
        session=event.session_id or "",
        at_ns=event.timestamp_ns,
        entered=kind == ENTER,
        path=tuple(scope.path),
        scope_id=scope.scope_id,
        thread_id=scope.thread_id,
        thread_name=scope.thread_name,
        sequence=scope.sequence,
    )


def origin_of(event: Event) -> Origin | None:
    """Where a sample was taken, if it says so; a value of another type counts as absent."""
    if not isinstance(event, FullEvent):
        return None
    inner = _decoded(_of_sample, event.metadata) or _OfSample()
    thread = _decoded(_thread, inner.origin_thread_id)
    if thread is None:
        thread = _decoded(_thread, event.origin_thread_id)
    scope = _decoded(_scope_id, inner.origin_phase_scope_id)
    scope = scope or _decoded(_scope_id, event.origin_phase_scope_id) or ""
    return Origin(thread, scope) if scope or thread is not None else None


def _decoded(decoder: msgspec.json.Decoder[Any], text: msgspec.Raw) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
