"""Alignments that are in use: made, claimed, written down and read again.

The journal keeps every alignment in use, so that a replay aligns in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from frd.decodable import decodable
from frd.engine.clocks.alignment import FAR_NS, HORIZON_NS, Alignment
from frd.engine.clocks.estimator import OffsetEstimate
from frd.errors import StoreError
from frd.model import AlignedNs

decodable(Alignment)

_MARGIN: Final = 8
"""The claimed uncertainty exceeds the needed one by one part in so many."""


def guess(sent_at: int, received_at: AlignedNs) -> Alignment:
    """The alignment that a single message allows, without bounds."""
    return Alignment(
        reason="no exchange yet",
        now_ns=received_at,
        at_ns=sent_at,
        aligned_ns=received_at,
        rate=0.0,
        half_ns=0,
    )


def align(
    newest: OffsetEstimate, at: Callable[[int], AlignedNs], horizon_ns: int = HORIZON_NS
) -> Alignment:
    """From a node's raw clock over the service's to aligned time; `at` leads from there."""
    aligned_ns = at(newest.at_ns + newest.offset_ns)
    return Alignment(
        newest.reason,
        at(newest.now_ns),
        newest.at_ns,
        AlignedNs(min(max(aligned_ns, newest.at_ns - FAR_NS), newest.at_ns + FAR_NS)),
        newest.rate,
        newest.half_ns,
        newest.growth_ppm,
        horizon_ns,
    )


def claim_ns(alignment: Alignment) -> int | None:
    """Uncertainty claimed for present times, valid while the alignment is in use; None: none."""
    at_ns, now_ns = alignment.at_ns, alignment.at_ns + alignment.now_ns - alignment.aligned_ns
    needed = alignment.uncertainty_ns(max(now_ns, at_ns) + alignment.horizon_ns)
    return None if needed is None else needed * (_MARGIN + 1) // _MARGIN


def encode(alignment: Alignment) -> bytes:
    return msgspec.msgpack.encode(alignment)


def decode(data: bytes) -> Alignment:
    """
    Raises:
        StoreError: `data` is not what `encode` gives.
    """
    try:
        return msgspec.msgpack.decode(data, type=Alignment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"journal: alignment: {error}: a foreign file, or one of a newer frd"
        ) from None
