"""Agents leave, die and come back in every order, while jobs hang and end.

Messages of agents go through the service's streams into its engine, with injected time. What people
are shown is compared with what is true after every step: which ranks are watched, whether frd is
blind, and whether the stall of the job that hangs is open. Two jobs share two nodes, each with a
separate agent on each node, as in Slurm.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Final

import pytest

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    AttemptKey,
    ExitInfo,
    ExitKind,
    Finding,
    FindingState,
    Kind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    ServiceRawNs,
)
from frd.service.cells.replica import NoLog
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.http.json_api import job_state
from frd.service.http.watching_json import watching_json
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.service.state import ServiceState, unwatched
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, AgentEvent, Goodbye, Hello, Leaving, Statuses
from tests.world.messages import declare, watermarks
from tests.world.seeds import ALL

S: Final = 1_000_000_000
LIVES: Final = 500 if ALL else 25
CHUNKS: Final = 5
WORLD: Final = 2
"""Each node has one rank of each job, with its number."""
LAZY: Final = 1
"""Never joins the collective of the job that hangs."""
POLICY: Final = Policy(
    stall_after_s=5.0,
    telemetry_late_s=10_000,
    clock_unsynchronized_after_s=1e6,
    attempt_retention_s=1e6,
)
"""Time passes in long steps: a report of the last step is not late."""
EVENTS: Final = (
    "start",
    "start",
    "leave",
    "goodbye",
    "goodbye",
    "die",
    "redial",
    "stranger",
    "end",
)
STEPS: Final = 9
TERM: Final = ExitInfo(ExitKind.SIGNAL, signal=15)


@dataclass
class Place:
    """The rank of a job on one node, and what is true of its agent."""

    rank: int
    agent: Stream | None = None
    session: str = ""
    leaves: bool = False
    """The agent was asked to stop, or its last one has gone on purpose."""
    lives: bool = True
    """The end of the rank was not reported."""


@dataclass
class Job:
    key: AttemptKey
    is_hung: bool
    places: list[Place]
    has_ended: bool = False
    quiet_since: int | None = None

    def quiet_s(self, now: int) -> float:
        return 0.0 if self.quiet_since is None else (now - self.quiet_since) / S

    @property
    def is_left(self) -> bool:
        """All ranks that live as far as is known were left on purpose."""
        return all(place.leaves for place in self.places if place.lives)

    @property
    def lives(self) -> bool:
        return any(place.lives for place in self.places)

    def lost(self, now: int) -> bool:
        return self.lives and self.is_left and self.quiet_s(now) >= POLICY.lost_after_s

    def over(self, now: int) -> bool:
        """Nothing is expected of it any more."""
        deserted = not self.is_left and self.quiet_s(now) >= POLICY.deserted_after_s
        return deserted or self.lost(now) or not self.lives


class Life:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 1_790_000_000 * S
        self.engine = Engine(POLICY)
        self.shared = Shared(self.engine)
        self.streams = Streams(
            self.shared,
            AgentClocks(RealTime(lambda: self.now, lambda: ServiceRawNs(self.now))),
            NoLog(),
            now=lambda: AlignedNs(self.now),
            version="test",
            instance="one",
            ids=itertools.count(1),
        )
        self.sessions = itertools.count()
        self.since = self.now
        self.jobs = [
            Job(AttemptKey(name, 0), name == "hung", [Place(rank) for rank in range(WORLD)])
            for name in ("hung", "well")
        ]
        for job, node in self.slots():
            self.start(job, node)
        self.advance(12)
        (stall,) = self.stalls()
        self.stall = stall.id

    def slots(self) -> list[tuple[Job, int]]:
        return list(itertools.product(self.jobs, range(WORLD)))

    # -- what agents do ------------------------------------------------------------------------

    def send(self, stream: Stream, event: AgentEvent) -> None:
        self.streams.take(stream, encode_agent(event))

    def connect(self, node: int, session: str = "") -> Stream:
        stream = self.streams.open()
        at = NodeNs(self.now), NodeRawNs(self.now)
        session = session or f"s{next(self.sessions)}"
        self.send(stream, Hello(PROTOCOL, "1", f"n{node}", f"b{node}", session, *at))
        return stream

    def start(self, job: Job, node: int) -> None:
        """An agent of the job on the node; it says how the rank ended that the last one left."""
        place = job.places[node]
        if place.agent is None:
            place.session, place.leaves = f"s{next(self.sessions)}", False
            self.open(job, node)

    def open(self, job: Job, node: int) -> None:
        """A stream of the place's agent. Before all else it says again that it leaves."""
        place = job.places[node]
        if place.agent is None:
            place.agent = self.connect(node, place.session)
            if place.leaves:
                self.send(place.agent, Statuses((), leaving=Leaving(int(place.lives))))
            info = RankInfo(place.rank, WORLD, f"n{node}", f"b{node}", 100 + place.rank)
            self.send(place.agent, declare([info], key=job.key))
            self.state(job, place)

    def report(self, job: Job, place: Place) -> None:
        """A round of an agent that is connected: watermarks, and the end of its rank."""
        if place.agent is None:
            return
        joined = int(job.is_hung and place.rank != LAZY)
        marks = watermarks(
            [0],
            enqueued=joined,
            completed=0,
            head=self.since * joined,
            seen=[0],
            as_of=self.now,
            sent=self.now,
            raw=self.now,
        )
        self.send(place.agent, marks)
        if job.has_ended and place.lives:
            self.state(job, place)

    def state(self, job: Job, place: Place) -> None:
        """Whether its rank lives."""
        assert place.agent is not None
        state, how = (RankState.EXITED, TERM) if job.has_ended else (RankState.LIVE, None)
        self.send(place.agent, Statuses((RankStatus(0, state, NodeNs(self.now), exit=how),)))
        place.lives = not job.has_ended

    def act(self) -> None:
        """Something happens to one agent, or to one job."""
        job, node = self.dice.choice(self.slots())
        place = job.places[node]
        match self.dice.choice(EVENTS):
            case "start":
                self.start(job, node)
            case "leave" if place.agent is not None:
                self.send(place.agent, Statuses((), leaving=Leaving(int(place.lives))))
                place.leaves = True
            case "goodbye" if place.agent is not None:
                self.send(place.agent, Goodbye("the agent stops"))
                place.leaves = True
                self.gone(place)
            case "die":
                self.gone(place)
            case "redial" if place.agent is not None:
                self.gone(place)
                self.open(job, node)
            case "stranger":  # an agent without a rank, as that of a job that begins
                stream = self.connect(node)
                if self.dice.random() < 0.5:
                    self.streams.close(stream)
            case "end" if self.dice.random() < 0.1:
                job.has_ended = True
            case _:
                pass

    def gone(self, place: Place) -> None:
        if place.agent is not None:
            self.streams.close(place.agent)
            place.agent = None

    def advance(self, seconds: float) -> None:
        parts = math.ceil(seconds / 500)
        for step_s in (0.0, *([seconds / parts] * parts), 4.0):
            self.now += round(step_s * S)
            for job in self.jobs:
                for place in job.places if step_s else ():
                    self.report(job, place)
                is_heard = any(place.agent and place.lives for place in job.places)
                job.quiet_since = None if is_heard else job.quiet_since or self.now
            self.shared.flush()
            self.engine.advance(AlignedNs(self.now))
            assert not self.engine.faults

    # -- what people see -----------------------------------------------------------------------

    def stalls(self) -> list[Finding]:
        view = self.engine.status_view(AlignedNs(self.now))
        return [one for one in view.findings if one.state is FindingState.OPEN]

    def check(self) -> None:
        view = self.engine.status_view(AlignedNs(self.now))
        nodes = self.streams.nodes.views(AlignedNs(self.now), 1e6)
        state = ServiceState(view, nodes, evaluated_at=AlignedNs(self.now))
        attempts = state.latest_attempts()
        for job in self.jobs:
            shown, name = attempts[job.key.job], job.key.job
            blind_ranks = {p.rank for p in job.places if p.lives and p.agent is None}
            assert unwatched(shown, nodes).keys() == blind_ranks
            assert shown.ended == job.over(self.now)
            assert (job_state(state, shown) == "lost") == job.lost(self.now)
            blind = watching_json(state, job=name)["blind"]
            assert bool(blind) == bool(blind_ranks and not job.over(self.now)), blind
        hung, _ = self.jobs
        found = self.stalls()
        assert {one.kind for one in found} <= {Kind.STALL}
        assert [one.id for one in found] == ([] if hung.over(self.now) else [self.stall])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_agent_inherits_and_no_stall_closes_that_holds(chunk: int) -> None:
    """Lives of nine events each; a failure says its seed."""
    for seed in range(chunk * LIVES // CHUNKS, (chunk + 1) * LIVES // CHUNKS):
        life = Life(seed)
        for step in range(STEPS):
            life.act()
            life.advance(life.dice.choice((1.0, 30.0, 200.0, 2000.0)))
            try:
                life.check()
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {step}")
                raise
