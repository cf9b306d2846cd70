"""Parses an entry's `profiling_name`.

``nccl:send 0->3``, ``nccl:recv 3<-0`` and ``recv 1<-?`` name group-local ranks, everything else is
a backend and an op. Unknown names are kept as they are: they match by equality.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from frd.model import Signature

_PEERS = re.compile(r"(?P<op>\S+) +(?P<left>\d{1,9}|\?) *(?P<way>->|<-) *(?P<right>\d{1,9}|\?)")
_P2P_OPS = frozenset({"send", "recv", "isend", "irecv"})
END_OF_BATCH = "coalesced"
"""The op of the entry that closes a series of ops issued as one."""


@dataclass(frozen=True, slots=True)
class Name:
    """A profiling name in parts."""

    backend: str
    """Empty when the name has none."""
    op: str
    src: int | None = None
    """Group-local sender; None for collectives, any source, and recorders that name no peer."""
    dst: int | None = None
    """Group-local receiver, in the same form."""
    is_p2p_kind: bool = False
    """The op involves two ranks, whatever the entry's `is_p2p` says (torchcomms never sets it)."""


@lru_cache(maxsize=16_384)
def parse_profiling_name(text: str) -> Name:
    """Never fails: what does not look like a name is an op without a backend."""
    backend, colon, rest = text.partition(":")
    if not colon:
        backend, rest = "", text
    if (peers := _PEERS.fullmatch(rest)) is None:
        return Name(backend, rest, is_p2p_kind=rest in _P2P_OPS)
    left, right = (None if end == "?" else int(end) for end in peers.group("left", "right"))
    src, dst = (left, right) if peers["way"] == "->" else (right, left)
    return Name(backend, peers["op"], src, dst, is_p2p_kind=True)


def ends_series(op: str) -> bool:
    """The op that ends a series: ``coalesced``, ``ALLGATHER_coalesced``."""
    return op == END_OF_BATCH or op.endswith(f"_{END_OF_BATCH}")


def coalesced(parts: Sequence[Signature]) -> Signature:
    """Of all ops that were issued as one, in order: ``coalesced(all_reduce x3)``.

    The op that ends the series (``coalesced``, ``ALLGATHER_coalesced``) gives the whole its name;
    its sizes are the parts' again, so they count only where it has no parts.
    """
    last = parts[-1]
    is_end = ends_series(last.op)
    ops = [op for op in parts[: -1 if is_end else None] if op.op != END_OF_BATCH]
    if not ops:
        return last
    if len(ops) == 1 and not (is_end and last.op != END_OF_BATCH):
        return ops[0]
    runs = [(op, len(list(run))) for op, run in groupby(op.op for op in ops)]
    names = ",".join(op if count == 1 else f"{op} x{count}" for op, count in runs)
    return Signature(
        backend=last.backend,
        op=f"{last.op if is_end else END_OF_BATCH}({names})",
        input_sizes=tuple(size for op in ops for size in op.input_sizes),
        output_sizes=tuple(size for op in ops for size in op.output_sizes),
        input_dtypes=tuple(dtype for op in ops for dtype in op.input_dtypes),
        output_dtypes=tuple(dtype for op in ops for dtype in op.output_dtypes),
    )
