"""Faults of a simulated job, and what an expert would conclude about each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tests.sim.ops import Group, Tasks
from tests.sim.programs import JobPlan

if TYPE_CHECKING:
    from tests.sim.job import Job
    from tests.sim.ranks import SimRank


class FaultKind(StrEnum):
    CPU_STUCK = "cpu_stuck"
    GIL_HELD = "gil_held"
    """Like `CPU_STUCK`, but the tap's thread is stopped too."""
    STOPPED = "stopped"
    """SIGSTOP: neither tap nor socket answer."""
    CRASH = "crash"
    """SIGKILL: no exit record."""
    CRASH_RECORDED = "crash_recorded"
    """An uncaught exception: an exit record."""
    IN_COLLECTIVE_ALONE = "in_collective_alone"
    DEVICE_STUCK = "device_stuck"
    """Only drawn if the recorder's timing is on: otherwise it looks like `NETWORK`."""
    MISMATCH = "mismatch"
    ORDER = "order"
    """One rank enters two groups in the opposite order."""
    NETWORK = "network"
    """All members have joined, none completes."""
    P2P_STUCK = "p2p_stuck"
    """A pipeline stage never sends."""
    STRAGGLER = "straggler"
    MEMORY_SPIKE = "memory_spike"
    LEAK = "leak"
    OOM = "oom"
    RECORDER_RESET = "recorder_reset"
    NEW_GROUP = "new_group"
    """A subgroup is made while training: no fault, and it must not look like one."""
    # Only in worlds in which the service asks ranks for their stacks:
    POLL = "poll"
    """A rank looks for a file again and again."""
    LOCK = "lock"
    """A rank reads while it holds a lock, and others wait for that."""
    CALL = "call"
    """All ranks but one are in a call that leaves no record."""
    RECV_CIRCLE = "recv_circle"
    """Ranks of a pipeline of Gloo wait in receives for each other."""
    PAUSE = "pause"
    """All ranks compute for a long time: no fault."""
    # Only in worlds with more hidden waits:
    FILELOCK = "filelock"
    """Like `LOCK`, but the others look for the lock again and again."""
    POLL_ALL = "poll_all"
    """All ranks but one look for a file that this one must write. No op is in flight."""
    DEVICE_WAIT = "device_wait"
    """All ranks but one wait for their devices, which replay a graph: no recorder shows its ops."""
    NEW_GROUP_CIRCLE = "new_group_circle"
    """Some ranks make a group, for which all are needed; the others go on to other collectives."""
    STANDSTILL = "standstill"
    """All ranks read from one mount, which does not answer: no rank is the cause."""
    SERVING = "serving"
    """All ranks wait for a request: no fault."""


ALL_BUT_ONE: Final = frozenset({FaultKind.CALL, FaultKind.POLL_ALL, FaultKind.DEVICE_WAIT})
"""In these, all ranks of the job wait for the one that is named first."""
HIDDEN: Final = (
    FaultKind.FILELOCK,
    FaultKind.POLL_ALL,
    FaultKind.DEVICE_WAIT,
    FaultKind.NEW_GROUP_CIRCLE,
    FaultKind.STANDSTILL,
    FaultKind.SERVING,
)
UNRECORDED: Final = frozenset({FaultKind.LOCK, FaultKind.CALL, FaultKind.RECV_CIRCLE, *HIDDEN})
"""Faults of several ranks, see `tests.sim.unrecorded`."""
ASKED: Final = (
    FaultKind.LOCK,
    FaultKind.CALL,
    FaultKind.RECV_CIRCLE,
    FaultKind.POLL,
    FaultKind.PAUSE,
)
_DRAWN: Final = tuple(kind for kind in FaultKind if kind not in (*ASKED, *HIDDEN))

INCURABLE: Final = frozenset(
    {FaultKind.CRASH, FaultKind.CRASH_RECORDED, FaultKind.MISMATCH, FaultKind.ORDER}
)
"""Faults that end only with the job, once they have begun."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    ranks: tuple[int, ...]
    """The ranks with the fault, which are the first cause; none for a network fault. For a new
    group, its members. For a call, all ranks, the one that does not come first."""


@dataclass(slots=True, eq=False)
class Injected:
    """A fault that was injected, and its effects."""

    fault: Fault
    at: int
    """True time of the injection."""
    began: int | None = None
    """True time when it took effect: the rank did not join, or the op hung."""
    healed: int | None = None
    group: str = ""
    """Name of the group that is stuck; empty if none is."""
    seq: int = -1
    """Seq of the stuck collective; -1 for a send or a receive."""
    culprits: frozenset[int] = frozenset()
    """The ranks that an expert would name."""
    may_name: frozenset[int] = frozenset()
    """Other ranks that may be named: the rest of a circle, and the other of two ranks that do not
    match."""
    hidden: frozenset[int] = frozenset()
    """Ranks that wait in ops that no recorder shows. They may be named; for sure only with Gloo:
    the recorder of hooks shows that a rank may be in a batch of sends."""
    is_idle: bool = False
    """The job already hung at that point, so the fault had no effect."""
    times: int = 0
    """How often a straggler has been late."""
    kept_waiting: list[tuple[Group, int]] = field(default_factory=list, repr=False)
    """The collectives in which all others waited for it alone: group, and when it joined."""
    rivals: list[tuple[Group, int]] = field(default_factory=list, repr=False)
    """The collectives in which others waited for a rank that the straggler may have delayed."""
    lasts_ns: int = 0
    """How long memory rises."""
    undo: Callable[[], None] | None = field(default=None, repr=False)
    """Heals it."""
    step: int = 0
    """From which step on its ranks are caught, see `tests.sim.unrecorded`."""


def befall(injected: Injected, rank: SimRank, now: int, *, at_head: bool = False) -> None:
    """The fault takes effect: `at_head` on the op of the rank's device, else on the next op of its
    program."""
    injected.began = now
    if at_head and rank.head is not None:
        op, seq = rank.head.op, rank.head.seq
    else:
        op = rank.next_op()
        seq = rank.seats[op.group].seq + 1
    injected.group, injected.seq = op.group.name, -1 if op.is_p2p else seq


def draw_fault(
    dice: random.Random, plan: JobPlan, job: Job, *, asks: bool = False, hidden: bool = False
) -> Fault | None:
    """A fault that can happen to this job now; None if the fault that was drawn cannot. `asks`: it
    may be one that no recorder shows; `hidden`: one of `HIDDEN`, too."""
    if hidden and dice.random() < 0.6:
        return _draw_hidden(dice, plan, job)
    if asks and dice.random() < 0.5:
        return _draw_asked(dice, plan, job)
    kind = dice.choice(_DRAWN)
    if kind is FaultKind.NETWORK:
        return Fault(kind, ())
    able = [rank.rank for rank in job.ranks if _is_able(kind, plan, rank)]
    victims = {
        rank for injected in job.injected if injected.healed is None for rank in injected.culprits
    }
    if not (able := [rank for rank in able if rank not in victims]):
        return None
    match kind:
        case FaultKind.NEW_GROUP if len(able) < plan.world or plan.world < 2:
            return None
        case FaultKind.NEW_GROUP:
            many = dice.randrange(2, min(plan.world, 16) + 1)
        case FaultKind.RECORDER_RESET:
            many = dice.choice((1, len(able)))
        case _:
            many = 1
    return Fault(kind, tuple(sorted(dice.sample(able, many))))


def _draw_asked(dice: random.Random, plan: JobPlan, job: Job) -> Fault | None:
    able, free = _free(job)
    is_whole = len(free) == plan.world
    kinds = [FaultKind.LOCK] * 3 + [FaultKind.POLL] * 2 + [FaultKind.PAUSE]
    kinds += [FaultKind.CALL] * 3 * is_whole
    if plan.backend == "gloo" and plan.pipeline > 1:
        kinds += [FaultKind.RECV_CIRCLE] * 3
    match kind := dice.choice(kinds):
        case FaultKind.POLL if free:
            return Fault(kind, (dice.choice(free),))
        case FaultKind.LOCK if len(free) > 2:
            return _draw_lock(dice, kind, plan, free)
        case FaultKind.CALL:
            return _draw_late(dice, kind, able)
        case FaultKind.RECV_CIRCLE:
            stride = plan.tensor * plan.data
            circle = range(dice.randrange(stride), plan.world, stride)
            return Fault(kind, tuple(circle)) if set(circle) <= set(free) else None
        case FaultKind.PAUSE if is_whole:
            return Fault(kind, tuple(able))
        case _:
            return None


def _draw_hidden(dice: random.Random, plan: JobPlan, job: Job) -> Fault | None:
    _, free = _free(job)
    is_whole = len(free) == plan.world > 2
    kinds = [kind for kind in HIDDEN if kind is not FaultKind.DEVICE_WAIT or plan.backend != "gloo"]
    match kind := dice.choice(kinds):
        case FaultKind.FILELOCK if len(free) > 2:
            return _draw_lock(dice, kind, plan, free)
        case _ if not is_whole:
            return None
        case FaultKind.NEW_GROUP_CIRCLE:
            return Fault(kind, tuple(sorted(dice.sample(free, dice.randrange(1, plan.world)))))
        case kind if kind in ALL_BUT_ONE:
            return _draw_late(dice, kind, free)
        case _:
            return Fault(kind, tuple(free))


def _free(job: Job) -> tuple[list[int], list[int]]:
    """The ranks that go on or can, and those of them that no fault holds or waits for."""
    able = [rank for rank in job.ranks if rank.alive and not rank.stopped]
    free = [rank.rank for rank in able if not rank.is_held and not rank.traps]
    return [rank.rank for rank in able], free


def _draw_lock(dice: random.Random, kind: FaultKind, plan: JobPlan, free: list[int]) -> Fault:
    first = dice.choice(free)
    near = [n for n in free if n // plan.ranks_per_node == first // plan.ranks_per_node]
    among = near if len(near) > 1 and dice.random() < 0.8 else free
    many = min(dice.randrange(2, 5), len(among), plan.world - 1)
    return Fault(kind, tuple(sorted(dice.sample(among, many))))


def _draw_late(dice: random.Random, kind: FaultKind, able: list[int]) -> Fault:
    late = dice.choice(able)
    return Fault(kind, (late, *(number for number in able if number != late)))


def _is_able(kind: FaultKind, plan: JobPlan, rank: SimRank) -> bool:
    if not rank.alive or rank.stopped:
        return False
    match kind:
        case FaultKind.DEVICE_STUCK:
            return plan.timing
        case FaultKind.ORDER:
            return any(swaps(rank.program.step, at) for at in range(len(rank.program.step)))
        case FaultKind.P2P_STUCK:
            return any(task.op is not None and task.op.is_send for task in rank.program.step)
        case _:
            return True


def swaps(tasks: Tasks, at: int) -> frozenset[int]:
    """The ranks that would wait for each other if one did this and the next task of its program in
    the opposite order; none if that order is harmless."""
    if at + 1 >= len(tasks):
        return frozenset()
    one, other = tasks[at].op, tasks[at + 1].op
    if one is None or other is None or one.is_p2p or other.is_p2p or one.group is other.group:
        return frozenset()
    both = frozenset(one.group.ranks) & frozenset(other.group.ranks)
    return both if len(both) > 1 else frozenset()
