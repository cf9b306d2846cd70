"""One process of a replica: what `frd.service.app` and `frd.service.cells.replica` put together,
without listeners, on fakes of the servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.cluster.cells import cell_of
from frd.cluster.cluster import Cluster
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from frd.cluster.log import FencedLog
from frd.config import ClusterOptions, Config
from frd.config.sections import StoreLimits
from frd.errors import ClusterError
from frd.model import FindingEvent, ServiceRawNs
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.cells.cell import Cell, Common
from frd.service.cells.cells import Cells
from frd.service.cells.homes import LateHomes, ReplicaHomes
from frd.service.cells.owner import Archive, CellOwner, Opened
from frd.service.cells.replica import SharedArchive, _copy
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.findings.evaluator import TICK_S
from frd.service.ingest.collector import ACK_EVERY_S, Ingest
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from tests.sim.loop import VirtualLoop
from tests.world.clocks import Host
from tests.world.fake_cluster import (
    FakeFindings,
    FakeKeys,
    FakeLog,
    FakeRegistry,
    FakeStream,
    Faults,
)
from tests.world.virtual_time import SameLoop

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

_CLOCKS_EVERY_S: Final = 0.5
_GRACE_S: Final = 1.0


class Servers:
    """What the servers of the log, the registry and the findings hold."""

    def __init__(self) -> None:
        self.streams: dict[int, FakeStream] = {}
        self.keys = FakeKeys()
        self.findings = FakeKeys()

    def stream(self, cell: int) -> FakeStream:
        return self.streams.setdefault(cell, FakeStream())


class SimReplica:
    """Begins when it is made. `faults` are what happens to its requests to the servers."""

    def __init__(
        self,
        world: ClusterWorld,
        name: str,
        host: Host,
        folder: Path,
        servers: Servers,
        faults: Sequence[Faults],
    ) -> None:
        self.name = name
        self.address = f"{name}:9373"
        self.loop = VirtualLoop(  # type: ignore[abstract]  # it has what is used
            world.kernel, lambda what: world.failed(f"{name}: {what}")
        )
        self.cell: Cell | None = None
        """The last one that it had of the job's."""
        self.is_over = False
        """The process has ended, or was killed."""
        self.is_stopping = False
        """It has got SIGTERM."""
        self._world = world
        self._host = host
        self._folder = folder
        self._servers = servers
        self._faults = faults
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: list[asyncio.Task[None]] = []
        self._main = self.loop.create_task(self._run())

    # -- the process -----------------------------------------------------------------------------

    def kill(self) -> None:
        self.is_over = True
        self.loop.kill()

    def stop(self) -> None:
        """SIGTERM."""
        self.is_stopping = True
        self.loop.call_soon(lambda: self._stopping.append(self.loop.create_task(self._stop())))

    async def handle(self, context: Context) -> None:
        """A call of an agent."""

        async def no_iterator() -> object:
            raise AssertionError

        await self.ingest.handle(no_iterator, context)  # type: ignore[arg-type]  # not used

    def raw(self) -> ServiceRawNs:
        return ServiceRawNs(self._host.raw(self._world.kernel.now))

    async def _run(self) -> None:
        world, folder = self._world, self._folder
        folder.mkdir(parents=True, exist_ok=True)
        config = Config(
            data_dir=folder,
            policy=world.scenario.policy,
            store=StoreLimits(dump_count=0),
            cluster=ClusterOptions(servers=("nats://servers:4222",), member=self.name),
        )
        self.now = RealTime(lambda: self._host.real(world.kernel.now), self.raw)
        self._clocks = AgentClocks(self.now)
        self._store = FindingStore(folder / "findings.sqlite3")
        common = Common(
            config=lambda: config,
            now=self.now,
            clocks=self._clocks,
            dumps=DumpStore(folder / "dumps", max_count=1, max_bytes=1),
            stream_ids=itertools.count(1),
            published=self._published,
        )
        self.cells = _WatchedCells(self)
        homes = LateHomes()
        self.ingest = Ingest(homes, Admission(None, 1_000), stream_bytes_per_s=1 << 30)
        of_registry, of_log, of_findings = self._faults
        keys = FakeRegistry(self._servers.keys, of_registry)
        self.lease = HeartbeatLease(
            SameLoop(),
            keys,
            Replica(self.name, self.address, f"http://{self.name}:9374", "simulated"),
            clock=self.loop.time,
            wall=lambda: self._host.real(world.kernel.now) / 1e9,
        )

        def log(cell: int) -> FencedLog:
            return FakeLog(self._servers.stream(cell), of_log)

        findings = FakeFindings(self._servers.findings, of_findings)
        cluster = Cluster(self.lease, log, findings, keys, _end)
        archive = SharedArchive(cluster, common.config, self._store, self.now)
        self.owner = CellOwner(
            common, self.cells, _WatchedArchive(self, archive), self.lease, lambda findings: None
        )
        archive.refused = self.owner.refused
        try:
            await self.lease.start(self.owner)
        except ClusterError:
            self.kill()
            world.kernel.after(1_000_000_000, lambda: world.start_replica(self.name))
            return
        homes.know(ReplicaHomes(common, self.cells, self.owner, self.lease))
        self._tasks = [
            self.loop.create_task(work)
            for work in (
                _copy(cluster.findings, self._store),
                _repeat(TICK_S, self._tick),
                _repeat(ACK_EVERY_S, self._each(lambda cell: cell.streams.flush_acks())),
                _repeat(_CLOCKS_EVERY_S, self._clocks.refresh),
                _repeat(_CLOCKS_EVERY_S, self._each(lambda cell: cell.streams.compare_clocks())),
            )
        ]

    async def _stop(self) -> None:
        """As `App.stop`."""
        await self._main
        if self.is_over or len(self._stopping) > 1:
            return
        try:
            await self._end()
        except Exception as error:
            self._world.failed(f"{self.name}: does not end: {error!r}")
            raise

    async def _end(self) -> None:
        await self.owner.finish()
        for task in self._tasks:
            task.cancel()
        self._world.hang_up(self)
        await asyncio.sleep(_GRACE_S)
        await self.owner.close()
        await self.lease.stop()
        self._store.close()
        self._world.kill_replica(self.name, 0)  # with the connections that came since

    def _tick(self) -> None:
        self.now.follow()
        self.cells.refresh()
        self.lease.ticked()

    def _each(self, work: Callable[[Cell], None]) -> Callable[[], None]:
        def on_all() -> None:
            for cell in list(self.cells.values()):
                work(cell)

        return on_all

    def _published(self, events: Sequence[FindingEvent]) -> None:
        if events:
            self.cells.refresh()
            self._world.shown(self, events)


class _WatchedCells(Cells):
    """The oracle sees what the streams of each cell apply."""

    def __init__(self, replica: SimReplica) -> None:
        super().__init__(is_cluster=True, complete=lambda state: state)
        self._replica = replica

    def __setitem__(self, number: int, cell: Cell) -> None:
        super().__setitem__(number, cell)
        take, oracle = cell.streams.take, self._replica._world.oracle

        def taken(stream, data):  # type: ignore[no-untyped-def]
            event = take(stream, data)
            oracle.applied(stream, event, data)
            return event

        cell.streams.take = taken  # type: ignore[method-assign]
        # No owner's ids are those of another; random ones would make each run another.
        owners = sum(self._replica._world.takes.values())
        cell.home.inquiries._request_ids = itertools.count(1 << 47 | owners << 24)
        if number == cell_of(self._replica._world.job):
            self._replica.cell = cell


class _WatchedArchive:
    """The oracle sees what an owner takes over. An `Archive`."""

    def __init__(self, replica: SimReplica, archive: Archive) -> None:
        self._replica = replica
        self._archive = archive

    async def open(self, cell: int) -> Opened:
        self._replica._world.takes[cell] += 1
        opened = await self._archive.open(cell)
        self._replica._world.taken_over(self._replica, cell, opened)
        return opened


async def _repeat(every_s: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(every_s)
        work()


async def _end() -> None:
    pass
