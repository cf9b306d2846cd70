"""How values of `frd.model` are written for people and tools.

One spelling of findings as JSON, sets of ranks, times and sizes, for commands, HTTP, the store and
reports.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from frd.decodable import decodable
from frd.model import MAX_WORLD_SIZE, AlignedNs, ExitInfo, ExitKind, Finding, Int64s, Reason

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Timed = TypeVar("_Timed", bound="DataclassInstance")
"""A finding or a part of it."""
REASONS: Final = {
    Reason.CPU_STUCK: "alive, but has not joined",
    Reason.EXITED: "its process exited",
    Reason.UNREACHABLE: "does not answer",
    Reason.IN_COLLECTIVE_ALONE: "still inside an op that the other ranks completed",
    Reason.DEVICE_STUCK: "joined, but its device has not started the op",
    Reason.MISMATCH: "joined with another op, size or dtype than the other ranks",
    Reason.ORDER: "entered its groups in another order",
    Reason.NETWORK_OR_DEVICE: "all ranks joined and none completes: network or devices",
    Reason.LATE: "comes late again and again",
    Reason.MEMORY: "its memory rose first",
}
"""What each reason means, for people."""
_FORMULA: Final = (*"=+-@\t\r\n\uff1d\uff0b\uff0d\uff20",)
"""First characters of a cell that a spreadsheet executes, or strips before it executes the rest."""
_ABSURD: Final = 1 << 62
_LOG_LINES: Final = 20
_LOG_LINE: Final = 500
"""Characters."""
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|.)")
"""What a terminal does not show: colours, titles."""
_OF_RANKS: Final = ("rank", "ranks", "victims")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = timedelta(days=100_000)


def utc_text(at: int) -> str:
    """ISO 8601 with microseconds and Z, from nanoseconds since the epoch."""
    time = _EPOCH + timedelta(microseconds=int(at) // 1000)
    return time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def moment(at: str) -> str:
    """``2026-11-20 10:00:00 UTC``, of a time of the API."""
    return f"{at[:10]} {at[11:19]} UTC"


def clock_text(at: int) -> str:
    """``10:02:11`` in UTC, for sentences, from nanoseconds since the epoch."""
    return datetime.fromtimestamp(int(at) // 1_000_000_000, UTC).strftime("%H:%M:%S")


def utc_ns(text: str) -> AlignedNs:
    """Nanoseconds since the epoch of any ISO 8601 date or time; without an offset it is UTC.

    Raises:
        ValueError: not a date or time, or too far from the epoch for 64 bits.
    """
    try:
        at = datetime.fromisoformat(text)
        whole = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        if abs(whole) > _MOST:
            raise ValueError("too far away")
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:40]!r}: write a time such as 2026-11-20T10:00:00Z") from None
    return AlignedNs(whole // timedelta(microseconds=1) * 1000)


def bytes_text(count: float) -> str:
    """A size for people: ``87 B``, ``1.5 GiB``, ``240 MiB``."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            break
        size /= 1024
    digits = 1 if unit != "B" and size < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def signal_name(number: int) -> str:
    """``SIGKILL``; a number without a name is ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(how: ExitInfo) -> str:
    """How a process ended, for people: ``RuntimeError: bad batch (train.py:88 load_batch)``.
    Empty for a clean exit without details."""
    raised = f"{how.exception} ({how.where})" if how.where else how.exception
    killed = f"killed by {signal_name(how.signal)}" if how.signal and how.status is None else ""
    status = f"exited with status {how.status}" if how.status else ""
    if status and how.signal:
        status += f" (128 + {signal_name(how.signal)})"
    match how.kind:
        case ExitKind.CLEAN:
            words = f"exited with status 0 after it had printed {raised}" if raised else ""
        case ExitKind.EXCEPTION if killed:
            words = f"{raised}, then {killed}"
        case ExitKind.UNKNOWN:
            words = "no exit record, and its exit status is not known"
        case _:
            words = raised or killed or status
    return "; ".join(filter(None, (words, how.note)))


def span_text(ns: int) -> str:
    """``120 µs``, ``3.1 ms``, ``2.5 s``: two digits are enough for an uncertainty."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            return f"{ns / size:.1f} {unit}" if ns < 10 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"


def duration_text(seconds: float) -> str:
    """A duration for people: ``0.4 s``, ``62 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def encodable(value: Any) -> Any:
    """A JSON value with each half of a surrogate pair as an escape: UTF-8 cannot encode these.

    Names of files that are no UTF-8 have them, and JSON may.
    """
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {encodable(key): encodable(one) for key, one in value.items()}
        case list() | tuple():
            return [encodable(one) for one in value]
    return value


def json_bytes(value: Any) -> bytes:
    """`value` as JSON, whatever names are in it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(value))


def counted(count: int, noun: str) -> str:
    """``1 rank``, ``16,384 ranks``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def fold_ranks(ranks: Iterable[int] | Int64s) -> str:
    """Rank set for people: ``0-11,13,15``. An array has to ascend, and is folded without a loop."""
    if not isinstance(ranks, np.ndarray):
        ranks = np.array(sorted(set(ranks)), np.int64)
    if not len(ranks):
        return ""
    ends = np.flatnonzero(np.diff(ranks, append=-2) != 1)
    first, last = ranks[np.append(0, ends[:-1] + 1)].tolist(), ranks[ends].tolist()
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(first, last, strict=True))


def ranks_text(ranks: Collection[int]) -> str:
    """``0-1,3 (3 ranks)``."""
    if len(ranks) <= 1:
        return fold_ranks(ranks) or "none"
    return f"{fold_ranks(ranks)} ({len(ranks)} ranks)"


def folded(suspects: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Suspects of a finding in JSON, for people: the ranks that are equally suspect for one reason,
    without high confidence, together. With what is known of each, by ``rank 0 on node7: `` if there
    are several."""

    def likeness(one: Any) -> object:
        return one["confidence"], one["reason"], one["confidence"] == "high" and one["rank"]

    for alike in (list(group) for _, group in groupby(suspects, likeness)):
        names = [f"rank {s['rank']}" + f" on {s['node']}" * bool(s["node"]) for s in alike]
        many = len(alike) > 1
        who = f"ranks {fold_ranks(s['rank'] for s in alike)}" if many else names[0]
        yield who, {f"{name}: " * many: one for name, one in zip(names, alike, strict=True)}


def log_lines(text: str) -> list[str]:
    """The last lines of a log as a terminal shows them, without colours and control characters: of
    a progress bar, its last state. Lines that are clean already stay as they are."""
    lines = []
    for line in _ESCAPE.sub("", text).rstrip().split("\n")[-_LOG_LINES:]:
        shown = line.rstrip("\r").rpartition("\r")[2].expandtabs()[:_LOG_LINE]
        lines.append("".join(c for c in shown if c.isprintable()))
    return lines if lines != [""] else []


def unfold_ranks(text: str) -> tuple[int, ...]:
    """The inverse of `fold_ranks`.

    Raises:
        ValueError: when a part is neither a rank nor a range.
    """
    ranks: set[int] = set()
    budget = 1_000_000
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20:
            raise ValueError(f"ranks: {part.strip()[:20]!r}: write ranks and ranges such as 0-3,7")
        low, high = int(first), int(last or first)
        if high < low:
            raise ValueError(f"ranks: {part.strip()!r}: the range must run upwards")
        budget -= high - low + 1
        if budget < 0:
            raise ValueError(f"ranks: {part.strip()!r}: more than a million ranks: ask for fewer")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


_SPELLED: Final = {
    "unknown": "unknown_ranks",
    "waited_s": "waiting_s",
    "since_at": "since",
    "seen_at": "seen",
    "silenced_until_at": "silenced_until",
}
"""Keys of a finding that differ from the name of the field."""
_FIELDS: Final = {key: field for field, key in _SPELLED.items()}
decodable(Finding)
_ALWAYS: Final = frozenset({"closed_at", "suspects", "victims", "summary", "headline", "stack"})
"""Keys that are present even if they are empty."""
_DIGITS: Final = {"waited_s": 3, "lost_s": 3, "onset_uncertainty_s": 6}
"""Digits after the point, by field."""


def finding_json(finding: Finding) -> dict[str, Any]:
    """The JSON object of a finding, the same everywhere; keys without a value are left out."""
    return _object(finding)


def _object(value: Any) -> dict[str, Any]:
    return {
        _SPELLED.get(field.name, field.name): _json(field.name, part)
        for field in fields(value)
        if (part := getattr(value, field.name)) != field.default or field.name in _ALWAYS
    }


def _json(name: str, part: Any) -> Any:
    match part:
        case tuple():
            return [_json("", one) for one in part]
        case Enum():
            return part.value
        case float():
            return round(part, _DIGITS[name])
        case int() if name.endswith("_at"):
            return utc_text(part)
        case None | str() | int():
            return part
        case _:
            return _object(part)


def later(value: _Timed, ns: int) -> _Timed:
    """A finding, or a part of it, with all of its times so much later."""
    moved: dict[str, Any] = {}
    for field in fields(value):
        match getattr(value, field.name):
            case int(at) if at and field.name.endswith("_at"):
                moved[field.name] = at + ns
            case (first, *_) as parts if is_dataclass(first):
                moved[field.name] = tuple(later(part, ns) for part in parts)
            case part if is_dataclass(part) and not isinstance(part, type):
                moved[field.name] = later(part, ns)
    return replace(value, **moved)


def finding_from_json(data: dict[str, Any]) -> Finding:
    """The inverse of `finding_json` (to the microsecond); used by the store.

    Raises:
        ValueError: when `data` is not such an object.
    """
    try:
        return msgspec.convert(_values(data), Finding)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"finding {data.get('id', 'without id')}: {error}") from error


def _values(data: dict[str, Any]) -> dict[str, Any]:
    return {_FIELDS.get(key, key): _value(key, part) for key, part in data.items()}


def _value(key: str, part: Any) -> Any:
    match part:
        case dict():
            return _values(part)
        case list():
            return [_value(key, one) for one in part]
        case int() if not -_ABSURD < part < (MAX_WORLD_SIZE if key in _OF_RANKS else _ABSURD):
            raise ValueError(f"{key}: {part}: out of range")
        case str() if _FIELDS.get(key, key).endswith("_at"):
            return utc_ns(part)
        case _:
            return part


def csv_cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula gets a leading quote; numbers stay."""
    is_formula = isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if is_formula else value
