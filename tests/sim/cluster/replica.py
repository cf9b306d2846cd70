"""One process of a replica: what `frd.service.app` and `frd.service.cells.replica` put together,
without listeners, on fakes of the servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from frd.cluster.cells import cell_of
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from frd.config import ClusterOptions, Config
from frd.config.settings import NotifyTarget, StoreLimits
from frd.errors import ClusterError
from frd.model import EntryColumns, FindingEvent, ServiceRawNs
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.cells.cell import Cell, Common
from frd.service.cells.cells import Cells
from frd.service.cells.owner import Archive, CellOwner, Opened
from frd.service.cells.replica import LateHomes, NoLog, ReplicaHomes, SharedArchive, copy
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.findings.evaluator import TICK_S
from frd.service.findings.notifier import Notifier
from frd.service.ingest.collector import ACK_EVERY_S, Ingest
from frd.service.ingest.streams import Stream
from frd.service.metrics.collector import render
from frd.service.state import ClusterState, ServiceState
from frd.service.view import ServiceView
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore, Owed
from tests.sim.cluster.heard import Process
from tests.sim.loop import VirtualLoop
from tests.world.clocks import Host
from tests.world.fake_cluster import FakeCells, FakeRegistry, Faults
from tests.world.virtual_time import SameLoop

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

_CLOCKS_EVERY_S: Final = 0.5
_GRACE_S: Final = 1.0
_SURE_EVERY_S: Final = 0.5
_ASK_EVERY_S: Final = 1.0


class SimReplica:
    """Begins when it is made. `faults` are what happens to its requests to the servers."""

    def __init__(
        self,
        world: ClusterWorld,
        name: str,
        host: Host,
        folder: Path,
        faults: Faults,
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
        self._faults = faults
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: list[asyncio.Task[None]] = []
        self._main = self.loop.create_task(self._run())

    @property
    def process(self) -> Process:
        return Process(self.name, self.lease._generation)

    # -- what is heard of it ---------------------------------------------------------------------

    def metrics(self) -> str:
        """What a scrape gets now."""
        return render(self._view.exported(), of_findings=True).decode()

    def acknowledged(self, session: str, revisions: dict[int, int]) -> None:
        """An agent is sent an acknowledgement."""
        self._world.heard.acknowledged(self, session, revisions)

    def streams_of(self, session: str) -> Iterator[Stream]:
        """Of an agent process, to the job's cell."""
        if self.cell is not None:
            for stream in list(self.cell.streams._streams.values()):
                if stream.session.key[1] == session:
                    yield stream

    # -- the process -----------------------------------------------------------------------------

    def kill(self) -> None:
        self.is_over = True
        self.loop.kill()

    def go_on(self) -> None:
        """SIGCONT. What has arrived meanwhile is read before anything that is due."""
        was_paused, self.loop.is_paused = self.loop.is_paused, False
        if was_paused and self._tasks and not self.is_over:
            self._world.heard.scraped(self)
        self.loop.go_on()

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
        self.store = FindingStore(folder / "findings.sqlite3")
        keys = FakeRegistry(world.servers, self._faults)
        self.lease = HeartbeatLease(
            SameLoop(),
            keys,
            Replica(self.name, self.address, f"http://{self.name}:9374", "simulated"),
            clock=self.loop.time,
            wall=lambda: self._host.real(world.kernel.now) / 1e9,
        )
        self._notifier = Notifier((), str, now=self.now.utc, is_sure=self._is_sure)
        self._notifier._senders = [cast(Any, _Sender(self))]
        dumps = DumpStore(folder / "dumps", max_count=1, max_bytes=1)
        common = Common(
            config=lambda: config,
            now=self.now,
            clocks=self._clocks,
            dumps=dumps,
            stream_ids=itertools.count(1),
            published=self._published,
            prepare=self._notifier.prepare,
            is_sure=self._is_sure,
        )
        self.cells = _WatchedCells(self)
        no_timelines = cast(Any, None)
        of_stores = self.store, dumps
        self._view = ServiceView(self.cells, *of_stores, self.now, no_timelines, common.silences)
        self._notifier.is_asking = self.cells.is_asking
        self._notifier.is_unstored = self.cells.is_unstored
        homes = LateHomes()
        self.ingest = Ingest(homes, Admission(None, 1_000), stream_bytes_per_s=1 << 30)
        values = FakeCells(world.servers, self._faults)
        no_journal = cast(Any, _NoJournal())
        archive = SharedArchive(values, no_journal, common.config, self.now, self._notifier)
        watched = _WatchedArchive(self, archive)
        self.owner = _Owner(common, self.cells, watched, self.lease, self._notifier.take_up)
        self.owner.replica = self
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
                copy(values, self.store),
                _repeat(TICK_S, self._tick),
                _repeat(_ASK_EVERY_S, self._ask_others),
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
        self._notifier.close()
        self._world.hang_up(self)
        await asyncio.sleep(_GRACE_S)
        await self.owner.close()
        await self.lease.stop()
        self.store.close()
        self._world.kill_replica(self.name, 0)  # with the connections that came since

    def _tick(self) -> None:
        self.now.follow()
        self.lease.ticked()
        self.cells.refresh()
        self._notifier.look()

    def _ask_others(self) -> None:
        """As `frd.service.http.peers.questions.CutOff`: which cells they have."""
        if self.lease.view.connected:
            return
        for other in self._world.running():
            if other is not self and other.lease.view.connected and other.lease.is_sure:
                for cell in self.cells.keys() & other.cells.keys():
                    self.owner.taken(cell, other.address)

    def _each(self, work: Callable[[Cell], object]) -> Callable[[], None]:
        def on_all() -> None:
            for cell in list(self.cells.values()):
                work(cell)

        return on_all

    def _is_sure(self) -> bool:
        return self.lease.is_sure

    def _completed(self, state: ServiceState) -> ServiceState:
        return replace(state, cluster=ClusterState(self.lease.view, {}))

    def _dropped(self, number: int, cell: Cell) -> None:
        """As in `App`."""
        self._notifier.forget(cell.notifiable)

    def _published(self, events: Sequence[FindingEvent]) -> None:
        if events:
            self.cells.refresh()
            self._notifier.see(events)
            self._world.shown(self, events)


class _WatchedCells(Cells):
    """The oracle sees what the streams of each cell apply."""

    def __init__(self, replica: SimReplica) -> None:
        super().__init__(
            is_cluster=True,
            complete=replica._completed,
            dropped=replica._dropped,
            is_sure=replica._is_sure,
        )
        self._replica = replica

    def __setitem__(self, number: int, cell: Cell) -> None:
        super().__setitem__(number, cell)
        take, world = cell.streams.take, self._replica._world
        oracle, heard = world.oracle, world.heard

        def taken(stream, data):  # type: ignore[no-untyped-def]
            event = take(stream, data)
            oracle.applied(stream, event, data)
            if isinstance(event, EntryColumns) and event.first_revision > 0:
                last = event.first_revision + len(event) - 1
                heard.applied(
                    self._replica, stream, stream.session.ranks[event.rank].info.pid, last
                )
            return event

        cell.streams.take = taken  # type: ignore[method-assign]
        # No owner's ids are those of another; random ones would make each run another.
        owners = sum(self._replica._world.takes.values())
        cell.home.inquiries._request_ids = itertools.count(1 << 47 | owners << 24)
        if number == cell_of(self._replica._world.job):
            self._replica.cell = cell


class _Owner(CellOwner):
    """The oracle sees what it gains."""

    replica: SimReplica

    def gained(self, cell: int, claim: int, why: str) -> None:
        self.replica._world.heard.gained(self.replica, cell)
        super().gained(cell, claim, why)


class _WatchedArchive:
    """The oracle sees what an owner takes over. An `Archive`."""

    def __init__(self, replica: SimReplica, archive: Archive) -> None:
        self._replica = replica
        self._archive = archive

    async def open(self, cell: int, claim: int) -> Opened:
        self._replica._world.takes[cell] += 1
        opened = await self._archive.open(cell, claim)
        self._replica._world.taken_over(self._replica, cell, opened)
        return opened


async def _repeat(every_s: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(every_s)
        work()


class _NoJournal:
    def cell(self, number: int, settings: bytes, now: int) -> NoLog:
        return NoLog()


class _Sender:
    """In place of a webhook and its thread."""

    target = NotifyTarget(name="people", url="http://people")
    thread = SimpleNamespace(join=lambda timeout: None)
    sending = ""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica

    def stop(self, *, when_empty: bool = False) -> None:
        pass

    def put(self, message: Owed) -> None:
        replica, notifier = self._replica, self._replica._notifier
        if not notifier.is_owed(message):
            return
        if notifier.may_send(message):
            replica._world.heard.noticed(replica, message.key)
            notifier.settle(message)
        else:
            replica.loop.call_later(_SURE_EVERY_S, self.put, message)
