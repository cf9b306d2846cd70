"""A world with a cluster of replicas in place of one service.

Three phases as in `tests.sim.world`; ten seconds after the last fault of machines and wire, every
cell must have an owner. A cluster has few cells here: idle ones cost simulated evaluations.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from frd.cluster import cells, ownership
from frd.cluster.cells import cell_of
from frd.model import FindingEvent
from frd.service.cells import owner
from frd.service.cells.owner import Opened
from frd_agent.uplink.route import Endpoint, Route, Target
from tests.sim.agent import SimAgent
from tests.sim.clocks import draw_host
from tests.sim.cluster.calls import ClusterConn
from tests.sim.cluster.heard import SCRAPE, Entries, Heard
from tests.sim.cluster.oracle import ClusterOracle
from tests.sim.cluster.people import People
from tests.sim.cluster.replica import SimReplica
from tests.sim.cluster.troubles import ClusterTroubles
from tests.sim.network import Conn, Link, draw_link
from tests.sim.oracle import Violation
from tests.sim.scenario import Scenario
from tests.sim.watched import _finish
from tests.sim.world import EVALUATE, JOB, Summary, World
from tests.world.clocks import S
from tests.world.fake_cluster import FakeKeys, Faults

CELL_COUNT: Final = 4
_OWNED_WITHIN: Final = 10 * S
_KILLED: Final = 0.5
"""Of the last owners; the others get SIGTERM."""
_COPIED_WITHIN: Final = S // 2
"""All replicas have copied a finding."""


class ClusterWorld(World):
    job = JOB
    found_within = 9 * S
    """Of 15 s: the threshold, and 10 s for replicas and agents."""

    def __init__(
        self, scenario: Scenario, folder: Path, only: Collection[int] | None = None
    ) -> None:
        super().__init__(scenario, folder, only)
        dice = scenario.dice("cluster")
        self.folder = folder
        self.cell_count = CELL_COUNT
        letters = dice.sample("abcdefghij", dice.choice((2, 3, 3)))
        self.names = sorted(f"frd-{letter}" for letter in letters)
        """Which of them is preferred for the job depends on their names."""
        self.replica_hosts = {name: draw_host(scenario.dice(f"host/{name}")) for name in self.names}
        self._links: dict[tuple[int, str], Link] = {
            (node, name): draw_link(scenario.dice(f"link/{node}/{name}"))
            for node in range(len(self.nodes))
            for name in self.names
        }
        self.faults = {
            name: Faults(scenario.dice(f"servers/{name}"), timeout_s=2.0) for name in self.names
        }
        self.heard: Heard = Heard(self)
        self.people: People = People(self)
        self.servers = FakeKeys()
        self.servers.entries = Entries(self.heard)
        self.replicas: dict[str, SimReplica] = {}
        self.all_replicas: list[SimReplica] = []
        """Dead ones included: nothing of them may be collected, which would run their `finally`."""
        self.takes: Counter[int] = Counter()
        """How often replicas have begun to take over each cell."""
        self.oracle: ClusterOracle = ClusterOracle(self)
        self.troubles: ClusterTroubles = ClusterTroubles(self)

    def live(self) -> Summary:
        with _few_cells(), self._errors_seen():
            summary = super().live()
        summary.troubles["takeovers"] += self.oracle.takeovers
        summary.heard.update(self.heard.counts)
        summary.heard["before it was stored"] += len(self.heard.unstored)
        people = self.people
        said = len(people.dismissed), len(people.marked), people.refused, people.unstored
        for what, count in zip(("dismissed", "marked", "refused", "unstored"), said, strict=True):
            summary.heard[what] += count
        return summary

    # -- replicas --------------------------------------------------------------------------------

    def start_service(self) -> None:
        for name in self.names:
            self.start_replica(name)

    def start_replica(self, name: str) -> None:
        if (before := self.replicas.get(name)) is not None and not before.is_over:
            if before.is_stopping:  # as a supervisor, which waits for the end of the process
                self.kernel.after(S // 10, partial(self.start_replica, name))
            return
        host, faults = self.replica_hosts[name], self.faults[name]
        replica = SimReplica(self, name, host, self.folder / name, faults)
        self.replicas[name] = replica
        self.all_replicas.append(replica)

    def kill_replica(self, name: str, noticed_after: int) -> None:
        self.replicas[name].kill()
        for conn in self.conns_of(name):
            conn.die_with_service(noticed_after)

    def running(self) -> list[SimReplica]:
        """Those that take part; one that is starting does not yet."""
        return [
            replica
            for replica in self.replicas.values()
            if not (replica.is_over or replica.loop.is_paused) and replica._tasks
        ]

    def hang_up(self, replica: SimReplica) -> None:
        for conn in self.conns_of(replica.name):
            conn.end_at_service()

    # -- the wire --------------------------------------------------------------------------------

    def links_of(self, name: str) -> list[Link]:
        return [link for (_, of), link in self._links.items() if of == name]

    def links_from(self, node: int) -> list[Link]:
        return [link for (of, _), link in self._links.items() if of == node]

    def cluster_conns(self) -> list[ClusterConn]:
        return [conn for conn in self.conns if isinstance(conn, ClusterConn)]

    def conns_of(self, name: str) -> list[ClusterConn]:
        replica = self.replicas.get(name)
        return [conn for conn in self.cluster_conns() if conn.replica is replica]

    def start_agent(self, number: int) -> None:
        super().start_agent(number)
        agent = self.nodes[number].agent
        if agent is not None and agent.route is None:
            dice = self.dice(f"route/{agent.session}")
            addresses = tuple(f"{name}:9373" for name in self.names)
            agent.route = Route(Endpoint(addresses), _resolve, dice.randrange)

    def dial(self, agent: SimAgent) -> Conn | None:
        assert agent.route is not None
        target: Target = _finish(agent.route.next())
        name = target.address.removesuffix(":9373")
        replica = self.replicas.get(name)
        if replica is None or replica.is_over:
            return None
        if not replica._tasks and not replica.loop.is_paused:
            return None  # it does not listen yet
        node = int(agent.node.removeprefix("node-"))
        conn = ClusterConn(self.kernel, self._links[node, name], agent, replica, self.job)
        self.conns = [conn for conn in self.conns if conn.is_open]
        self.conns.append(conn)
        return conn

    # -- what replicas do ------------------------------------------------------------------------

    def taken_over(self, replica: SimReplica, cell: int, opened: Opened) -> None:
        if cell == cell_of(self.job):
            self.settle()
            with self.heard.judging():
                self.oracle.taken_over(replica, opened)

    def shown(self, replica: SimReplica, events: Sequence[FindingEvent]) -> None:
        self.settle()
        self.published.append(events)
        with self.heard.judging():
            self.oracle.shown(replica, events)

    def failed(self, what: str) -> None:
        self.failures.append(what)

    def begin(self) -> None:
        super().begin()
        self.kernel.after(SCRAPE, self.heard.scrape)

    def _evaluate(self) -> None:
        self.oracle.check_now()
        self.kernel.after(EVALUATE, self._evaluate)

    def _acknowledge(self) -> None:
        pass

    def _keep_clocks(self) -> None:
        pass

    def healed(self) -> None:
        self._await_owned(self.kernel.now + _OWNED_WITHIN)

    def end(self) -> None:
        """The last owner ends, too: the next one goes on with what it has left."""
        self.kernel.run(self.kernel.now + 2 * S)
        if self._events and (owner := self.oracle.owner):
            if self.dice("end").random() < _KILLED:
                self.kill_replica(owner, 0)
            else:
                self.replicas[owner].stop()
            self.start_replica(owner)
            self.kernel.run(self.kernel.now + _OWNED_WITHIN)
            self.oracle.check_owned()
            self.oracle.check_closed()
        while self.kernel.now < self.oracle.shown_at + _COPIED_WITHIN:
            self.kernel.run(self.oracle.shown_at + _COPIED_WITHIN)

    def _await_owned(self, deadline: int) -> None:
        try:
            self.oracle.check_owned()
        except Violation:
            if self.kernel.now >= deadline:
                raise
            self.kernel.after(S // 4, partial(self._await_owned, deadline))

    def close(self) -> None:
        for replica in self.all_replicas:
            replica.loop.close()
        self.disk.close()

    @contextmanager
    def _errors_seen(self) -> Iterator[None]:
        """Exceptions that a replica logs and survives are failures here."""
        world = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.exc_info:
                    world.failed(f"{record.getMessage()}: {record.exc_info[1]!r}")

        handler, log = Handler(logging.ERROR), logging.getLogger("frd")
        disabled, propagate = logging.root.manager.disable, log.propagate
        logging.disable(logging.WARNING)
        log.propagate = False
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.propagate = propagate
            logging.disable(disabled)


@contextmanager
def _few_cells() -> Iterator[None]:
    """For this world, the cluster has `CELL_COUNT` cells."""
    name, modules = "CELLS", (cells, ownership, owner)
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, CELL_COUNT)
        yield
    finally:
        for module, count in zip(modules, before, strict=True):
            setattr(module, name, count)


async def _resolve(address: str) -> Sequence[Target]:
    return [Target(address)]
