"""A rank of a simulated job, as its agent can see it, and the meetings in which ranks wait.

A rank is a program that enqueues ops, a device that does them in order, and the recorders of its
ops. The job advances them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from frd.flight.entry import Status
from frd_agent import tap
from frd_agent.ranks.tap_files import ExitRecord, TapGroup
from tests.sim import hooks
from tests.sim.hooks import HookRecorder
from tests.sim.memory import Memory, MemoryOfRank
from tests.sim.ops import Group, Op, Program
from tests.sim.recorder import HANDLERS, Record, Recorder, Seat
from tests.sim.threads import MainThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.faults import Injected
    from tests.sim.job import Job
    from tests.sim.places import Place

RUNS: Final = -1
"""`SimRank.needs` of a rank whose program does not wait."""


class Meeting:
    """One collective, or one send with its receive: complete some time after all members joined."""

    __slots__ = ("is_broken", "op", "present", "ready_at", "size")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.size = op.size
        self.present: list[Record] = []
        """Of members whose device is at it."""
        self.ready_at = 0
        """When the last of these devices starts it."""
        self.is_broken = False
        """It will never complete."""


class SimRank:
    """One rank process, as its tap, its socket and /proc show it."""

    def __init__(self, job: Job, rank: int, program: Program, memory: Memory) -> None:
        plan = job.plan
        self.rank = rank
        self.node, self.local_rank = divmod(rank, plan.ranks_per_node)
        self.alive = True
        self.stopped = False
        """By SIGSTOP: neither tap nor socket answer."""
        self.exit: ExitRecord | None = None
        """None while it lives, and after SIGKILL."""
        self.wait_status: int | None = None
        """As `os.waitpid` would return it; None while it lives."""
        self.ended_at = 0
        """True time."""
        """On its node's clock."""
        self.gil_held = False
        """The tap's thread is stopped; the socket answers."""
        self.groups: tuple[TapGroup, ...] = ()
        numbers = (tap.GENERIC,) if plan.backend == "gloo" else (tap.GENERIC, tap.NCCL)
        self.recorders: dict[int, Recorder | HookRecorder] = {
            n: Recorder(n, plan.ring, timing=plan.timing) for n in numbers
        }
        self.handlers = tuple(HANDLERS[number] for number in numbers)
        """Recorder handlers that it offers."""
        if plan.hooks:
            self.recorders[tap.HOOKED] = HookRecorder(plan.ring, plan.hooks)
            self.handlers = (*self.handlers, tap.TRACE, tap.IGNORE_CAPTURES)
        self.device = memory
        self._job = job
        self._load(job, program)

    def _load(self, job: Job, program: Program) -> None:
        self.program = program
        self.tasks = program.prologue
        """Of this step."""
        self.at = 0
        """Index of the task that the program is at."""
        self.step = -1
        self.queue: deque[Record] = deque()
        """Ops of the device; it is at the first."""
        self.needs = RUNS
        """The program goes on once `queue` is as short as this."""
        self.pause_ns = 0
        """How long it then computes."""
        self.seats: dict[Group, Seat] = {}
        self.traps: list[Injected] = []
        """Faults that wait for the program."""
        self.snares: list[Injected] = []
        """Faults that wait for the device, or for an op to end."""
        self.drags: list[Injected] = []
        """Faults that make each step late."""
        self.is_held = False
        """The program is stopped for good, or until the fault is healed."""
        self.is_due = False
        """A rank that is stopped would have gone on."""
        self.thread = MainThread(job.now)
        self.place: Place | None = None
        """Where its program is, if a fault holds it there."""
        self.lets_go: Callable[[], None] | None = None
        """What happens if it dies with a lock."""
        for group in program.groups:
            self.join(group)

    def join(self, group: Group) -> None:
        """The rank has made a group."""
        number = {"gloo": tap.GENERIC, hooks.BACKEND: tap.HOOKED}.get(group.backend, tap.NCCL)
        recorder = self.recorders[number]
        pg_id = recorder.seats[-1].pg_id + self._job.dice.randrange(1, 4) if recorder.seats else 0
        seat = self.seats[group] = Seat(group, pg_id, recorder)
        recorder.seats.append(seat)
        shown = TapGroup(group.name, group.ranks, group.desc, group.backend)
        self.groups = (*self.groups, shown)

    @property
    def hooked(self) -> tuple[str, ...]:
        """Backends that hooks record, as the tap lists them."""
        return (hooks.BACKEND,) if tap.HOOKED in self.recorders else ()

    @property
    def recorded(self) -> int:
        """Entries of collectives that its recorders have written since its start."""
        return sum(recorder.recorded for recorder in self.recorders.values())

    @property
    def recorded_p2p(self) -> int:
        """The same of sends, receives and the ends of their batches."""
        return sum(recorder.recorded_p2p for recorder in self.recorders.values())

    @property
    def waits(self) -> bool:
        """Its program waits for its device, or in an op."""
        return self.needs != RUNS

    @property
    def head(self) -> Record | None:
        """The op that its device is at."""
        return self.queue[0] if self.queue else None

    def next_op(self) -> Op:
        """The next op of its program."""
        ops = [task.op for task in (*self.tasks[self.at :], *self.program.step) if task.op]
        return ops[0]

    def counters(self) -> dict[tuple[int, int], Status]:
        """What the tap would publish now."""
        return {
            (number, pg_id): status
            for number, recorder in self.recorders.items()
            for pg_id, status in recorder.status(self._job.now, self.head).items()
        }

    def dump(self, handler: str, backend: str = "") -> bytes:
        """JSON as torch's `handler` writes it; `backend` is its parameter."""
        if backend:
            of = self.recorders.get(tap.HOOKED) if backend == hooks.BACKEND else None
            hooked = of if isinstance(of, HookRecorder) else HookRecorder(0, "")
            return hooked.dump_active() if handler == "fr_trace_json" else hooked.dump_whole()
        recorder = self.recorders[next(n for n in HANDLERS if HANDLERS[n] == handler)]
        assert isinstance(recorder, Recorder)
        return recorder.dump(self._job.now, self._job.wall_ns(self.node), self.head)

    def memory(self) -> MemoryOfRank:
        return self.device.at(self._job.now, alive=self.alive)
