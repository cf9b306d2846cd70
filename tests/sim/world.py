"""One world: a job on its nodes, an agent on each, the service, the wire, and their faults.

A world has three phases. First faults and troubles happen; then machines and wire work again, and
the remaining faults of the job must be found; then the job recovers too, or is restarted, and every
finding must close.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from frd.engine.views import StatusView
from frd.model import AttemptKey, FindingEvent, RankInfo
from frd.wire.messages import Part, Request
from tests.sim import ends
from tests.sim.agent import SimAgent
from tests.sim.asking import Asking
from tests.sim.clocks import draw_host
from tests.sim.faults import draw_fault
from tests.sim.job import Job
from tests.sim.kernel import Kernel
from tests.sim.network import Conn, draw_link
from tests.sim.oracle import Oracle, Violation
from tests.sim.scenario import WARM, Scenario, Trouble
from tests.sim.service import Disk, Service
from tests.sim.troubles import Troubles
from tests.sim.watched import Process
from tests.world.clocks import S

EVALUATE: Final = S // 4
_ACKNOWLEDGE: Final = S // 5
_CLOCKS: Final = S // 2
_TAKES_EFFECT: Final = 6 * S
"""Two steps of the slowest job: the last event has had its effects."""
_ANSWERED: Final = 40 * S
"""Until then stacks have shown waits that no recorder shows, usually."""
_KEEPS_DUMPS: Final = 0.25
"""Share of worlds with answers in which dumps are kept."""
_CLOSED_WITHIN: Final = 75 * S
"""A straggler's finding closes only after a window in which it was in time."""
_REPORTED_WITHIN: Final = 20 * S
JOB: Final = "train"


@dataclass(slots=True)
class Run:
    """One attempt of the job."""

    key: AttemptKey
    job: Job
    began: int
    processes: list[Process] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    name: str
    boot_id: str
    processes: list[Process] = field(default_factory=list)
    agent: SimAgent | None = None
    sessions: list[SimAgent] = field(default_factory=list)
    """All agents that there ever were, in order."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A finished world, for people and for the sum over thousands of them."""

    seed: int
    digest: str
    steps: int
    simulated_s: float
    ranks: int
    rows: int
    faults: Counter[str]
    ends: Counter[str]
    troubles: Counter[str]
    findings: Counter[str]
    published: Sequence[Sequence[FindingEvent]] = field(repr=False)
    requests: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    with_lines: Counter[str] = field(default_factory=Counter)
    with_waits: Counter[str] = field(default_factory=Counter)
    """As in `tests.sim.blame`."""
    heard: Counter[str] = field(default_factory=Counter)
    """Of replicas, see `tests.sim.cluster.heard`."""


class World:
    found_within = 30 * S
    """After faults have had their effects, and machines and wire work."""

    def __init__(
        self, scenario: Scenario, folder: Path, only: Collection[int] | None = None
    ) -> None:
        """`only`: numbers of the events that happen; None: all."""
        self.scenario = scenario
        self.kernel = Kernel()
        self.digest = hashlib.sha256()
        self.disk = Disk(folder)
        plan = scenario.plan
        self.hosts = [draw_host(scenario.dice(f"host/{n}")) for n in range(plan.nodes)]
        self.links = [draw_link(scenario.dice(f"link/{n}")) for n in range(plan.nodes)]
        self.nodes = [Node(f"node-{n}", f"boot-{n}") for n in range(plan.nodes)]
        self.service_host = draw_host(scenario.dice("service"))
        self.service: Service | None = None
        self.conns: list[Conn] = []
        self.runs: list[Run] = []
        self.oracle = Oracle(self)
        self.published: list[Sequence[FindingEvent]] = []
        """What each evaluation published, in order."""
        self._lives = 0
        self._all_asking: list[Asking] = []
        """Those of dead processes included: nothing of them may be collected before the end."""
        self.failures: list[str] = []
        self.requests: Counter[str] = Counter()
        """What agents were asked for, by part: one for each rank."""
        self._pids = 1000
        self.troubles = Troubles(self)
        self.ended: ends.End | None = None
        self._events = [event for event in scenario.events if only is None or event.number in only]

    # -- its life ------------------------------------------------------------------------------

    def live(self) -> Summary:
        """
        Raises:
            Violation: a promise was broken.
        """
        try:
            self.begin()
            last = max((event.until for event in self._events), default=WARM)
            self.kernel.run(last)
            self.troubles.heal()
            self.kernel.run(last + _TAKES_EFFECT)
            if self.scenario.asks:
                self.kernel.run(self.kernel.now + _ANSWERED)
            self._wait_for(self.oracle.check_found, self.found_within, self.oracle.known_by)
            self._recover()
            self._wait_for(self.oracle.check_closed, _CLOSED_WITHIN)
            if self.scenario.ends and not self.troubles.liars:
                self._die()
            self._end_job()
            self._wait_for(self.oracle.check_rows, _REPORTED_WITHIN)
            self.end()
            self.oracle.check_replay(self.disk.folder)
        finally:
            self.close()
        return self._summary()

    def begin(self) -> None:
        """Start the service, the job and the agents, and plan all events."""
        self.start_service()
        self.start_job()
        for node in range(len(self.nodes)):
            self.start_agent(node)
        for event in self._events:
            if event.trouble is None:
                self.kernel.at(event.at, partial(self._break_job, event.number))
            else:
                self.kernel.at(event.at, partial(self.troubles.happen, event))
        self.kernel.after(EVALUATE, self._evaluate)
        self.kernel.after(_ACKNOWLEDGE, self._acknowledge)
        self.kernel.after(_CLOCKS, self._keep_clocks)

    def _wait_for(
        self, check: Callable[[], None], within: int, until: Callable[[], int] = int
    ) -> None:
        """Check until it passes: for `within`, and at least until the time that `until` returns."""
        deadline = self.kernel.now + within
        while True:
            self.kernel.run(self.kernel.now + S)
            self.settle()
            try:
                check()
            except Violation:
                if self.kernel.now >= max(deadline, until()):
                    raise
            else:
                return

    def _recover(self) -> None:
        """Heal every fault that can be healed; faults that have not begun never will. A job with a
        fault that cannot be healed ends and is restarted."""
        run = self.runs[-1]
        for injected in run.job.injected:
            run.job.heal(injected)
        if any(i.began is not None and i.healed is None for i in run.job.injected):
            self.restart_job()

    def _die(self) -> None:
        """The job, which is healthy, ends in a way of its seed."""
        self.kernel.run(self.kernel.now + WARM)
        self.settle()
        self.ended = ends.begin(self)
        self.kernel.run(self.kernel.now + ends.LASTS)
        self.settle()
        self.oracle.check_end(self.ended)

    def stop_agent(self, number: int) -> None:
        """By SIGTERM, for good."""
        if (agent := self.nodes[number].agent) is not None:
            self.nodes[number].agent = None
            agent.say_goodbye()

    def _end_job(self) -> None:
        self.settle()
        self.runs[-1].job.end()

    def end(self) -> None:
        """All streams end, then the service; its data is complete."""
        for conn in self.conns:
            conn.end_at_service()
        if self.service is not None:
            self.service.stop()
            self.service = None

    def close(self) -> None:
        if self.service is not None:
            self.service.crash()
        for asking in self._all_asking:
            asking.close()
        self.disk.close()

    def _break_job(self, number: int) -> None:
        self.settle()
        run = self.runs[-1]
        dice, scenario = self.dice(f"fault/{number}"), self.scenario
        how = {"asks": scenario.asks, "hidden": scenario.hidden}
        fault = draw_fault(dice, scenario.plan, run.job, **how)
        if fault is not None:
            run.job.inject(fault)

    @property
    def disk_was_full(self) -> bool:
        return any(event.trouble is Trouble.DISK_FULL for event in self._events)

    def dice(self, of: str) -> random.Random:
        return self.scenario.dice(of)

    # -- its parts -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Advance the jobs to the present."""
        now = self.kernel.now
        for run in self.runs:
            run.job.advance(now)
            for process in run.processes:
                if process.died_at is None and not process.rank.alive:
                    process.died_at = now

    def start_job(self) -> None:
        plan, attempt = self.scenario.plan, len(self.runs)
        torch, backend = ("2.15.0", "nccl") if plan.hooks else ("2.13.0", plan.backend)
        walls = [host.real for host in self.hosts]
        job = Job(plan, walls, self.dice(f"job/{attempt}"), self.kernel.now)
        run = Run(AttemptKey(JOB, attempt), job, self.kernel.now)
        for rank in job.ranks:
            self._pids += 1
            node = self.nodes[rank.node]
            info = RankInfo(
                rank=rank.rank, world_size=plan.world, node=node.name, boot_id=node.boot_id,
                pid=self._pids, local_rank=rank.local_rank, torch_version=torch,
                backends=(backend,), devices=(f"GPU-{rank.rank}",),
            )  # fmt: skip
            process = Process(run.key, rank, info)
            run.processes.append(process)
            node.processes.append(process)
        self.runs.append(run)

    def restart_job(self) -> None:
        """The launcher ends the job and starts it again, as the next attempt."""
        self._end_job()
        self.settle()
        self.kernel.after(2 * S, self.start_job)

    def start_agent(self, number: int) -> None:
        node = self.nodes[number]
        if node.agent is None:
            life = len(node.sessions)
            node.agent = SimAgent(
                self.kernel, self.dice(f"agent/{number}/{life}"), self.hosts[number], node.name,
                node.boot_id, self.scenario.limits, node.processes, self,
            )  # fmt: skip
            node.sessions.append(node.agent)

    def start_service(self) -> None:
        if self.service is None:
            self._lives += 1
            self.service = Service(
                self.disk, self.service_host, lambda: self.kernel.now, self.scenario.policy,
                f"life-{self._lives}", applied=self.oracle.applied, published=self._publish,
                asking=self._asking if self.scenario.asks else None,
            )  # fmt: skip
            self.oracle.restarted(self.service)

    def dial(self, agent: SimAgent) -> Conn | None:
        number = int(agent.node.removeprefix("node-"))
        link = self.links[number]
        if self.service is None or link.is_cut(self.kernel.now):
            return None
        conn = Conn(self.kernel, link, agent, self.service)
        self.conns = [conn for conn in self.conns if conn.is_open]
        self.conns.append(conn)
        return conn

    def _asking(self, service: Service) -> Asking:
        keeps = self.dice("dumps").random() < _KEEPS_DUMPS
        asking = Asking(
            service, kernel=self.kernel, dumps=self.disk.folder / "dumps" if keeps else None,
            flush=self._flush, failed=self.failures.append,
            falsifies=f"{self.scenario.seed}/{self._lives}" if self.mutates else "",
        )  # fmt: skip
        self._all_asking.append(asking)
        return asking

    @property
    def mutates(self) -> bool:
        return self.scenario.mutates

    @property
    def hidden(self) -> bool:
        return self.scenario.hidden

    def processes(self, key: AttemptKey) -> Sequence[Process]:
        return next(run.processes for run in self.runs if run.key == key)

    def asked(self, request: Request) -> None:
        self.oracle.waits.proofs.asked(request)
        ranks = len(request.rank_indexes)
        parts = (
            (Part.DUMP, request.dump), (Part.STACK, request.stacks),
            (Part.WAITS, request.waits), (Part.RAS, request.ras),
        )  # fmt: skip
        for part, is_asked in parts:
            self.requests[part.name.lower()] += ranks * is_asked

    # -- the service's tasks -------------------------------------------------------------------

    def _evaluate(self) -> None:
        if self.service is not None:
            self.service.evaluate()
            self.oracle.check_now()
            if self.failures:
                raise AssertionError(f"a task failed: {self.failures}")
        self.kernel.after(EVALUATE, self._evaluate)

    def _publish(self, events: Sequence[FindingEvent], status_view: StatusView) -> None:
        self.published.append(events)
        self.oracle.published(events, status_view)

    def _acknowledge(self) -> None:
        if self.service is not None:
            self.service.streams.flush_acks()
            self._flush()
        self.kernel.after(_ACKNOWLEDGE, self._acknowledge)

    def _flush(self) -> None:
        for conn in self.conns:
            conn.flush()

    def _keep_clocks(self) -> None:
        if self.service is not None:
            self.service.keep_clocks()
        self.kernel.after(_CLOCKS, self._keep_clocks)

    def _summary(self) -> Summary:
        began = [i for run in self.runs for i in run.job.injected if i.began is not None]
        return Summary(
            seed=self.scenario.seed,
            digest=self.digest.hexdigest(),
            steps=self.kernel.steps,
            simulated_s=self.kernel.now / 1e9,
            ranks=self.scenario.plan.world,
            rows=self.oracle.rows,
            faults=Counter(injected.fault.kind.value for injected in began),
            ends=Counter([self.ended.kind.value] if self.ended is not None else []),
            troubles=Counter(e.trouble.value for e in self._events if e.trouble is not None),
            findings=Counter(finding.kind.value for finding in self.oracle.findings.values()),
            published=self.published,
            requests=self.requests,
            opened=self.oracle.blame.opened,
            with_lines=self.oracle.blame.with_lines,
            with_waits=self.oracle.blame.with_waits,
        )
