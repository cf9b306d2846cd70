"""The streams of an agent: one for each job of its node.

Two jobs may belong to two processes of the service, so each job has its own stream, queues and
pings. The numbers of ranks, and the session, are those of the agent. The bounds on what waits hold
for the node: its jobs share them equally, so that a job that sends much, or whose service is out of
reach, cannot displace the rows of another one.

An agent that knows no rank keeps one stream without a job: it shows that the agent is there and
that its credentials work. It ends when a job's stream has been welcomed. A job's stream stays, with
few pings, for 15 minutes after the agent has forgotten its last rank, which is 15 minutes after
that has ended: the job may go on elsewhere for as long as its time-outs, and the service expects
every agent of a running job to report. The service bounds all streams together, so few stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from frd.model import EntryColumns
from frd.wire.clock import ClockHello
from frd.wire.messages import Hello, Leaving, Request, Unreadable
from frd_agent.counters import Counters
from frd_agent.memory.samples import NodeSamples, Samples
from frd_agent.node_time import NodeTime
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.node_clock import LONGEST_PAUSE_S, Clock
from frd_agent.uplink.outbox import Outbox
from frd_agent.uplink.reports import Reports
from frd_agent.uplink.route import Endpoint
from frd_agent.uplink.stream import Stream

LINGER_S: Final = 900.0
MAX_LINGERING: Final = 4
"""Streams of jobs without ranks: a node may run many short jobs one after the other."""
_SAMPLE_BYTES: Final = 8 * 1024 * 1024
"""Samples of memory that may wait for the service, of all jobs together."""
_OTHER_PINGS_S: Final = 10.0
"""Between pings of a stream while another one pings: so long may it take to notice its end."""
_GOODBYE_S: Final = 5.0
"""Time limit for sending what is left at the end, if a service is connected."""


@dataclass(slots=True, eq=False)
class Uplink:
    """A stream, and what it sends. Without a job there is nothing to send."""

    reports: Reports
    dispatch: Dispatch
    stream: Stream
    clock: Clock
    left_at_s: float | None = None
    """When the agent knew no rank of the job any more."""
    task: asyncio.Task[None] | None = None
    """Runs the stream; None before `start`."""

    def start(self) -> None:
        self.task = asyncio.create_task(self.stream.run())

    async def end(self, why: str) -> None:
        """Send what is left, and a goodbye, if the service is connected."""
        assert self.task is not None
        self.stream.close(why)
        await asyncio.wait({self.task}, timeout=_GOODBYE_S if self.stream.connected else 0.0)
        self.task.cancel()
        await asyncio.wait({self.task})


@dataclass(slots=True, eq=False)
class Uplinks:
    service: Endpoint
    outbox_bytes: int
    """So many of transitions may wait for the service, of all jobs together."""
    dictionary: Dictionary
    stats: Counters
    time: NodeTime
    hello: Callable[[], Hello]
    in_flight: Callable[[str], Iterable[EntryColumns]]
    """Gives the open collectives of every rank of a job, JOINED flags set."""
    on_request: Callable[[Stream, Request], None]
    samples: NodeSamples = field(init=False)
    _jobs: dict[str, Uplink] = field(default_factory=dict)
    _idle: Uplink | None = None
    """The stream without a job."""
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _left_behind: Mapping[str, int] | None = None
    """Ranks that lived when the agent was asked to stop, by job; None if it was not."""
    _dropped_before: tuple[int, int] = (0, 0)
    """Rows and samples that jobs without an uplink had dropped."""

    def __post_init__(self) -> None:
        self.samples = NodeSamples(self._job_of, self.dictionary.attempt_of)

    def __iter__(self) -> Iterator[Uplink]:
        jobs = list(self._jobs.values())  # also for the thread that serves /metrics
        return iter(jobs if self._idle is None else [*jobs, self._idle])

    # -- jobs ----------------------------------------------------------------------------------

    def reports(self, attempt: int) -> Reports:
        """Where ranks of an attempt, by its number, report; opens the job's stream if need be."""
        job = self._job_of(attempt)
        known = self._jobs.get(job)
        if known is None:
            known = self._jobs[job] = self._make(job)
            self._share()
            known.start()
        known.left_at_s = None
        return known.reports

    def settle(self, jobs: Collection[str], now_s: float) -> None:
        """Open and end streams; the agent knows ranks of `jobs`, and of no others. Call it a few
        times a second: the clocks are read as well."""
        for job, uplink in self._jobs.items():
            if job in jobs:
                uplink.left_at_s = None
            elif uplink.left_at_s is None:
                uplink.left_at_s = now_s
        left = [
            (one.left_at_s, job) for job, one in self._jobs.items() if one.left_at_s is not None
        ]
        left.sort(reverse=True)
        for at_s, job in left[:MAX_LINGERING]:
            if now_s - at_s > LINGER_S:
                self._drop(job)
        for _, job in left[MAX_LINGERING:]:
            self._drop(job)
        if not self._jobs and self._idle is None:
            self._idle = self._make(None)
            self._idle.start()
        if self._idle is not None and any(one.stream.connected for one in self._jobs.values()):
            self._end(self._idle, "its jobs have their streams")
            self._idle = None
        self._share_pings()

    def _share_pings(self) -> None:
        """The service learns the node's clock from the pings of all its streams: one of those to
        the same process pings as often as that asks. Those without ranks only keep the clock from
        being unknown, because the job's other nodes may still be watched."""
        pinged = set()
        for uplink in self:
            stream, clock = uplink.stream, uplink.clock
            clock.look()
            clock.least_pause_s = _OTHER_PINGS_S if stream.instance in pinged else 0.0
            if uplink is self._idle or uplink.left_at_s is not None:
                clock.least_pause_s = LONGEST_PAUSE_S
            elif stream.connected:
                pinged.add(stream.instance)

    def set_unreadable(self, unreadable: Unreadable) -> None:
        """What ranks publish and the agent may not read. All streams say so, for each may be the
        only one to a service."""
        for uplink in self:
            uplink.reports.current.set_unreadable(unreadable)

    def _job_of(self, attempt: int) -> str:
        return self.dictionary.attempts[attempt].key.job

    def _make(self, job: str | None) -> Uplink:
        dictionary, name = self.dictionary, job or ""
        outbox = Outbox(self.outbox_bytes)
        current = CurrentState(dictionary.attempt_of)
        self._say_leaving(name, current)
        samples = Samples(_SAMPLE_BYTES, dictionary.series_number)
        hello = self.hello()
        clock = Clock(ClockHello(hello.boot_id, hello.session), self.stats, self.time)
        dispatch = Dispatch(
            *(dictionary, outbox, current, samples),
            lambda: () if job is None else self.in_flight(name),
            lambda: [uplink.dispatch for uplink in self],
        )
        stream = Stream(
            service=self.service,
            job=job,
            hello=self.hello,
            dispatch=dispatch,
            stats=self.stats,
            on_request=lambda request: self.on_request(stream, request),
            stamp=clock.stamp,
            side_task=clock.ping,
        )
        reports = Reports(name, outbox, current, samples, stream.wake, lambda: stream.connected)
        return Uplink(reports, dispatch, stream, clock)

    def _share(self) -> None:
        """The bounds, among the jobs."""
        count = max(len(self._jobs), 1)
        for uplink in self._jobs.values():
            uplink.reports.outbox.limit(self.outbox_bytes // count)
            uplink.reports.samples.limit(_SAMPLE_BYTES // count)
        self.samples.use({job: uplink.reports.samples for job, uplink in self._jobs.items()})

    def _drop(self, job: str) -> None:
        uplink = self._jobs.pop(job)
        outbox, samples = uplink.reports.outbox, uplink.reports.samples
        self._dropped(outbox.dropped_total, samples.dropped)
        self._share()
        ending = self._end(uplink, "the job is over")
        ending.add_done_callback(lambda _: self._dropped(outbox.rows, samples.waiting))

    def _dropped(self, rows: int, samples: int) -> None:
        rows_before, samples_before = self._dropped_before
        self._dropped_before = rows_before + rows, samples_before + samples

    def _end(self, uplink: Uplink, why: str) -> asyncio.Task[None]:
        task = asyncio.create_task(uplink.end(why))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    # -- all of them ---------------------------------------------------------------------------

    def wake(self, *, always: bool = True) -> None:
        """Send what there is; with `always` false only if it should not wait."""
        now_ns = self.time.now()
        for uplink in self:
            if always or uplink.dispatch.is_due(now_ns):
                uplink.stream.wake()

    def redial(self, service: Endpoint) -> None:
        self.service = service
        for uplink in self:
            uplink.stream.redial(service)

    def cancel(self) -> None:
        """Nothing more is sent."""
        for task in (*(uplink.task for uplink in self), *self._ending):
            if task is not None:
                task.cancel()

    def leave(self, live: Mapping[str, int]) -> None:
        """Report that the agent was asked to stop while so many ranks live, by job."""
        self._left_behind = live
        for uplink in self:
            self._say_leaving(uplink.reports.job, uplink.reports.current)
            uplink.stream.wake()

    def _say_leaving(self, job: str, current: CurrentState) -> None:
        if self._left_behind is not None:
            current.set_leaving(Leaving(self._left_behind.get(job, 0)))

    async def close(self) -> None:
        """Say goodbye on all streams."""
        for uplink in self:
            self._end(uplink, "the agent stops")
        if self._ending:
            await asyncio.wait(self._ending)

    # -- for metrics, from any thread ----------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Every stream is up."""
        return all(uplink.stream.connected for uplink in self)

    @property
    def outbox_rows(self) -> int:
        return sum(uplink.reports.outbox.rows for uplink in self)

    @property
    def dropped_rows(self) -> int:
        return self._dropped_before[0] + sum(one.reports.outbox.dropped_total for one in self)

    @property
    def dropped_samples(self) -> int:
        return self._dropped_before[1] + sum(one.reports.samples.dropped for one in self)
