"""Columns from a message's bytes, and their checks, one vectorized pass each.

Most batches are small and there are thousands a second, so the checks call ufuncs directly: the
methods of arrays (`max`, `any`) go through Python code that costs more than the work itself.

The members of a group are runs: 16,384 consecutive ranks are twelve bytes instead of 64 KB.
Parallel training slices the world regularly (blocks, strides), so the ranks of nearly every group
are one run of equal steps, or a few. The size matters because every agent declares every group of
its ranks on every stream, and one of these groups is the whole world.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import HIDDEN, MAX_SEQ, UNKNOWN_SEQ, YEAR_2200_NS
from frd.wire.messages import MAX_SLACK_NS

_ALL_FLAGS: Final = 15
_RUN: Final = struct.Struct("<3i")
"""First rank, count, step."""

Check: TypeAlias = Callable[[str, npt.NDArray[Any]], None]
"""Raises WireError with the field's name unless all items (at least one) are allowed."""

_highest = np.maximum.reduce
_lowest = np.minimum.reduce


def _below(limit: int, allowed: str, unsigned: str = "<u8") -> Check:
    """From 0 to less than `limit`; `unsigned` is the unsigned type of the column's size. As
    unsigned numbers, negative items are above the limit, so one pass checks both ends."""
    dtype = np.dtype(unsigned)

    def check(field: str, items: npt.NDArray[Any]) -> None:
        if int(_highest(items.view(dtype))) >= limit:
            worst = items[items.view(dtype) >= limit][0]
            raise WireError(field, "range", f"{worst}: send {allowed}")

    return check


def _at_least(floor: int) -> Check:
    def check(field: str, items: npt.NDArray[Any]) -> None:
        if (lowest := int(_lowest(items))) < floor:
            raise WireError(field, "range", f"{lowest}: send {floor} or more")

    return check


def _check_enqueued(field: str, items: npt.NDArray[Any]) -> None:
    if (highest := int(_highest(items))) >= MAX_SEQ:
        raise WireError(field, "range", f"{highest}: send {MAX_SEQ - 1} or less")


def _check_flags(field: str, flags: npt.NDArray[Any]) -> None:
    """Every row has flags of `frd.model.Flags`."""
    if int(_highest(flags)) > _ALL_FLAGS or not int(_lowest(flags)):
        raise WireError(field, "range", f"{set(flags.tolist())}: send 1 to {_ALL_FLAGS}")


class Items(NamedTuple):
    """What a column holds."""

    dtype: np.dtype[Any]
    check: Check | None = None


class Column(NamedTuple):
    name: str
    """The same in a message of `frd.v1` and in its frozen value."""
    field: str
    """Its full name, for errors."""
    dtype: np.dtype[Any]
    check: Check | None


Columns: TypeAlias = tuple[Column, ...]
"""Columns of equal length."""


def _columns(message: str, **columns: Items) -> Columns:
    return tuple([Column(name, f"{message}.{name}", *of) for name, of in columns.items()])


_INT64: Final = Items(np.dtype("<i8"))
_UINT32: Final = Items(np.dtype("<u4"))
_UINT8: Final = np.dtype("u1")
_SEQ: Final = Items(_INT64.dtype, _below(MAX_SEQ, f"0 to {MAX_SEQ - 1}"))
_TIME: Final = Items(_INT64.dtype, _below(YEAR_2200_NS, "nanoseconds from 1970 to 2200"))
_SLACK: Final = Items(_INT64.dtype, _below(MAX_SLACK_NS + 1, f"0 to {MAX_SLACK_NS} nanoseconds"))
_REACHED: Final = Items(_INT64.dtype, _at_least(UNKNOWN_SEQ))

ENTRY_COLUMNS: Final = _columns(
    "entries",
    seq=_SEQ,
    group=_UINT32,
    signature=_UINT32,
    flags=Items(_UINT8, _check_flags),
    created_ns=_TIME,
    started_ns=_TIME,
    completed_ns=_TIME,
)
WATERMARK_ROWS: Final = _columns("watermarks", rank=_UINT32, group=_UINT32)
"""The columns that identify the rows of `WATERMARK_COLUMNS`."""
WATERMARK_COLUMNS: Final = _columns(
    "watermarks",
    enqueued=Items(_INT64.dtype, _check_enqueued),
    started=Items(_INT64.dtype, _at_least(HIDDEN)),
    completed=_REACHED,
    head_created_ns=_TIME,
)
SEEN_COLUMNS: Final = _columns("watermarks", seen_rank=_UINT32, as_of_ns=_TIME)
CHANNEL_COLUMNS: Final = _columns(
    "channels",
    group=_UINT32,
    peer=Items(np.dtype("<i4"), _at_least(-1)),
    is_send=Items(_UINT8, _below(2, "0 or 1", "u1")),
    in_flight=_UINT32,
    head_created_ns=_TIME,
    signature=_UINT32,
    batch=_UINT32,
    posted=Items(_INT64.dtype, _at_least(-1)),
)
SERIES_COLUMNS: Final = _columns("memory", series=_UINT32, capacity=_INT64)
SAMPLE_TIMES: Final = _columns("memory", begin_ns=_TIME, end_ns=_TIME)
SAMPLE_VALUES: Final = _columns("memory", values=_INT64)
ACK_COLUMNS: Final = _columns("ack", rank=_UINT32, revision=Items(np.dtype("<u8")))
READING_COLUMNS: Final = _columns("clock", raw_ns=_TIME, real_ns=_TIME, slack_ns=_SLACK)


def read_columns(message: Any, columns: Columns, rows: int = -1) -> dict[str, npt.NDArray[Any]]:
    """Read-only views of `columns` of `message`, by name; all have `rows` rows, -1 for any.

    Raises:
        WireError: naming the column.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, field, dtype, check in columns:
        data = getattr(message, name)
        if not data or len(data) != rows * dtype.itemsize:
            rows = _count_rows(field, len(data), dtype, rows)
        if not data:
            arrays[name] = np.empty(0, dtype)
            continue
        arrays[name] = items = np.frombuffer(data, dtype)
        if check is not None:
            check(field, items)
    return arrays


def _count_rows(field: str, size: int, dtype: np.dtype[Any], rows: int) -> int:
    """Rows of a column of `size` bytes; `rows` is how many it must have, -1 for any."""
    count, rest = divmod(size, dtype.itemsize)
    if rest:
        whole = f"send whole items of {dtype.itemsize} bytes"
        raise WireError(field, "length", f"{size} bytes: {whole}")
    if rows not in (-1, count):
        raise WireError(
            field,
            "length",
            f"{count} rows where the batch has {rows}: send columns of equal length",
        )
    return count


def write_columns(message: Any, columns: Columns, value: object) -> None:
    """The inverse of `read_columns`: the arrays are attributes of `value`."""
    message.SetInParent()
    for name, _, dtype, _ in columns:
        setattr(message, name, np.ascontiguousarray(getattr(value, name), dtype).tobytes())


def check_below(field: str, indexes: npt.NDArray[Any], limit: int) -> None:
    """All items of an unsigned column are known dictionary indexes."""
    if len(indexes) and (highest := int(_highest(indexes))) >= limit:
        raise WireError(
            field, "unknown_index", f"index {highest} where {limit} are declared: declare it first"
        )


def pack_ranks(ranks: Sequence[int]) -> bytes:
    """Runs of (first, count, step) for sorted distinct `ranks`."""
    ordered = np.asarray(ranks, np.int64)
    steps = np.diff(ordered)
    # Where the step changes; a run may end only there.
    bends = (np.flatnonzero(np.diff(steps)) + 1).tolist()
    runs = []
    start = 0
    for end in [*bends, len(ordered) - 1]:
        if end >= start:
            step = int(steps[start]) if end > start else 1
            runs.append((int(ordered[start]), end - start + 1, step))
            start = end + 1
    return np.array(runs, "<i4").tobytes()


def count_ranks(data: bytes) -> int:
    """How many ranks these runs say that they have, without those that make no sense."""
    if len(data) % _RUN.size:
        return 0
    return sum([count for _, count, _ in _RUN.iter_unpack(data) if count > 0])


def unpack_ranks(field: str, data: bytes, limit: int) -> tuple[int, ...]:
    """The inverse of `pack_ranks`. A run costs about a microsecond, and a rank in it nothing but
    its place in the tuple: all tuples share the numbers of the first `_SHARED` ranks.

    Raises:
        WireError: `data` is not such runs, or has more than `limit` ranks.
    """
    if len(data) % _RUN.size:
        raise WireError(field, "length", f"{len(data)} bytes: send whole runs of {_RUN.size} bytes")
    total, end = 0, 0
    runs: list[Sequence[int]] = []
    for first, count, step in _RUN.iter_unpack(data):
        if first < 0 or count < 1 or step < 1:
            raise WireError(field, "range", "a run needs a rank, a count and a step of 1 or more")
        if (total := total + count) > limit:
            raise WireError(field, "too_large", f"over {limit} ranks: send {limit} or fewer")
        if first < end:
            raise WireError(field, "range", "send sorted distinct ranks")
        end = first + (count - 1) * step + 1
        runs.append(range(first, end, step) if end > _SHARED else _numbers(end)[first:end:step])
    return tuple(runs[0]) if len(runs) == 1 else tuple(chain.from_iterable(runs))


_SHARED: Final = 1 << 17
_known_numbers: list[int] = []


def _numbers(end: int) -> list[int]:
    """0, 1, ... below `end` or beyond."""
    if end > len(_known_numbers):
        _known_numbers.extend(range(len(_known_numbers), end))
    return _known_numbers
