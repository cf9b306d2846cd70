"""Groups, ops and the tasks of programs, with the names that recorders use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

MS: Final = 1_000_000
S: Final = 1_000_000_000

ENQUEUE_NS: Final = 200_000
"""Time that a program needs to enqueue an op."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class Group:
    """A process group; the same object on all its members."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str
    config: bytes = b""
    """Its part of `pg_config`, made at the first request."""


@dataclass(slots=True, eq=False)
class Op:
    """A collective, send or receive; the same object on all ranks that call it alike."""

    group: Group
    name: str
    """As recorders name it."""
    inputs: Shapes
    outputs: Shapes
    dtype: str
    span_ns: int
    """From the last join to completion."""
    src: int = -1
    dst: int = -1
    """Global ranks, of a send or receive."""
    is_send: bool = False
    parts: tuple[Op, ...] = ()
    """Recorded before it, under the same number; its end is the end of all."""
    is_part: bool = False
    is_foul: bool = False
    """It does not match what the others pass, so it never completes."""
    text: bytes = b""
    """The text that all its entries share, made at the first request."""

    @property
    def is_p2p(self) -> bool:
        return self.dst >= 0

    @property
    def size(self) -> int:
        """Number of members."""
        return 2 if self.dst >= 0 else len(self.group.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One thing that a rank's program does."""

    op: Op | None
    """None: wait until the device has completed all enqueued ops."""
    cpu_ns: int
    """Computing time of the program before it."""
    device_ns: int
    """Computing time of the device before it."""


Tasks: TypeAlias = tuple[Task, ...]

DRAIN: Final = Task(None, 0, 0)


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank runs."""

    groups: tuple[Group, ...]
    prologue: Tasks
    step: Tasks
    checkpoint: Tasks
    """Follows every `checkpoint_every` steps."""


def all_reduce(group: Group, elements: int, dtype: str = "BFloat16") -> Op:
    shapes = ((elements, 1_024),)
    return Op(group, "all_reduce", shapes, shapes, dtype, 5 * MS)


def message(group: Group, src: int, dst: int, *, is_send: bool, batched: bool) -> Op:
    """One end of a message between global ranks."""
    shapes = ((64, 1_024),)
    name = "send" if is_send else "recv"
    op = Op(group, name, shapes, shapes, "BFloat16", 3 * MS, src, dst, is_send)
    if not batched:
        return op
    op.is_part = True
    return Op(group, "coalesced", (), (), "", op.span_ns, src, dst, is_send, (op,))


def collective(group: Group, what: str) -> Op:
    """The collective `what` of a program, as the recorders of its backend show it."""
    many, is_gloo = len(group.ranks), group.backend == "gloo"
    is_hooked = group.backend == "nccl2"
    shard, whole = ((32, 1_024),), ((32 * many, 1_024),)
    match what:
        case "barrier" if is_gloo or is_hooked:
            return Op(group, "barrier", (), (), "", 2 * MS)
        case "barrier":
            return Op(group, "all_reduce_barrier", ((1,),), ((1,),), "Float", 2 * MS)
        case "norm":
            return all_reduce(group, 1, "Float")
        case "gradients":
            return all_reduce(group, 512)
        case "reduce_scatter" if not is_gloo:
            return Op(group, "_reduce_scatter_base", whole, shard, "BFloat16", 20 * MS)
        case "reduce_scatter":  # Gloo makes it of an all_reduce, and says so
            return Op(group, "all_reduce", whole, whole, "BFloat16", 20 * MS)
        case "all_gather":
            name = "all_gather" if is_gloo else "_all_gather_base"
            return Op(group, name, shard, whole, "BFloat16", 20 * MS)
        case "all_gather_uneven" if is_hooked:
            shards = tuple((32 + 8 * at, 1_024) for at in range(many))
            return Op(group, "all_gather", shards[:1], shards, "BFloat16", 20 * MS)
        case "all_gather_uneven":
            return _uneven_all_gather(group)
        case "all_to_all":
            return Op(group, "all_to_all", whole, whole, "BFloat16", 10 * MS)
        case _:
            return all_reduce(group, 64)


def _uneven_all_gather(group: Group) -> Op:
    """NCCL makes it of broadcasts, one of each member."""
    shards = [((32 + 8 * at, 1_024),) for at in range(len(group.ranks))]
    parts = tuple(
        Op(group, "_broadcast_oop", shard, shard, "BFloat16", 0, is_part=True) for shard in shards
    )
    whole = tuple(shape for shard in shards for shape in shard)
    return Op(group, "ALLGATHER_coalesced", shards[0], whole, "BFloat16", 20 * MS, parts=parts)
