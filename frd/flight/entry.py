"""A Flight Recorder dump in one shape for every version and backend.

The names are PyTorch's own, so that a field here and a field in a dump are the same thing. Absent
times are 0 whatever the format wrote (0, null, nothing). Nothing is interpreted: whether a
``retired`` entry completed depends on the backend (`frd.flight.progress`).

Of an entry's `profiling_name`, ``nccl:send 0->3``, ``nccl:recv 3<-0`` and ``recv 1<-?`` name
group-local ranks, everything else is a backend and an op. Unknown names are kept as they are: they
match by equality.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from frd.decodable import decodable
from frd.model import MAX_SEQ, YEAR_2200_NS, GroupInfo, Signature

MAX_TENSORS = 65_536
"""Tensors in one entry (a coalesced op lists all its tensors)."""
MAX_DIMENSIONS = 64
MAX_FRAMES = 1_024

TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")
"""Of an entry; a pickle has None for 0."""
SHAPES = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQ)]
Time: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=YEAR_2200_NS)]
Line: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
"""-1 when unknown. With others, thousands of stacks could have one hash."""
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""Of a dimension. Larger numbers could be chosen so that thousands of shapes have one hash."""
Shape: TypeAlias = Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
Shapes: TypeAlias = Annotated[tuple[Shape, ...], msgspec.Meta(max_length=MAX_TENSORS)]
State: TypeAlias = Literal["scheduled", "started", "completed"]
Dtypes: TypeAlias = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_TENSORS)]
_PEERS = re.compile(r"(?P<op>\S+) +(?P<left>\d{1,9}|\?) *(?P<way>->|<-) *(?P<right>\d{1,9}|\?)")
_P2P_OPS = frozenset({"send", "recv", "isend", "irecv"})
END_OF_BATCH = "coalesced"
"""The op of the entry that closes a series of ops issued as one."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One stack frame of the thread that issued the op."""

    name: str
    filename: str
    line: Line


Frames: TypeAlias = Annotated[tuple[Frame, ...], msgspec.Meta(max_length=MAX_FRAMES)]


@decodable
class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One record of the ring. `record_id`, `pg_id` and `p2p_seq_id` mean nothing on other ranks.

    The fields have the order in which torch writes them to JSON, by name: msgspec then finds each
    field without a search.

    ``gc=False`` because an entry can be part of no cycle, and thousands of them every second
    would otherwise be work for the garbage collector of the process that parses.
    """

    collective_seq_id: Count
    duration_ms: float | None = None
    frames: Frames = ()
    """Innermost first; only in pickles."""
    input_dtypes: Dtypes = ()
    input_sizes: Shapes = ()
    is_p2p: bool = False
    """As recorded, False in formats that do not say and always with torchcomms; and True for the
    entry that closes a batch of sends (`frd.flight.batches`)."""
    op_id: Count = 0
    output_dtypes: Dtypes = ()
    output_sizes: Shapes = ()
    p2p_seq_id: Count = 0
    pg_id: Int64 = -1
    process_group: tuple[str, str]
    """Name and description."""
    profiling_name: str
    record_id: Count
    """Counts up from 0, and again from 0 after a reset of the recorder."""
    retired: bool = False
    state: State = "scheduled"
    """Gloo leaves it at ``scheduled`` for ever."""
    thread_id: str = ""
    thread_name: str = ""
    time_created_ns: Time = 0
    """CLOCK_REALTIME of the node at enqueue."""
    time_discovered_completed_ns: Time = 0
    time_discovered_started_ns: Time = 0
    timeout_ms: Int64 = 0

    @property
    def group_name(self) -> str:
        return self.process_group[0]

    @property
    def group_desc(self) -> str:
        return self.process_group[1]


@decodable
class Status(
    msgspec.Struct,
    frozen=True,
    rename={name: f"last_{name}_collective" for name in ("enqueued", "started", "completed")},
):
    """`pg_status` of one process group, raw; -1 for nothing yet. Gloo counts ops, not seqs."""

    enqueued: Int64 = -1
    started: Int64 = -1
    completed: Int64 = -1


class Hole(NamedTuple):
    """Entries of one group that cannot be read: the rank may have come further than it shows."""

    group: str | None
    """The name; None if that cannot be read either, so that any group may be meant."""
    before: int
    """How many readable entries, of all groups, precede the last one of them."""
    entries: int


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump of one recorder of one rank."""

    version: str
    comm_lib_version: str = ""
    entries: tuple[Entry, ...] = ()
    """In recording order."""
    skipped: int = 0
    """Entries that are not in `entries`, because they are known and over."""
    groups: dict[str, GroupInfo] = field(default_factory=dict)
    """By group name, those that `pg_config` describes usably; none with Gloo."""
    status: dict[int, Status] = field(default_factory=dict)
    """By `pg_id`."""
    holes: tuple[Hole, ...] = ()
    """At most one for each group."""
    damaged: frozenset[int] = frozenset()
    """Indexes of `entries` of which a field cannot be read, or an entry next to it, which may be a
    part of the same collective: their sizes and dtypes say nothing."""
    warnings: tuple[str, ...] = ()
    """Each names what was left out, and why."""


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
