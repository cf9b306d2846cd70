"""What faults do to the ranks of a simulated job, and how they are undone.

Some faults take effect immediately. Others wait until the program of their rank reaches an op (a
trap, see `tests.sim.traps`), or until its device reaches or leaves one (a snare). A fault whose op
the rank never reaches, because the job already hangs, never begins.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.sim.faults import INCURABLE, UNRECORDED, FaultKind, Injected, befall
from tests.sim.memory import Rise
from tests.sim.ops import S

if TYPE_CHECKING:
    from tests.sim.job import Job
    from tests.sim.ranks import Meeting, SimRank
    from tests.sim.recorder import Record


class Effects:
    """The faults of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._outages: list[Injected] = []
        """Network faults that begin with the next collective."""
        self._stragglers: list[Injected] = []
        self._frozen: list[Meeting] = []
        """Meetings of Gloo in which all members are present, but one is stopped."""

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
            case FaultKind.PAUSE:
                self._job.unrecorded.inject(injected)
            case kind if kind in UNRECORDED:
                self._job.unrecorded.inject(injected)
            case kind if ranks[0].alive:
                injected.culprits = frozenset(injected.fault.ranks)
                self._strike(ranks[0], kind, injected)
            case _:
                pass

    def _strike(self, rank: SimRank, kind: FaultKind, injected: Injected) -> None:
        match kind:
            case FaultKind.STOPPED:
                injected.is_idle = self._hangs(rank)
                self._stop(rank, injected)
            case FaultKind.CRASH:
                injected.is_idle = self._hangs(rank)
                befall(injected, rank, self._job.now, at_head=True)
                self._job.die(rank, None)
            case FaultKind.MEMORY_SPIKE | FaultKind.LEAK:
                self._take_memory(rank, kind, injected)
            case FaultKind.STRAGGLER:
                injected.may_name = _pipeline_of(rank)
                rank.drags.append(injected)
                self._stragglers.append(injected)
            case FaultKind.IN_COLLECTIVE_ALONE | FaultKind.DEVICE_STUCK:
                rank.snares.append(injected)
            case _:
                rank.traps.append(injected)

    def heal(self, injected: Injected) -> None:
        if injected.healed is not None:
            return
        if injected.began is None:
            for number in injected.fault.ranks:
                rank = self._job.ranks[number]
                for waiting in (rank.traps, rank.snares, rank.drags):
                    _forget(waiting, injected)
            _forget(self._outages, injected)
        elif self._is_incurable(injected):
            return
        injected.healed = self._job.now
        if injected.undo is not None:
            injected.undo()

    def _is_incurable(self, injected: Injected) -> bool:
        kind, ranks = injected.fault.kind, injected.fault.ranks
        if kind in (FaultKind.RECORDER_RESET, FaultKind.NEW_GROUP, FaultKind.PAUSE):
            return False
        is_dying = kind is FaultKind.OOM and injected.undo is None
        return kind in INCURABLE or is_dying or not all(self._job.ranks[r].alive for r in ranks)

    def is_felt(self, injected: Injected) -> bool:
        """True if the fault has begun and another rank waits for it. A rank does not wait for it if
        it never reaches the stuck op, because the job hangs elsewhere, or if it hung with the
        culprit before. For a straggler, `kept_waiting` has the waits."""
        if injected.began is None or injected.healed is not None or injected.is_idle:
            return False
        match injected.fault.kind:
            case FaultKind.STRAGGLER:
                return injected.times > 0
            case FaultKind.RECORDER_RESET | FaultKind.NEW_GROUP | FaultKind.PAUSE:
                return False
            case kind if kind in UNRECORDED and self._job.unrecorded.is_felt(injected):
                return True
            case FaultKind.MEMORY_SPIKE | FaultKind.LEAK | FaultKind.OOM:
                return True
            case FaultKind.IN_COLLECTIVE_ALONE | FaultKind.NETWORK:  # ranks that are in it wait
                return True
            case _:
                return any(
                    rank.alive and _is_at(rank, injected)
                    for rank in self._job.ranks
                    if rank.rank not in injected.culprits
                )

    def _hangs(self, rank: SimRank) -> bool:
        """True if the op on its device never ends, whatever the rank does."""
        path: set[int] = set()
        """Ranks of which each waits for the next."""
        free: set[int] = set()

        def hangs(rank: SimRank) -> bool:
            if rank.rank in path or _is_stuck(rank, self._job.now):
                return True
            if rank.head is None or rank.rank in free:
                return False
            path.add(rank.rank)
            others = (self._job.ranks[number] for number in _absent(rank.head))
            if any(not o.alive or o.stopped or o.is_held or hangs(o) for o in others):
                return True
            path.remove(rank.rank)
            free.add(rank.rank)
            return False

        return hangs(rank)

    # -- immediate -----------------------------------------------------------------------------

    def _reset(self, rank: SimRank, injected: Injected) -> None:
        if rank.alive:
            injected.began = self._job.now
            for recorder in rank.recorders.values():
                recorder.reset()

    def _stop(self, rank: SimRank, injected: Injected) -> None:
        rank.stopped = True
        rank.thread.freeze(self._job.now)
        befall(injected, rank, self._job.now, at_head=self._job.plan.backend == "gloo")
        injected.undo = partial(self._continue, rank)

    def _continue(self, rank: SimRank) -> None:
        rank.stopped = False
        rank.thread.thaw(self._job.now)
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
        injected.lasts_ns = lasts_ns
        rise = Rise(job.now, lasts_ns, most, is_own=is_leak or dice.random() < 0.7)
        rank.device.rise(rise)
        injected.undo = lambda: rise.give_back(job.now)

    # -- when a device starts an op, or an op ends ---------------------------------------------

    def blocks(self, rank: SimRank, record: Record) -> bool:
        """A kernel before the op does not end; Gloo has no kernels."""
        op = record.op
        if op.is_p2p or op.size < 2 or op.group.backend == "gloo":
            return False
        for injected in rank.snares:
            if injected.fault.kind is FaultKind.DEVICE_STUCK:
                rank.snares.remove(injected)
                befall(injected, rank, self._job.now, at_head=True)
                injected.undo = partial(self._job.start, rank)
                return True
        return False

    def keeps(self, record: Record) -> bool:
        """All other members complete it, this rank does not."""
        if record.op.is_p2p or record.op.size < 2:
            return False
        for injected in record.rank.snares:
            if injected.fault.kind is FaultKind.IN_COLLECTIVE_ALONE:
                record.rank.snares.remove(injected)
                befall(injected, record.rank, self._job.now, at_head=True)
                injected.undo = partial(self._job.finish, record)
                return True
        return False

    def holds_up(self, meeting: Meeting) -> bool:
        """No member completes it, for now."""
        if self._outages and not meeting.op.is_p2p and meeting.size > 1:
            injected = self._outages.pop(0)
            befall(injected, meeting.present[0].rank, self._job.now, at_head=True)
            injected.undo = partial(self._job.complete, meeting)
            return True
        if meeting.op.group.backend == "gloo" and any(r.rank.stopped for r in meeting.present):
            self._frozen.append(meeting)
            return True
        return False

    def met(self, meeting: Meeting) -> None:
        """All members have joined. They may have waited for a straggler."""
        late = [
            straggler
            for straggler in self._stragglers
            if straggler.began is not None and straggler.healed is None
        ]
        if not late or meeting.op.is_p2p or meeting.size < 2:
            return
        *_, before, last = by_time = sorted(meeting.present, key=lambda record: record.came_at)
        alone = last.came_at - max(before.came_at, last.seat.freed_at)
        mean = last.came_at - (by_time[0].came_at + before.came_at) // 2
        step_ns = self._job.plan.step_ns
        for injected in late:
            is_it = last.rank.rank in injected.culprits
            if is_it and alone > step_ns // 10:
                injected.kept_waiting.append((meeting.op.group, last.came_at))
            elif not is_it and mean > step_ns // 20:
                injected.rivals.append((meeting.op.group, last.came_at))

    # -- when a step begins --------------------------------------------------------------------

    def late_ns(self, rank: SimRank) -> int:
        """By how much a straggler is late."""
        late = 0
        for injected in list(rank.drags):
            if injected.fault.kind is FaultKind.PAUSE:
                late += self._job.unrecorded.late_ns(rank, injected)
                continue
            if injected.began is None:
                injected.began = self._job.now
                injected.undo = partial(_forget, rank.drags, injected)
            injected.times += 1
            late += round(self._job.plan.step_ns * self._job.dice.uniform(0.3, 0.8))
        return late

    # -- hidden waits --------------------------------------------------------------------------

    def look_for_hidden(self) -> None:
        """A rank that waits in a send or receive that no recorder shows looks like a rank that does
        not join. From recorders alone, naming it is no mistake."""
        hangs = [
            injected
            for injected in self._job.injected
            if injected.began and injected.healed is None
        ]
        if not hangs:
            return
        long_ago = self._job.now - 2 * self._job.plan.step_ns
        hidden = frozenset(
            rank.rank
            for rank in self._job.ranks
            if rank.head is not None and rank.head.op.is_p2p and rank.head.ready_at < long_ago
        )
        for injected in hangs:
            injected.hidden |= hidden - injected.culprits


def _forget(known: list[Injected], injected: Injected) -> None:
    if injected in known:
        known.remove(injected)


def _is_stuck(rank: SimRank, now: int) -> bool:
    """True if the op on its device does not end although no member is missing."""
    if (head := rank.head) is None:
        return False
    if (meeting := head.meeting) is None or meeting.is_broken or not meeting.present:
        return True
    full = len(meeting.present) == meeting.size
    return full and now > meeting.ready_at + meeting.op.span_ns


def _absent(head: Record) -> set[int]:
    """The members whose device is not at it."""
    op, meeting = head.op, head.meeting
    here = {record.rank.rank for record in meeting.present} if meeting else set()
    return set((op.src, op.dst) if op.is_p2p else op.group.ranks) - here


def _is_at(rank: SimRank, injected: Injected) -> bool:
    """Its device is at the stuck op."""
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
