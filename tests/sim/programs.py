"""What the ranks of a simulated job run: its size, its groups, and what one step asks of each rank.

A step is a pipeline's: micro-batches forward and then backward, with the collectives of tensor and
expert parallelism inside each stage, and those of data parallelism at the end. Its order has no
circles even where every send waits for its receive, so a job that nothing happens to never stops.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

MS: Final = 1_000_000
S: Final = 1_000_000_000

_CPU_NS: Final = 200_000
"""What it costs to enqueue an op."""
_DATA_SHARE: Final = 0.15
"""Of a step: the program makes its input."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything about a job that is settled before it starts."""

    world: int
    ranks_per_node: int
    backend: str
    """``nccl`` or ``gloo``."""
    timing: bool
    """The recorder's timing is on: it tells ``started`` (NCCL only)."""
    tensor: int
    pipeline: int
    data: int
    """Parallel degrees: world = tensor * pipeline * data."""
    expert: int
    """Divides `data`."""
    ring: int
    """Entries of the Flight Recorder's ring."""
    step_ns: int
    jitter: float
    """Of computing times, relative."""
    depth: int
    """How many ops the CPU may enqueue ahead of the device (NCCL)."""
    chunks: int
    """Collectives of tensor parallelism in each pass of a stage."""
    microbatches: int
    sharded: bool
    """Data parallelism reduces and gathers shards, instead of all of it at once."""
    norm: bool
    """Each step ends with an all_reduce over the whole world."""
    batched: bool
    """Sends and receives are issued in batches (NCCL): each entry is followed by a closing one."""
    mixed: bool
    """Checkpoints are synchronized over Gloo, whatever the backend of the rest."""
    checkpoint_every: int
    """In steps."""
    checkpoint_ns: int

    @property
    def nodes(self) -> int:
        return -(-self.world // self.ranks_per_node)

    @property
    def hides_p2p(self) -> bool:
        """Ranks wait in sends and receives that no recorder tells of."""
        return self.backend == "gloo" and self.pipeline > 1


def draw_plan(dice: random.Random, *, world: int | None = None) -> JobPlan:
    """A job of 8 to 64 ranks, seldom of thousands; or of `world`."""
    if world is None:
        usual = dice.random() > 0.003
        world = dice.choice((8, 8, 12, 16, 16, 24, 32, 64) if usual else (1_024, 2_048, 4_096))
    is_big = world > 64
    backend = "gloo" if dice.random() < 0.3 else "nccl"
    pipeline = _degree(dice, world, (1, 1, 2, 4))
    tensor = _degree(dice, world // pipeline, (8,) if is_big else (1, 2, 2, 4))
    data = world // pipeline // tensor
    if world > 1 and tensor == pipeline == 1:
        tensor = _degree(dice, world, (1, 2))
        data = world // tensor
    return JobPlan(
        world=world,
        ranks_per_node=8 if is_big else dice.choice((2, 4, 4, 8)),
        backend=backend,
        timing=backend == "nccl" and dice.random() < 0.4,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=_degree(dice, data, (1, 1, 2, 4)),
        ring=64 if is_big else dice.choice((32, 48, 64, 64, 100, 200, 400, 2_000)),
        step_ns=2 * S if is_big else dice.randrange(S // 2, 2 * S),
        jitter=dice.uniform(0.01, 0.15),
        depth=dice.choice((1, 2, 4, 8, 32)),
        chunks=1 if is_big else dice.choice((1, 1, 2)),
        microbatches=1 if pipeline == 1 or is_big else dice.choice((1, 2)),
        sharded=dice.random() < 0.5,
        norm=data == 1 or dice.random() < 0.4,
        batched=backend == "nccl" and dice.random() < 0.4,
        mixed=backend == "nccl" and dice.random() < 0.25,
        checkpoint_every=dice.randrange(15, 60),
        checkpoint_ns=dice.randrange(2 * S, 6 * S),
    )


def _degree(dice: random.Random, of: int, degrees: tuple[int, ...]) -> int:
    return dice.choice([degree for degree in degrees if of % degree == 0] or [1])


# -- groups and ops --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Group:
    """A process group; the same object on all its members."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str
    config: bytes = b""
    """Its part of `pg_config`, once somebody has asked."""


@dataclass(slots=True, eq=False)
class Op:
    """Something that ranks do together, in a group; the same object on all who do it alike."""

    group: Group
    name: str
    """As recorders call it."""
    inputs: Shapes
    outputs: Shapes
    dtype: str
    span_ns: int
    """From when the last has come until it is complete."""
    src: int = -1
    dst: int = -1
    """Global ranks, of a send or receive."""
    is_send: bool = False
    closing: Op | None = None
    """What ends the batch that it is issued in."""
    is_foul: bool = False
    """It does not match what the others pass, so it never completes."""
    text: bytes = b""
    """What every entry of it says alike, once somebody has asked."""

    @property
    def is_p2p(self) -> bool:
        return self.dst >= 0

    @property
    def size(self) -> int:
        """How many ranks it takes."""
        return 2 if self.dst >= 0 else len(self.group.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One thing that a rank's program does."""

    op: Op | None
    """None: wait until the device has done all that was enqueued."""
    cpu_ns: int
    """The program computes so long before it."""
    device_ns: int
    """And the device, once it has nothing else to do."""


Tasks: TypeAlias = tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank runs."""

    groups: tuple[Group, ...]
    prologue: Tasks
    step: Tasks
    checkpoint: Tasks
    """What follows every so many steps."""


def all_reduce(group: Group, elements: int, dtype: str = "BFloat16") -> Op:
    shapes = ((elements, 1_024),)
    return Op(group, "all_reduce", shapes, shapes, dtype, 5 * MS)


def barrier(group: Group) -> Op:
    if group.backend == "gloo":
        return Op(group, "barrier", (), (), "", 2 * MS)
    return Op(group, "all_reduce_barrier", ((1,),), ((1,),), "Float", 2 * MS)


class Programs:
    """The groups of a job and the programs of its ranks."""

    def __init__(self, plan: JobPlan, dice: random.Random) -> None:
        self._plan = plan
        self._names = 0
        world = range(plan.world)
        t, d = plan.tensor, plan.data
        self._world = self.new_group("default_pg", world)
        self._data = self._groups("DATA_PARALLEL_GROUP", lambda r: (r % t, r // (t * d)))
        self._tensor = self._groups("TENSOR_MODEL_PARALLEL_GROUP", lambda r: r // t)
        self._stages = self._groups("PIPELINE_MODEL_PARALLEL_GROUP", lambda r: r % (t * d))
        self._expert = self._groups(
            "EXPERT_MODEL_PARALLEL_GROUP",
            lambda r: (r % t, r // (t * d), r // t % d // plan.expert),
            when=plan.expert > 1,
        )
        self._saves = self.new_group("CHECKPOINT_GROUP", world, "gloo") if plan.mixed else None
        self._lonely = {
            rank: self.new_group("WARM_UP", (rank,))
            for rank in dice.sample(world, min(plan.world, dice.randrange(6)))
        }
        self._laps = {rank: dice.randrange(1, 9) for rank in self._lonely}
        self._ops: dict[tuple[Group, str], Op] = {}

    def new_group(self, desc: str, ranks: tuple[int, ...] | range, backend: str = "") -> Group:
        """Named as torch does: by a number that all ranks count alike."""
        name = str(self._names)
        self._names += 1
        return Group(name, desc, tuple(ranks), backend or self._plan.backend)

    def _groups(self, desc: str, key: object, *, when: bool = True) -> dict[int, Group]:
        """One group for all ranks of the same key, by rank; none for ranks that are alone."""
        assert callable(key)
        alike: dict[object, list[int]] = {}
        for rank in range(self._plan.world) if when else ():
            alike.setdefault(key(rank), []).append(rank)
        found: dict[int, Group] = {}
        for ranks in alike.values():
            if len(ranks) > 1:
                group = self.new_group(desc, tuple(ranks))
                found.update(dict.fromkeys(ranks, group))
        return found

    def of(self, rank: int) -> Program:
        kinds = (self._data, self._tensor, self._stages, self._expert, self._lonely)
        others = (of[rank] for of in kinds if rank in of)
        saves = (self._saves,) if self._saves else ()
        lone = self._lonely.get(rank)
        laps = [self._shared(lone, "warm_up")] * self._laps[rank] if lone else []
        together = self._shared(self._world, "barrier")
        saved = self._shared(self._saves or self._world, "barrier")
        return Program(
            groups=(self._world, *others, *saves),
            prologue=(*self._timed(iter([*laps, together]), 100 * MS), self.drain),
            step=(*self._timed(self._step(rank), self._plan.step_ns), self.drain),
            checkpoint=(Task(saved, self._plan.checkpoint_ns, 0), self.drain),
        )

    drain: Final = Task(None, 0, 0)

    def task(self, op: Op) -> Task:
        """`op`, and next to no work before it."""
        return Task(op, _CPU_NS, 0)

    def _timed(self, ops: Iterator[Op], whole_ns: int) -> Iterator[Task]:
        """`ops`, with the work of a step spread among them."""
        them = list(ops)
        share_ns = round(whole_ns * (1 - _DATA_SHARE) / max(len(them), 1))
        for at, op in enumerate(them):
            cpu_ns = _CPU_NS if at else round(whole_ns * _DATA_SHARE)
            blocks = op.group.backend == "gloo"
            yield Task(op, cpu_ns + blocks * share_ns, 0 if blocks else share_ns)

    def _step(self, rank: int) -> Iterator[Op]:
        plan = self._plan
        stage = rank // (plan.tensor * plan.data)
        stride = plan.tensor * plan.data
        before = rank - stride if stage > 0 else None
        after = rank + stride if stage < plan.pipeline - 1 else None
        for _ in range(plan.microbatches):
            yield from self._pass(rank, before, after)
        for _ in range(plan.microbatches):
            yield from self._pass(rank, after, before)
        if rank in self._data:
            if plan.sharded:
                yield self._shared(self._data[rank], "reduce_scatter")
                yield self._shared(self._data[rank], "all_gather")
            else:
                yield self._shared(self._data[rank], "gradients")
        if plan.norm:
            yield self._shared(self._world, "norm")

    def _pass(self, rank: int, source: int | None, target: int | None) -> Iterator[Op]:
        """One micro-batch through one stage, forward or backward."""
        if source is not None:
            yield self._p2p(rank, source, rank)
        if rank in self._tensor:
            for chunk in range(self._plan.chunks):
                yield self._shared(self._tensor[rank], f"layer {chunk}")
        if rank in self._expert:
            yield self._shared(self._expert[rank], "all_to_all")
        if target is not None:
            yield self._p2p(rank, rank, target)

    def _p2p(self, rank: int, src: int, dst: int) -> Op:
        shapes = ((64, 1_024),)
        is_send = rank == src
        name = "send" if is_send else "recv"
        group = self._stages[rank]
        op = Op(group, name, shapes, shapes, "BFloat16", 3 * MS, src, dst, is_send)
        if self._plan.batched:
            op.closing = Op(group, "coalesced", (), (), "", op.span_ns, src, dst, is_send)
        return op

    def _shared(self, group: Group, what: str) -> Op:
        """The same op for all members."""
        if (op := self._ops.get((group, what))) is None:
            op = self._ops[group, what] = _collective(group, what)
        return op


def _collective(group: Group, what: str) -> Op:
    many, is_gloo = len(group.ranks), group.backend == "gloo"
    shard, whole = ((32, 1_024),), ((32 * many, 1_024),)
    match what:
        case "barrier":
            return barrier(group)
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
        case "all_to_all":
            return Op(group, "all_to_all", whole, whole, "BFloat16", 10 * MS)
        case _:
            return all_reduce(group, 64)
