"""The programs of a simulated job: its size, its groups, and one training step of each rank.

A step is a pipeline's: micro-batches forward and then backward, with the collectives of tensor and
expert parallelism inside each stage, and those of data parallelism at the end. Its order has no
circles even if every send waits for its receive, so a job without faults never stops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.sim.ops import DRAIN, ENQUEUE_NS, MS, Group, Op, Program, S, Task, collective, message

_WORLDS: Final = (4, *[8] * 8, *[12] * 4, *[16] * 6, 24, 24, 32, 32, 64)
_DATA_SHARE: Final = 0.15
"""Share of a step in which the program makes its input."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything about a job that is fixed before it starts."""

    world: int
    ranks_per_node: int
    backend: str
    """``nccl`` or ``gloo``."""
    timing: bool
    """The recorder's timing is on: it records ``started`` (NCCL only)."""
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
    """Data parallelism reduces and gathers shards, instead of all of it."""
    norm: bool
    """Each step ends with an all_reduce over the whole world."""
    batched: bool
    """Sends and receives are issued in batches (NCCL): each entry is followed by a closing one."""
    uneven: bool
    """Shards differ in size: gathering them is one collective of several entries (NCCL)."""
    mixed: bool
    """Checkpoints are synchronized over Gloo, whatever the backend of the rest."""
    checkpoint_every: int
    """In steps."""
    checkpoint_ns: int
    hooks: str = ""
    """How hooks of torch 2.15 record the job (``nccl2``), see `tests.sim.hooks`; empty: its backend
    records itself."""
    eager: bool = False
    """Whatever issues an op finds the ends of earlier ones of its group, as in nccl2; otherwise
    only the watchdog looks."""
    durations: bool = False
    """Hooks get the duration of each op (``late`` only)."""

    @property
    def nodes(self) -> int:
        return -(-self.world // self.ranks_per_node)

    @property
    def hides_p2p(self) -> bool:
        """True if ranks wait in sends and receives that no recorder shows."""
        hides = self.batched if self.hooks == "late" else self.hooks == "issue"
        return (self.backend == "gloo" or hides) and self.pipeline > 1

    def hooked(self, form: str, *, eager: bool = False) -> JobPlan:
        """The same job with nccl2; `form` as `hooks`."""
        return replace(
            self, backend="nccl2", timing=False, hooks=form,
            eager=eager and form == "late", durations=self.timing and form == "late",
        )  # fmt: skip


def draw_plan(dice: random.Random, *, world: int | None = None) -> JobPlan:
    """A job of 4 to 64 ranks, seldom of a thousand or two; or of `world`."""
    if world is None:
        usual = dice.random() > 0.0007
        world = dice.choice(_WORLDS if usual else (512, 1_024, 2_048))
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
        uneven=backend == "nccl" and 1 < data <= 4 and dice.random() < 0.3,
        mixed=backend == "nccl" and dice.random() < 0.25,
        checkpoint_every=dice.randrange(15, 60),
        checkpoint_ns=dice.randrange(2 * S, 6 * S),
    )


def _degree(dice: random.Random, of: int, degrees: tuple[int, ...]) -> int:
    return dice.choice([degree for degree in degrees if of % degree == 0] or [1])


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
        """Named as torch does it: by a number that all ranks count alike."""
        name = str(self._names)
        self._names += 1
        return Group(name, desc, tuple(ranks), backend or self._plan.backend)

    def _groups(
        self, desc: str, key: Callable[[int], object], *, when: bool = True
    ) -> dict[int, Group]:
        """One group for all ranks of the same key, by rank; no group of a single rank."""
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
            prologue=(*self._timed(iter([*laps, together]), 100 * MS), DRAIN),
            step=(*self._timed(self._step(rank), self._plan.step_ns), DRAIN),
            checkpoint=(Task(saved, self._plan.checkpoint_ns, 0), DRAIN),
        )

    def _timed(self, ops: Iterator[Op], whole_ns: int) -> Iterator[Task]:
        """`ops`, with the work of a step spread among them."""
        them = list(ops)
        share_ns = round(whole_ns * (1 - _DATA_SHARE) / max(len(them), 1))
        for at, op in enumerate(them):
            cpu_ns = ENQUEUE_NS if at else round(whole_ns * _DATA_SHARE)
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
                gather = "all_gather_uneven" if plan.uneven else "all_gather"
                yield self._shared(self._data[rank], gather)
            else:
                yield self._shared(self._data[rank], "gradients")
        if plan.norm:
            yield self._shared(self._world, "norm")

    def _pass(self, rank: int, source: int | None, target: int | None) -> Iterator[Op]:
        """One micro-batch through one stage, forward or backward."""
        if source is not None:
            yield self._message(rank, source, rank)
        if rank in self._tensor:
            for chunk in range(self._plan.chunks):
                yield self._shared(self._tensor[rank], f"layer {chunk}")
        if rank in self._expert:
            yield self._shared(self._expert[rank], "all_to_all")
        if target is not None:
            yield self._message(rank, rank, target)

    def _message(self, rank: int, src: int, dst: int) -> Op:
        group = self._stages[rank]
        return message(group, src, dst, is_send=rank == src, batched=self._plan.batched)

    def _shared(self, group: Group, what: str) -> Op:
        """The same op for all members."""
        if (op := self._ops.get((group, what))) is None:
            op = self._ops[group, what] = collective(group, what)
        return op
