"""Faults that wait until the program of their rank comes to an op, and their effects."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.sim import places
from tests.sim.faults import UNRECORDED, FaultKind, Injected, befall, swaps
from tests.sim.memory import Rise
from tests.sim.ops import MS, Op, S, Task
from tests.sim.threads import Mode

if TYPE_CHECKING:
    from tests.sim.job import Job
    from tests.sim.ranks import SimRank

_UNWINDS_NS: Final = 1_200 * MS
"""From a failed allocation to the end of the process."""


class Traps:
    """The traps of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def spring(self, rank: SimRank) -> bool:
        """Trigger the traps of a rank; True if its program does not go on."""
        for injected in list(rank.traps):
            op = rank.tasks[rank.at].op
            if injected.fault.kind in UNRECORDED:
                if self._job.unrecorded.is_due(rank, injected):
                    rank.traps.remove(injected)
                    self._job.unrecorded.catch(rank, injected)
                    return True
            elif op is not None and op.size > 1 and _springs(injected.fault.kind, rank, op):
                rank.traps.remove(injected)
                befall(injected, rank, self._job.now)
                if self._has_caught(rank, op, injected):
                    return True
        return False

    def _has_caught(self, rank: SimRank, op: Op, injected: Injected) -> bool:
        match injected.fault.kind:
            case FaultKind.MISMATCH:
                self._spoil(rank, op, injected)
                return False
            case FaultKind.ORDER:
                injected.may_name = swaps(rank.tasks, rank.at) - injected.culprits
                _replace_tasks(rank, rank.tasks[rank.at + 1], rank.tasks[rank.at])
                return False
            case FaultKind.OOM:
                self._exhaust(rank, injected)
                return False
            case FaultKind.CRASH_RECORDED:
                self._job.die(rank, ("exception", "RuntimeError: CUDA error: an illegal memory"))
            case kind:
                rank.gil_held = kind is FaultKind.GIL_HELD
                dice = random.Random(f"held/{injected.at}/{rank.rank}/{self._job.plan.step_ns}")
                place = places.polling() if kind is FaultKind.POLL else places.drawn(dice)
                self._job.hold(rank, places.computing() if rank.gil_held else place)
                injected.undo = partial(self._release, rank)
        return True

    def _release(self, rank: SimRank) -> None:
        rank.is_held = rank.gil_held = False
        rank.place = None
        rank.thread.go(Mode.RUNS, self._job.now)
        self._job.after(0, self._job.resume, rank)

    def _spoil(self, rank: SimRank, op: Op, injected: Injected) -> None:
        """The rank passes another op, size or dtype than its peers."""
        dice = self._job.dice
        ways = ["op"]
        if op.inputs:
            ways.append("dtype")
        if op.name == "all_reduce":
            ways.append("size")
        match dice.choice(ways):
            case "op":
                foul = replace(op, name="broadcast")
            case "dtype":
                foul = replace(op, dtype="Half")
            case _:
                shapes = tuple((*shape[:-1], shape[-1] + 8) for shape in op.inputs)
                foul = replace(op, inputs=shapes, outputs=shapes)
        foul.is_foul, foul.text, foul.parts = True, b"", ()
        _replace_tasks(rank, replace(rank.tasks[rank.at], op=foul))
        if op.size == 2:  # nothing shows which of the two is wrong
            injected.may_name = frozenset(op.group.ranks) - injected.culprits

    def _exhaust(self, rank: SimRank, injected: Injected) -> None:
        """Memory rises until an allocation fails, and the exception ends the program."""
        job = self._job
        injected.group, injected.seq = "", -1
        lasts_ns = job.dice.randrange(2 * S, 15 * S)
        rise = Rise(job.now, lasts_ns, rank.device.room(job.now), is_own=True)
        rank.device.rise(rise)
        injected.undo = lambda: rise.give_back(job.now)
        job.after(lasts_ns, partial(self._fail, rank), injected)

    def _fail(self, rank: SimRank, injected: Injected) -> None:
        job = self._job
        if injected.healed is not None or not rank.alive:
            return
        if rank.stopped:
            job.after(S, partial(self._fail, rank), injected)
            return
        words = f"OutOfMemoryError: {rank.device.fail(job.now, job.wall_ns(rank.node))}"
        began = injected.began
        befall(injected, rank, job.now)
        injected.began, injected.undo = began, None
        job.hold(rank, places.computing())
        job.after(_UNWINDS_NS, partial(self._died, words), rank)

    def _died(self, words: str, rank: SimRank) -> None:
        if rank.alive:
            self._job.die(rank, ("exception", words))


def _springs(kind: FaultKind, rank: SimRank, op: Op) -> bool:
    match kind:
        case FaultKind.P2P_STUCK:
            return op.is_send
        case FaultKind.MISMATCH:
            return not op.is_p2p and not op.is_foul
        case FaultKind.ORDER:
            return bool(swaps(rank.tasks, rank.at))
        case _:
            return True


def _replace_tasks(rank: SimRank, *tasks: Task) -> None:
    """From the present task on; in this step only."""
    at = rank.at
    rank.tasks = (*rank.tasks[:at], *tasks, *rank.tasks[at + len(tasks) :])
