"""One attempt of a simulated training job: its ranks and their Flight Recorders, nothing of frd.

Event-driven, in integer nanoseconds of true time, and deterministic: the same plan, clocks and dice
give the same job, byte for byte. A rank does not know the faults of other ranks; which rank waits
for which follows from the collectives alone. `tests.sim.effects` has what a fault does to a rank.
"""

from __future__ import annotations

import heapq
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from frd.model import NodeNs
from frd_agent import tap
from frd_agent.ranks.tap_files import ExitRecord
from tests.sim import hooks
from tests.sim.effects import Effects
from tests.sim.faults import Fault, Injected
from tests.sim.hooks import HookRecorder
from tests.sim.memory import Memory
from tests.sim.ops import ENQUEUE_NS, MS, Group, Op, S, Task, all_reduce
from tests.sim.programs import JobPlan, Programs
from tests.sim.ranks import RUNS, Meeting, SimRank
from tests.sim.recorder import Record, Seat
from tests.sim.threads import Mode
from tests.sim.traps import Traps
from tests.sim.unrecorded import Unrecorded

if TYPE_CHECKING:
    from tests.sim.places import Place

Wall: TypeAlias = Callable[[int], int]
"""True time to CLOCK_REALTIME of a node; asked at the moment of an event, with rising times."""

_WATCHDOG_NS: Final = 100 * MS
"""How often NCCL's watchdog looks for what has completed."""


class Job:
    def __init__(
        self, plan: JobPlan, wall: Sequence[Wall], dice: random.Random, begin_ns: int
    ) -> None:
        """`wall` is by node."""
        self.plan = plan
        self.dice = dice
        self.now = begin_ns
        """True time, in ns."""
        self.injected: list[Injected] = []
        """In order of injection."""
        self.programs = Programs(plan, dice)
        self._wall = wall
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._meetings: dict[tuple[object, ...], Meeting] = {}
        """Meetings that not all members have joined."""
        self._unnoticed: list[list[Record]] = [[] for _ in range(plan.nodes)]
        """What has completed since a node's watchdogs looked."""
        self._phase = [dice.randrange(_WATCHDOG_NS) for _ in range(plan.nodes)]
        self._unseen: dict[SimRank, list[Record]] = {}
        """What has completed since nccl2 of a rank looked."""
        self._awaits: set[SimRank] = set()
        """Ranks whose watchdog will look."""
        looks = random.Random(f"looks/{begin_ns}/{plan.step_ns}")
        self._looks = [looks.randrange(S) for _ in range(plan.world)]
        """When in a second it looks, by rank. With and without hooks a job does the same."""
        self._births: list[tuple[int, Group, Injected]] = []
        """Groups to be made, and at which step."""
        self.unrecorded = Unrecorded(self)
        self._effects = Effects(self)
        self._traps = Traps(self)
        self.ranks: list[SimRank] = [
            SimRank(self, rank, self.programs.of(rank), Memory(dice, begin_ns, plan.step_ns))
            for rank in range(plan.world)
        ]
        """By global rank."""
        for rank in self.ranks:
            self.after(dice.randrange(S // 2), self.resume, rank)

    # -- what the world does -------------------------------------------------------------------

    def advance(self, until: int) -> None:
        """Play all events up to and including `until`."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, action, subject = pop(heap)
            action(subject)
        self.now = until
        if self.plan.hides_p2p and self.injected:
            self._effects.look_for_hidden()

    def inject(self, fault: Fault) -> None:
        """The fault takes effect immediately, or when its rank next reaches the point."""
        injected = Injected(fault, self.now)
        self.injected.append(injected)
        self._effects.inject(injected)

    def heal(self, injected: Injected) -> None:
        """Now. A rank that died, a mismatch and an order deadlock cannot be healed: see `end`."""
        self._effects.heal(injected)

    def is_felt(self, injected: Injected) -> bool:
        """The fault has begun, is not healed, and a rank waits for it: it can be observed."""
        return self._effects.is_felt(injected)

    def end(self) -> None:
        """Every living rank exits cleanly now; a stopped one is killed by SIGKILL."""
        for rank in self.ranks:
            if rank.alive:
                self.die(rank, None if rank.stopped else ("clean", ""))
        self._heap.clear()

    # -- for the effects of faults -------------------------------------------------------------

    def wall_ns(self, node: int) -> int:
        """CLOCK_REALTIME of a node, now."""
        return self._wall[node](self.now)

    def after(self, delay: int, action: Callable[[Any], None], subject: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay, self._number, action, subject))

    def die(self, rank: SimRank, last_words: tuple[Any, str] | None) -> None:
        """Its device ends with it, in the middle of an op or not."""
        rank.ended_at = self.now
        if last_words is None:
            rank.wait_status = signal.SIGKILL
        else:
            kind, detail = last_words
            rank.wait_status = 1 << 8 if kind == "exception" else 0
            rank.exit = ExitRecord(kind, detail, NodeNs(self.wall_ns(rank.node)))
        rank.alive = False
        if rank.head is not None and rank.head.meeting is not None:
            rank.head.meeting.is_broken = True
        if rank.lets_go is not None:
            rank.lets_go()

    def hold(self, rank: SimRank, place: Place) -> None:
        """Its program goes no further, until `release`."""
        rank.is_held, rank.place = True, place
        rank.thread.go(place.mode, self.now)

    def release(self, rank: SimRank) -> None:
        rank.is_held, rank.place, rank.lets_go = False, None, None
        rank.thread.go(Mode.RUNS, self.now)
        self.resume(rank)

    def leave(self, rank: SimRank, words: tuple[Any, str] | None) -> None:
        """Its program ends; the process stays for a while."""
        if rank.alive and not rank.is_held:
            rank.is_held = True
            rank.thread.go(Mode.RESTS, self.now)
            if words is not None:
                rank.exit = ExitRecord(*words, NodeNs(self.wall_ns(rank.node)))

    def gone(self, rank: SimRank, status: int) -> None:
        """Its process ends, with a status as of `os.waitpid`."""
        if rank.alive:
            record = rank.exit
            self.die(rank, None)
            rank.wait_status, rank.exit = status, record

    def make_group(self, injected: Injected) -> Group:
        """All its members make the group when they begin a step that no rank has reached yet."""
        group = self.programs.new_group("SUBGROUP", injected.fault.ranks)
        step = max(rank.step for rank in self.ranks) + 1
        self._births.append((step, group, injected))
        return group

    # -- programs ------------------------------------------------------------------------------

    def resume(self, rank: SimRank) -> None:
        """The program of a rank does the task that it is at."""
        if rank.stopped:
            rank.is_due = True
            return
        if not rank.alive or rank.is_held or (rank.traps and self._traps.spring(rank)):
            return
        rank.place = None
        task = rank.tasks[rank.at]
        if task.op is None:
            if rank.queue:
                rank.needs, rank.pause_ns = 0, 0
                return
        elif len(rank.queue) >= self.plan.depth:
            rank.needs, rank.pause_ns = self.plan.depth - 1, 0
            return
        else:
            self._enqueue(rank, task.op, task.device_ns)
        self._go_on(rank)

    def _go_on(self, rank: SimRank) -> None:
        """To the next task; a rank that waits will compute before it when it has waited."""
        late = 0
        rank.at += 1
        if rank.at == len(rank.tasks):
            late = self._begin_step(rank)
        pause = late + self._about(rank.tasks[rank.at].cpu_ns)
        if rank.needs == RUNS:
            self.after(pause, self.resume, rank)
        else:
            rank.pause_ns = pause
            rank.thread.go(Mode.RESTS, self.now)

    def _begin_step(self, rank: SimRank) -> int:
        """By how much the program is late with it."""
        rank.at = 0
        rank.step += 1
        for step, group, injected in self._births:
            if step <= rank.step and rank.rank in group.ranks and group not in rank.seats:
                rank.join(group)
                task = Task(all_reduce(group, 16), ENQUEUE_NS, 0)
                *step_tasks, drain = rank.program.step
                rank.program = replace(rank.program, step=(*step_tasks, task, drain))
                injected.began = injected.began or self.now
        saves = rank.step > 0 and rank.step % self.plan.checkpoint_every == 0
        rank.tasks = (*rank.program.checkpoint, *rank.program.step) if saves else rank.program.step
        return self._effects.late_ns(rank) if rank.drags else 0

    def _enqueue(self, rank: SimRank, op: Op, device_ns: int) -> None:
        seat = rank.seats[op.group]
        is_gloo = seat.recorder.number == tap.GENERIC
        is_hooked = isinstance(seat.recorder, HookRecorder)
        seat.op_id += 1
        if op.dst >= 0:
            seat.p2p_seq += 1
        else:
            seat.seq += 1
        if is_hooked:
            seat.enqueued = seat.op_id
        elif is_gloo:
            seat.enqueued = seat.op_id
            rank.needs = 0
        else:
            seat.enqueued = seat.p2p_seq if op.dst >= 0 else seat.seq
        created_ns = self._wall[rank.node](self.now)
        if self.plan.eager:
            self._see(rank, seat)
        for part in op.parts:
            seat.recorder.write(Record(rank, seat, part, created_ns, 0))
        record = Record(rank, seat, op, created_ns, device_ns)
        record.came_at = self.now
        if (op.dst < 0 or not is_gloo) and not (is_hooked and op.parts):
            seat.recorder.write(record)
        rank.queue.append(record)
        if len(rank.queue) == 1:
            self.start(rank)

    def _about(self, work_ns: int) -> int:
        return int(work_ns * (1 + self.plan.jitter * self.dice.random()))

    # -- devices -------------------------------------------------------------------------------

    def start(self, rank: SimRank) -> None:
        """The device of a rank comes to the first op of its queue."""
        record = rank.queue[0]
        if rank.snares and self._effects.blocks(rank, record):
            return
        op = record.op
        record.ready_at = self.now + self._about(record.device_ns)
        key: tuple[object, ...] = (op.group, record.seq)
        if op.dst >= 0:
            seat = record.seat
            number = seat.messages[op.src, op.dst] = seat.messages.get((op.src, op.dst), 0) + 1
            key = (op.group, op.src, op.dst, number)
        if (meeting := self._meetings.get(key)) is None:
            meeting = self._meetings[key] = Meeting(op)
        record.meeting = meeting
        meeting.present.append(record)
        meeting.is_broken |= op.is_foul
        meeting.ready_at = max(meeting.ready_at, record.ready_at)
        if len(meeting.present) == meeting.size:
            del self._meetings[key]
            self._effects.met(meeting)
            self.after(meeting.ready_at + op.span_ns - self.now, self.complete, meeting)

    def complete(self, meeting: Meeting) -> None:
        """All members have joined, and its time is over."""
        if meeting.is_broken or self._effects.holds_up(meeting):
            return
        for record in meeting.present:
            if not (record.rank.snares and self._effects.keeps(record)):
                self.finish(record)
        meeting.present = []

    def finish(self, record: Record) -> None:
        """The device of a rank completes an op."""
        rank = record.rank
        record.done_at = record.seat.freed_at = self.now
        rank.queue.popleft()
        if record.seat.recorder.number == tap.GENERIC:
            record.seat.completed = record.number
        elif isinstance(record.seat.recorder, HookRecorder):
            if self.plan.hooks == "late" and not record.op.parts:
                self._push(record)
        else:
            unnoticed = self._unnoticed[rank.node]
            unnoticed.append(record)
            if len(unnoticed) == 1:
                self._watch(rank.node)
        if rank.queue:
            self.start(rank)
        if len(rank.queue) <= rank.needs:
            rank.needs = RUNS
            rank.thread.go(Mode.RUNS, self.now)
            self.after(rank.pause_ns, self.resume, rank)

    def _push(self, record: Record) -> None:
        """The watchdog of nccl2 will see that the op has ended."""
        self._unseen.setdefault(record.rank, []).append(record)
        if record.rank not in self._awaits:
            self._awaits.add(record.rank)
            self._await_look(record.rank)

    def _await_look(self, rank: SimRank) -> None:
        elapsed = (self.now - self._looks[rank.rank]) % S
        self.after(S - elapsed, self._look, rank)

    def _look(self, rank: SimRank) -> None:
        if rank.stopped:
            self._await_look(rank)
        else:
            self._awaits.discard(rank)
            if rank.alive:
                self._see(rank)

    def _see(self, rank: SimRank, seat: Seat | None = None) -> None:
        """What has ended, in the group of `seat` or in all."""
        unseen = self._unseen.get(rank, [])
        self._unseen[rank] = [r for r in unseen if seat is not None and r.seat is not seat]
        for record in unseen:
            if seat is None or record.seat is seat:
                hooks.retire(record, self.wall_ns(rank.node), durations=self.plan.durations)

    def _watch(self, node: int) -> None:
        elapsed = (self.now - self._phase[node]) % _WATCHDOG_NS
        self.after(_WATCHDOG_NS - elapsed, self._notice, node)

    def _notice(self, node: int) -> None:
        """NCCL's watchdogs of all ranks of a node look for completed ops."""
        wall_ns = self.wall_ns(node)
        late = []
        for record in self._unnoticed[node]:
            if record.rank.stopped:
                late.append(record)
                continue
            record.completed_ns = wall_ns
            record.seat.completed = record.number
            if self.plan.timing:
                record.started_ns = wall_ns
                record.seat.started = record.number
        self._unnoticed[node] = late
        if late:
            self._watch(node)
