"""What faults do to the ranks of a simulated job, and how they are undone.

Some take effect at once. Others wait for their rank: for its program to come to an op (a trap), or
for its device to come to one or to leave it (a snare). One that the rank never gets to, because the
job hangs already, never begins.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.sim.faults import INCURABLE, FaultKind, Injected, swaps
from tests.sim.memory import Rise
from tests.sim.programs import MS, Group, Op, S, Task, all_reduce

if TYPE_CHECKING:
    from tests.sim.job import Job
    from tests.sim.ranks import Meeting, SimRank
    from tests.sim.recorder import Record

_TRAPS: Final = frozenset(
    {
        FaultKind.CPU_STUCK,
        FaultKind.GIL_HELD,
        FaultKind.CRASH_RECORDED,
        FaultKind.MISMATCH,
        FaultKind.ORDER,
        FaultKind.P2P_STUCK,
        FaultKind.OOM,
    }
)
_OFTEN: Final = 20
"""A straggler that was late so many times can be told from chance."""
_UNWINDS_NS: Final = 1_200 * MS
"""From a failed allocation to the end of the process."""


class Effects:
    """The faults of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._outages: list[Injected] = []
        """Networks that fail with the next collective."""
        self._frozen: list[Meeting] = []
        """Of Gloo, complete but for a member that is stopped."""

    # -- injection and healing -----------------------------------------------------------------

    def inject(self, injected: Injected) -> None:
        ranks = [self._job.ranks[rank] for rank in injected.fault.ranks]
        match injected.fault.kind:
            case FaultKind.NETWORK:
                self._outages.append(injected)
            case FaultKind.NEW_GROUP:
                injected.group = self._job.make_group(injected).name
            case FaultKind.RECORDER_RESET:
                for rank in ranks:
                    self._reset(rank, injected)
            case kind if ranks[0].alive:
                injected.culprits = frozenset(injected.fault.ranks)
                self._befall(ranks[0], kind, injected)
            case _:
                pass

    def _befall(self, rank: SimRank, kind: FaultKind, injected: Injected) -> None:
        match kind:
            case FaultKind.STOPPED:
                self._stop(rank, injected)
            case FaultKind.CRASH:
                self._begin(injected, rank, at_head=True)
                self._job.die(rank, None)
            case FaultKind.MEMORY_SPIKE | FaultKind.LEAK:
                self._take_memory(rank, kind, injected)
            case FaultKind.STRAGGLER:
                injected.may_name = _pipeline_of(rank)
                rank.drags.append(injected)
            case FaultKind.IN_COLLECTIVE_ALONE | FaultKind.DEVICE_STUCK:
                rank.snares.append(injected)
            case _ if kind in _TRAPS:
                rank.traps.append(injected)

    def heal(self, injected: Injected) -> None:
        if injected.healed is not None:
            return
        if injected.began is None:
            for number in injected.fault.ranks:
                rank = self._job.ranks[number]
                for waiting in (rank.traps, rank.snares, rank.drags):
                    _remove(waiting, injected)
            _remove(self._outages, injected)
        elif self._is_incurable(injected):
            return
        injected.healed = self._job.now
        if injected.undo is not None:
            injected.undo()

    def _is_incurable(self, injected: Injected) -> bool:
        kind, ranks = injected.fault.kind, injected.fault.ranks
        if kind in (FaultKind.RECORDER_RESET, FaultKind.NEW_GROUP):
            return False
        is_dying = kind is FaultKind.OOM and injected.undo is None
        return kind in INCURABLE or is_dying or not all(self._job.ranks[r].alive for r in ranks)

    def is_felt(self, injected: Injected) -> bool:
        """It has begun, and somebody waits for it. Who never gets to what is stuck, because the
        job hangs elsewhere, does not; nor does a straggler that was late a few times only."""
        if injected.began is None or injected.healed is not None:
            return False
        match injected.fault.kind:
            case FaultKind.STRAGGLER:
                return injected.times >= _OFTEN
            case FaultKind.RECORDER_RESET | FaultKind.NEW_GROUP:
                return False
            case FaultKind.MEMORY_SPIKE | FaultKind.LEAK | FaultKind.OOM:
                return True
            case FaultKind.IN_COLLECTIVE_ALONE | FaultKind.NETWORK:
                return True
            case _:
                return any(
                    rank.alive and _is_at(rank, injected)
                    for rank in self._job.ranks
                    if rank.rank not in injected.culprits
                )

    def _begin(self, injected: Injected, rank: SimRank, *, at_head: bool = False) -> None:
        """`at_head`: what the rank was at goes with it, not only what it would have come to."""
        injected.began = self._job.now
        op, seq = rank.next_op(), 0
        if at_head and rank.head is not None:
            op, seq = rank.head.op, rank.head.seq
        else:
            seq = rank.seats[op.group].seq + 1
        injected.group, injected.seq = op.group.name, -1 if op.is_p2p else seq

    # -- at once -------------------------------------------------------------------------------

    def _reset(self, rank: SimRank, injected: Injected) -> None:
        if rank.alive:
            injected.began = self._job.now
            for recorder in rank.recorders.values():
                recorder.reset()

    def _stop(self, rank: SimRank, injected: Injected) -> None:
        rank.stopped = True
        self._begin(injected, rank, at_head=self._job.plan.backend == "gloo")
        injected.undo = partial(self._continue, rank)

    def _continue(self, rank: SimRank) -> None:
        rank.stopped = False
        if rank.is_due:
            rank.is_due = False
            self._job.after(0, self._job.resume, rank)
        frozen, self._frozen = self._frozen, []
        for meeting in frozen:
            self._job.after(meeting.op.span_ns, self._job.complete, meeting)

    def _take_memory(self, rank: SimRank, kind: FaultKind, injected: Injected) -> None:
        job, dice = self._job, self._job.dice
        injected.began = job.now
        most = round(rank.device.room(job.now) * dice.uniform(0.3, 0.9))
        is_leak = kind is FaultKind.LEAK
        lasts_ns = dice.randrange(30 * S, 90 * S) if is_leak else dice.randrange(S // 2, 5 * S)
        rise = Rise(job.now, lasts_ns, most, is_own=is_leak or dice.random() < 0.7)
        rank.device.rise(rise)
        injected.undo = partial(self._give_back, rise)

    def _give_back(self, rise: Rise) -> None:
        rise.until = self._job.now

    # -- when the program comes to an op -------------------------------------------------------

    def spring(self, rank: SimRank) -> bool:
        """The traps of a rank. True when its program does not go on."""
        op = rank.tasks[rank.at].op
        if op is None or op.size < 2:
            return False
        for injected in list(rank.traps):
            if self._springs(rank, op, injected):
                rank.traps.remove(injected)
                if self._sprung(rank, op, injected):
                    return True
        return False

    def _springs(self, rank: SimRank, op: Op, injected: Injected) -> bool:
        match injected.fault.kind:
            case FaultKind.P2P_STUCK:
                return op.is_send
            case FaultKind.MISMATCH:
                return not op.is_p2p and op is rank.tasks[rank.at].op and not op.is_foul
            case FaultKind.ORDER:
                return bool(swaps(rank.tasks, rank.at))
            case _:
                return True

    def _sprung(self, rank: SimRank, op: Op, injected: Injected) -> bool:
        self._begin(injected, rank)
        match injected.fault.kind:
            case FaultKind.CRASH_RECORDED:
                self._job.die(rank, ("exception", "RuntimeError: CUDA error: an illegal memory"))
            case FaultKind.MISMATCH:
                self._spoil(rank, op, injected)
                return False
            case FaultKind.ORDER:
                injected.may_name = swaps(rank.tasks, rank.at) - injected.culprits
                tasks = list(rank.tasks)
                tasks[rank.at : rank.at + 2] = tasks[rank.at + 1], tasks[rank.at]
                rank.tasks = tuple(tasks)
                return False
            case FaultKind.OOM:
                self._exhaust(rank, injected)
                return False
            case kind:
                rank.is_held = True
                rank.gil_held = kind is FaultKind.GIL_HELD
                injected.undo = partial(self._release, rank)
        return True

    def _release(self, rank: SimRank) -> None:
        rank.is_held = rank.gil_held = False
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
                foul = replace(op, name="broadcast" if op.name != "broadcast" else "reduce")
            case "dtype":
                foul = replace(op, dtype="Half")
            case _:
                shapes = tuple((*shape[:-1], shape[-1] + 8) for shape in op.inputs)
                foul = replace(op, inputs=shapes, outputs=shapes)
        foul.is_foul, foul.text = True, b""
        tasks = list(rank.tasks)
        tasks[rank.at] = Task(foul, tasks[rank.at].cpu_ns, tasks[rank.at].device_ns)
        rank.tasks = tuple(tasks)
        if op.size == 2:  # nothing tells whose is wrong
            injected.may_name = frozenset(op.group.ranks) - injected.culprits

    def _exhaust(self, rank: SimRank, injected: Injected) -> None:
        """Memory rises until an allocation fails, and the exception ends the program."""
        job = self._job
        injected.group, injected.seq = "", -1
        lasts_ns = job.dice.randrange(2 * S, 15 * S)
        rise = Rise(job.now, lasts_ns, rank.device.room(job.now), is_own=True)
        rank.device.rise(rise)
        injected.undo = partial(self._give_back, rise)
        job.after(lasts_ns, partial(self._fail, rank), injected)

    def _fail(self, rank: SimRank, injected: Injected) -> None:
        job = self._job
        if injected.healed is not None or not rank.alive:
            return
        if rank.stopped:
            job.after(S, partial(self._fail, rank), injected)
            return
        words = rank.device.fail(job.now, job.wall_ns(rank.node))
        self._begin_dying(rank, injected, f"OutOfMemoryError: {words}")

    def _begin_dying(self, rank: SimRank, injected: Injected, words: str) -> None:
        rank.is_held = True
        injected.undo = None
        began = injected.began
        self._begin(injected, rank)
        injected.began = began
        self._job.after(_UNWINDS_NS, partial(self._died, words), rank)

    def _died(self, words: str, rank: SimRank) -> None:
        if rank.alive:
            self._job.die(rank, ("exception", words))

    # -- when the device comes to an op, or an op ends -----------------------------------------

    def blocks(self, rank: SimRank, record: Record) -> bool:
        """A kernel before the op does not end."""
        if record.op.is_p2p or record.op.size < 2:
            return False
        for injected in rank.snares:
            if injected.fault.kind is FaultKind.DEVICE_STUCK:
                rank.snares.remove(injected)
                self._begin(injected, rank, at_head=True)
                injected.undo = partial(self._job.start, rank)
                return True
        return False

    def keeps(self, record: Record) -> bool:
        """All others complete it, but not this rank."""
        if record.op.is_p2p or record.op.size < 2:
            return False
        for injected in record.rank.snares:
            if injected.fault.kind is FaultKind.IN_COLLECTIVE_ALONE:
                record.rank.snares.remove(injected)
                self._begin(injected, record.rank, at_head=True)
                injected.undo = partial(self._job.finish, record)
                return True
        return False

    def holds_up(self, meeting: Meeting) -> bool:
        """Nobody completes it, for now."""
        if self._outages and not meeting.op.is_p2p and meeting.size > 1:
            injected = self._outages.pop(0)
            self._begin(injected, meeting.present[0].rank, at_head=True)
            injected.undo = partial(self._job.complete, meeting)
            return True
        if meeting.op.group.backend == "gloo" and any(r.rank.stopped for r in meeting.present):
            self._frozen.append(meeting)
            return True
        return False

    # -- when a step begins --------------------------------------------------------------------

    def late_ns(self, rank: SimRank) -> int:
        """By how much a straggler is."""
        late = 0
        for injected in rank.drags:
            if injected.began is None:
                injected.began = self._job.now
                injected.undo = partial(_remove, rank.drags, injected)
            injected.times += 1
            late += round(self._job.plan.step_ns * self._job.dice.uniform(0.3, 0.8))
        return late

    def op_of(self, group: Group) -> Op:
        """What a group is used for that was made while training; the same for all members."""
        return all_reduce(group, 16)

    # -- what nobody can see -------------------------------------------------------------------

    def look_for_hidden(self) -> None:
        """Who waits in a send or receive of Gloo, which no recorder tells, looks like who does not
        come: to name it is no mistake of whoever only sees what recorders tell."""
        hangs = [one for one in self._job.injected if one.began and one.healed is None]
        if not hangs:
            return
        long_ago = self._job.now - 2 * self._job.plan.step_ns
        hidden = frozenset(
            rank.rank
            for rank in self._job.ranks
            if rank.head is not None and rank.head.op.is_p2p and rank.head.ready_at < long_ago
        )
        for injected in hangs:
            injected.may_name |= hidden - injected.culprits


def _remove(those: list[Injected], injected: Injected) -> None:
    those[:] = [one for one in those if one is not injected]


def _is_at(rank: SimRank, injected: Injected) -> bool:
    """Its device has come to what is stuck, and is there still."""
    head = rank.head
    if head is None or not head.ready_at or head.op.group.name != injected.group:
        return False
    if injected.seq >= 0:
        return head.seq == injected.seq
    return head.op.is_p2p and not {head.op.src, head.op.dst}.isdisjoint(injected.culprits)


def _pipeline_of(rank: SimRank) -> frozenset[int]:
    """Ranks that a straggler makes late while they wait in sends and receives."""
    groups = {task.op.group for task in rank.program.step if task.op and task.op.is_p2p}
    return frozenset(member for group in groups for member in group.ranks) - {rank.rank}
