"""Columns from a message's bytes, and their checks, one vectorized pass each.

Most batches are small and there are thousands a second, so the checks call ufuncs directly: the
methods of arrays (`max`, `any`) go through Python code that costs more than the work itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.errors import WireError

YEAR_2200_NS: Final = 7_258_118_400_000_000_000
MAX_SEQ: Final = 1 << 53
"""Larger than any real seq, and far enough from 2**63 for sums."""
U1: Final = np.dtype("u1")
U4: Final = np.dtype("<u4")
I4: Final = np.dtype("<i4")
U8: Final = np.dtype("<u8")
I8: Final = np.dtype("<i8")

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


def check_time(field: str, at_ns: int) -> None:
    if not 0 <= at_ns < YEAR_2200_NS:
        raise WireError(field, "range", f"{at_ns}: send nanoseconds from 1970 to 2200")


def check_times(field: str, times: npt.NDArray[Any]) -> None:
    """As unsigned numbers, negative times are above the limit, so one pass checks both ends."""
    if len(times) and int(_highest(times.view(U8))) >= YEAR_2200_NS:
        worst = times[times.view(U8) >= YEAR_2200_NS][0]
        raise WireError(field, "range", f"{worst}: send nanoseconds from 1970 to 2200")
