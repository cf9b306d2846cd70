"""For how long each thread has waited for the same thing: pure, samples in, waits out.

A thread that has not run between two samples is in the same call. One that has run, and then waits
for the same object again, is in the same wait: a poll with a timeout, or a read in pieces. A claim
needs `ENOUGH` samples in a row. Of a thread that polls, some samples in between may show it awake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from frd.model import NodeRawNs
from frd_agent.inspection.reading.threads import ThreadSample
from frd_agent.inspection.syscalls import POLLS, Class
from frd_agent.inspection.targets import Target
from frd_agent.proc import TICKS_PER_S

ENOUGH: Final = 3
"""Samples that a claim needs."""
BUSY: Final = 0.5
"""Cores that make a thread one that computes."""
_AT_REST: Final = 0.1
"""Cores that a thread may use which does nothing else than look for something."""
_AGAIN: Final = 2
"""A thread polls once it has come out of its call so often: a signal wakes one that sleeps, too."""
_OFTEN_PER_S: Final = 0.15
"""And so often: a few signals prove no poll for the rest of a long sleep."""
_AWAY: Final = 2
"""Samples in a row that may show a thread that polls running: on a machine with too few cores it
waits for one when it wakes, and is seen running for longer than it runs. One may show it in the
call with which it looks."""
_WINDOW: Final = 4
"""Samples over which processor time is measured."""
_REFRESH: Final = 3
"""After this many samples the object is looked up again: another process may hold it now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thread, as of the last sample."""

    pid: int
    tid: int
    thread: str
    """Its name."""
    state: str
    target: Target | None
    """None: it is in no call that is known, see `is_readable`."""
    since_ns: NodeRawNs
    """Of the first sample with this state and object."""
    samples: int
    """With this state and object, in a row."""
    woke: bool = False
    """It has run since then."""
    wakes: int = 0
    """How often it has been put on a processor since then."""
    moved: bool = False
    """Its position in the file has changed since then."""
    wakes_per_s: float = 0.0
    """How often it has been put on a processor."""
    cores: float = 0.0
    busy_since_ns: NodeRawNs | None = None
    """It has used most of a core since then."""
    is_readable: bool = True

    @property
    def is_sure(self) -> bool:
        return self.samples >= ENOUGH

    @property
    def is_at_rest(self) -> bool:
        """It has been in this wait for some time, and does hardly anything else."""
        return self.is_sure and self.cores < _AT_REST and self.state not in "TtZX"

    @property
    def is_asleep(self) -> bool:
        """It waits for nothing but time."""
        target = self.target
        if target is None or target.objects or target.problem:
            return False
        return target.call.kind in (Class.SLEEP, *POLLS)

    @property
    def polls(self) -> bool:
        """It is asleep, wakes again and again, and goes back to sleep."""
        is_again = self.wakes >= _AGAIN and self.wakes_per_s >= _OFTEN_PER_S
        return self.is_asleep and self.is_at_rest and is_again


@dataclass(slots=True)
class _Past:
    """What is kept of a thread."""

    wait: Wait
    sample: ThreadSample
    age: int = 0
    """Samples since the object was looked up."""
    window: deque[tuple[NodeRawNs, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    runs_at_first: int = -1
    away: int = 0
    """The last samples that show what it does between two waits of one poll."""


class Tracker:
    """The threads of one rank and of the processes near it."""

    def __init__(self) -> None:
        self._past: dict[tuple[int, int], _Past] = {}

    def see(
        self,
        pid: int,
        sample: ThreadSample,
        now_ns: NodeRawNs,
        resolve: Callable[[], tuple[Target | None, str]],
    ) -> Wait:
        """`resolve` looks up what the thread's call acts on, and the thread's name."""
        key = pid, sample.tid
        past = self._past.get(key)
        if past is not None and past.sample.started != sample.started:
            past = None
        ran = past is None or _ran(past.sample, sample)
        is_old = past is not None and past.age >= _REFRESH and past.wait.target is not None
        if past is None or ran or is_old or past.away:  # then the last call is not that of `wait`
            target, name = resolve()
            age = 0
        else:
            target, name, age = past.wait.target, past.wait.thread, past.age + 1
        is_same = past is not None and (
            _condition(past.wait.state, past.wait.target, past.wait.is_readable)
            == _condition(sample.state, target, sample.is_readable)
        )
        window = past.window if past is not None else deque(maxlen=_WINDOW)
        window.append((now_ns, sample.cpu_ticks))
        cores = _cores(window)
        if past is not None and not is_same and past.wait.polls and _looks(past, sample):
            past.sample, past.away = sample, past.away + 1
            return replace(past.wait, cores=cores)
        was = past.wait if past is not None and is_same else None
        runs_at_first = past.runs_at_first if past is not None and is_same else sample.runs
        busy_since = None
        if cores >= BUSY:
            busy_since = (past.wait.busy_since_ns if past else None) or window[0][0]
        since_ns = was.since_ns if was else now_ns
        passed_s = (now_ns - since_ns) / 1e9
        wakes = sample.runs - runs_at_first
        wait = Wait(
            pid=pid,
            tid=sample.tid,
            thread=name,
            state=sample.state,
            target=target,
            since_ns=since_ns,
            samples=was.samples + 1 if was else 1,
            # At its first sample a thread may still be on its way into the call.
            woke=was is not None and (was.woke or (ran and was.samples > 1)),
            moved=was is not None and (was.moved or _position(was.target) != _position(target)),
            wakes=wakes,
            wakes_per_s=wakes / passed_s if passed_s > 0 else 0.0,
            cores=cores,
            busy_since_ns=busy_since,
            is_readable=sample.is_readable,
        )
        self._past[key] = _Past(wait, sample, age, window, runs_at_first)
        return wait

    def keep(self, seen: set[tuple[int, int]]) -> None:
        """Forget all threads but these."""
        for key in self._past.keys() - seen:
            del self._past[key]


def _ran(before: ThreadSample, after: ThreadSample) -> bool:
    if before.runs >= 0 and after.runs >= 0 and before.runs != after.runs:
        return True
    return (before.call, before.cpu_ticks, before.state) != (
        after.call,
        after.cpu_ticks,
        after.state,
    )


def _looks(past: _Past, sample: ThreadSample) -> bool:
    """A thread that polls is awake for a moment. A call that blocks ends the poll, as a signal that
    stops the thread does."""
    if not sample.is_readable or sample.state in "TtZX" or past.away >= _AWAY:
        return False
    return sample.call is None or past.away == 0 or past.sample.call is None


def _condition(state: str, target: Target | None, is_readable: bool) -> tuple[object, ...]:
    """What has to stay the same. Blocked threads change between the states S and D."""
    if state in "TtZX":
        return (state,)
    return (is_readable, None if target is None else target.identity)


def _position(target: Target | None) -> int:
    return target.objects[0].file.position if target is not None and target.objects else 0


def _cores(window: deque[tuple[NodeRawNs, int]]) -> float:
    passed_s = (window[-1][0] - window[0][0]) / 1e9
    if len(window) < ENOUGH or passed_s <= 0:
        return 0.0
    return (window[-1][1] - window[0][1]) / TICKS_PER_S / passed_s
