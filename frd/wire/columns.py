"""Columns from a message's bytes, and their checks, one vectorized pass each.

Most batches are small and there are thousands a second, so the checks call ufuncs directly: the
methods of arrays (`max`, `any`) go through Python code that costs more than the work itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.errors import WireError

YEAR_2200_NS: Final = 7_258_118_400_000_000_000
MAX_SEQ: Final = 1 << 53
"""Larger than any real seq, and far enough from 2**63 for sums."""
_ALL_FLAGS: Final = 15
U1: Final = np.dtype("u1")
U4: Final = np.dtype("<u4")
I4: Final = np.dtype("<i4")
U8: Final = np.dtype("<u8")
I8: Final = np.dtype("<i8")

Columns: TypeAlias = Mapping[str, "np.dtype[Any]"]
"""Columns of equal length: their type on the wire by their name, which is the same in a message of
`frd.v1` and in its frozen value."""
ENTRY_COLUMNS: Final[Columns] = {
    "seq": I8,
    "group": U4,
    "signature": U4,
    "flags": U1,
    "created_ns": I8,
    "started_ns": I8,
    "completed_ns": I8,
}
WATERMARK_ROWS: Final[Columns] = {"rank": U4, "group": U4}
"""The columns that identify the rows of `WATERMARK_COLUMNS`."""
WATERMARK_COLUMNS: Final[Columns] = {
    "enqueued": I8,
    "started": I8,
    "completed": I8,
    "head_created_ns": I8,
}
SEEN_COLUMNS: Final[Columns] = {"seen_rank": U4, "as_of_ns": I8}
CHANNEL_COLUMNS: Final[Columns] = {
    "group": U4,
    "peer": I4,
    "is_send": U1,
    "in_flight": U4,
    "head_created_ns": I8,
}
MEMORY_COLUMNS: Final[Columns] = {
    "series": U4,
    "capacity": I8,
    "begin_ns": I8,
    "end_ns": I8,
    "values": I8,
}
"""The exception: `series` and `capacity` are of one length, `begin_ns` and `end_ns` of another."""
READING_COLUMNS: Final[Columns] = {"raw_ns": I8, "real_ns": I8, "slack_ns": I8}

_highest = np.maximum.reduce
_lowest = np.minimum.reduce


def column(field: str, data: bytes, dtype: np.dtype[Any], rows: int = -1) -> npt.NDArray[Any]:
    """A read-only view of `data`; `rows` is the length that it must have, -1 for any.

    Raises:
        WireError: naming `field`, as every function here.
    """
    count, rest = divmod(len(data), dtype.itemsize)
    if rest:
        raise WireError(
            field, "length", f"{len(data)} bytes: send whole items of {dtype.itemsize} bytes"
        )
    if rows not in (-1, count):
        raise WireError(
            field,
            "length",
            f"{count} rows where the batch has {rows}: send columns of equal length",
        )
    return np.frombuffer(data, dtype) if count else np.empty(0, dtype)


def read_columns(
    field: str, message: Any, columns: Columns, rows: int = -1
) -> dict[str, npt.NDArray[Any]]:
    """Read-only views of `columns` of `message`, by name; all have `rows` rows, -1 for any.

    Raises:
        WireError: naming the column below `field`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in columns.items():
        data = getattr(message, name)
        if data and len(data) == rows * dtype.itemsize:
            arrays[name] = np.frombuffer(data, dtype)
        else:
            arrays[name] = column(f"{field}.{name}", data, dtype, rows)
            rows = len(arrays[name])
    return arrays


def write_columns(message: Any, columns: Columns, value: object) -> None:
    """The inverse of `read_columns`: the arrays are attributes of `value`."""
    message.SetInParent()
    for name, dtype in columns.items():
        setattr(message, name, np.ascontiguousarray(getattr(value, name), dtype).tobytes())


def check_below(field: str, indexes: npt.NDArray[Any], limit: int) -> None:
    """All items of an unsigned column are known dictionary indexes."""
    if len(indexes) and (highest := int(_highest(indexes))) >= limit:
        raise WireError(
            field, "unknown_index", f"index {highest} where {limit} are declared: declare it first"
        )


def check_floor(field: str, items: npt.NDArray[Any], floor: int) -> None:
    if len(items) and (lowest := int(_lowest(items))) < floor:
        raise WireError(field, "range", f"{lowest}: send {floor} or more")


def check_seqs(field: str, seqs: npt.NDArray[Any]) -> None:
    """As `check_times`, for seqs."""
    if len(seqs) and int(_highest(seqs.view(U8))) >= MAX_SEQ:
        worst = seqs[seqs.view(U8) >= MAX_SEQ][0]
        raise WireError(field, "range", f"{worst}: send 0 to {MAX_SEQ - 1}")


def check_marks(field: str, marks: npt.NDArray[Any]) -> None:
    if len(marks) and int(_highest(marks)) >= MAX_SEQ:
        raise WireError(field, "range", f"{_highest(marks)}: send {MAX_SEQ - 1} or less")


def check_flags(field: str, flags: npt.NDArray[Any]) -> None:
    """Every row (at least one) has flags of `frd.model.Flags`."""
    if int(_highest(flags)) > _ALL_FLAGS or not int(_lowest(flags)):
        raise WireError(field, "range", f"{set(flags.tolist())}: send 1 to {_ALL_FLAGS}")


def check_time(field: str, at_ns: int) -> None:
    if not 0 <= at_ns < YEAR_2200_NS:
        raise WireError(field, "range", f"{at_ns}: send nanoseconds from 1970 to 2200")


def check_times(field: str, times: npt.NDArray[Any]) -> None:
    """As unsigned numbers, negative times are above the limit, so one pass checks both ends."""
    if len(times) and int(_highest(times.view(U8))) >= YEAR_2200_NS:
        worst = times[times.view(U8) >= YEAR_2200_NS][0]
        raise WireError(field, "range", f"{worst}: send nanoseconds from 1970 to 2200")
