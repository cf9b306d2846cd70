"""The report of an agent on what a suspect process is blocked in, as it travels: JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import msgspec

from frd.decodable import decodable
from frd.model import MAX_WORLD_SIZE, Holder, NodeRawNs, WaitsFor
from frd.wire.fields import PART_FIELD, check_most, check_time, decode_part, text

MAX_REPORT_BYTES: Final = 64 * 1024
_MAX_PID: Final = 2**31 - 1
_UNKNOWN: Final = NodeRawNs(0)


@decodable
@dataclass(frozen=True, slots=True)
class WaitReport:
    """What an agent found out about one rank, as of now."""

    waits_for: WaitsFor
    """Without `since_at` and `text`, which the service fills in."""
    since_ns: NodeRawNs = _UNKNOWN
    """It has waited at least since then; 0 unknown."""
    as_of_ns: NodeRawNs = _UNKNOWN
    """When it was last seen so; 0 if it was not looked at yet."""
    may_be_for_peer: bool = False
    """Its main thread waits for another thread, with a time-out: as for a send or receive."""
    is_poll: bool = False
    """Its main thread wakes from sleep again and again, and does nothing. With a holder, `LIKELY`,
    the rank that has the file lock for which it looks."""
    is_idle: bool = False
    """Its main thread waits for a request: see `frd.model.IDLE`."""


def encode_report(report: WaitReport) -> bytes:
    return msgspec.json.encode(_with_wire_texts(report))


def decode_report(data: bytes) -> WaitReport:
    """
    Raises:
        WireError: `data` is not what `encode_report` returns.
    """
    report = decode_part(data, WaitReport, what="report on a wait", max_bytes=MAX_REPORT_BYTES)
    check_time(f"{PART_FIELD}.since_ns", report.since_ns)
    check_time(f"{PART_FIELD}.as_of_ns", report.as_of_ns)
    _check_number("pid", report.waits_for.pid, _MAX_PID)
    if (holder := report.waits_for.holder) is not None:
        _check_number("holder.pid", holder.pid, _MAX_PID)
        _check_number("holder.rank", holder.rank or 0, MAX_WORLD_SIZE)
    return _with_wire_texts(report)


def _check_number(name: str, value: int, most: int) -> None:
    # A negative number is as wrong as one that is too high.
    check_most(f"{PART_FIELD}.{name}", value if value >= 0 else most + 1, most)


def _with_wire_texts(report: WaitReport) -> WaitReport:
    """With texts as the wire carries them: without what is no UTF-8, and not too long."""
    waits_for = report.waits_for
    holder = waits_for.holder and replace(waits_for.holder, **_texts(waits_for.holder))
    return replace(report, waits_for=replace(waits_for, holder=holder, **_texts(waits_for)))


def _texts(value: WaitsFor | Holder) -> dict[str, Any]:
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: text(item) for name, item in named if type(item) is str}
