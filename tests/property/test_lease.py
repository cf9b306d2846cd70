"""Laws of the lease, with the code that runs in the service and a registry that fails."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from frd.cluster.cells import CELLS
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from tests.world.fake_cluster import FakeKeys, FakeRegistry, Faults
from tests.world.seeds import seeds
from tests.world.virtual_time import SameLoop, run_virtual


class Service:
    """A replica's service: it takes over what it gains immediately, and drains when asked."""

    def __init__(self, keys: FakeKeys, name: str, seed: int) -> None:
        self.name = name
        self.faults = Faults(random.Random(f"{seed} {name}"), timeout_s=1.0)
        loop = asyncio.get_running_loop()
        self.lease = HeartbeatLease(
            SameLoop(),
            FakeRegistry(keys, self.faults),
            Replica(name, f"{name}:1", f"http://{name}:2", "1"),
            clock=loop.time,
        )
        self.cells: set[int] = set()
        self.losses: list[int] = []
        self.drained: list[int] = []
        self.busy = False
        self.leaving = False
        self._tasks: set[asyncio.Task[None]] = set()

    def gained(self, cell: int, why: str) -> None:
        assert not self.leaving
        self.cells.add(cell)
        self.lease.owned(cell)

    def lost(self, cell: int) -> None:
        assert cell in self.cells
        self.cells.discard(cell)
        self.losses.append(cell)

    def drain(self, cell: int, successor: str) -> None:
        assert successor != self.name
        self.drained.append(cell)
        self._spawn(self._drain(cell))

    async def start(self) -> None:
        await self.lease.start(self)
        self._spawn(self._tick())

    def kill(self) -> None:
        """As a crash: nothing is said."""
        assert self.lease._running is not None
        self.lease._running.cancel()
        self.lease._running = None
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        await self.lease.leave()
        self.leaving = True
        for cell in sorted(self.cells):
            self.cells.discard(cell)
            await self.lease.release(cell)
        await self.lease.stop()
        for task in self._tasks:
            task.cancel()

    async def _drain(self, cell: int) -> None:
        self.cells.discard(cell)
        await self.lease.release(cell)

    async def _tick(self) -> None:
        while True:
            if not self.busy:
                self.lease.ticked()
            await asyncio.sleep(0.25)

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass
class Cluster:
    seed: int = 0
    keys: FakeKeys = field(default_factory=FakeKeys)
    services: dict[str, Service] = field(default_factory=dict)

    async def begin(self, *names: str) -> None:
        for name in names:
            self.services[name] = Service(self.keys, name, self.seed)
            await self.services[name].start()

    def crash(self, name: str) -> Service:
        service = self.services.pop(name)
        service.kill()
        return service

    def no_leader(self, seconds: float) -> None:
        for service in self.services.values():
            service.faults.no_leader_until = asyncio.get_running_loop().time() + seconds

    def problem(self) -> str | None:
        """What is not as it should be in a settled cluster."""
        owners = {cell: name for name, s in self.services.items() for cell in s.cells}
        total = sum(len(s.cells) for s in self.services.values())
        if total != CELLS or len(owners) != CELLS:
            return f"{total} owners of {len(owners)} cells"
        for service in self.services.values():
            view = service.lease.view
            if view.owners != owners or not view.connected:
                return f"{service.name} sees other owners, or is not connected"
            if [r.name for r in view.replicas] != sorted(self.services):
                return f"{service.name} sees {[r.name for r in view.replicas]}"
        return None

    async def settle(self, within_s: float) -> float:
        """Seconds until every cell has one owner and all replicas see that."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (problem := self.problem()) is not None:
            assert loop.time() < began + within_s, f"{problem} after {within_s} s"
            await asyncio.sleep(0.1)
        return loop.time() - began

    def end(self) -> None:
        for name in list(self.services):
            self.crash(name)


@pytest.mark.parametrize("seed", range(seeds(60)))
def test_every_cell_is_owned_soon_after_the_last_fault(seed: int) -> None:
    """Replicas crash, start again, leave and are cut off, answers are lost, and the registry has no
    leader at times: ten seconds after the last fault every cell has one owner."""

    async def story() -> None:
        rng = random.Random(seed)
        cluster = Cluster(seed)
        await cluster.begin("a", "b", "c")
        await cluster.settle(10.0)
        for service in cluster.services.values():
            service.faults.lost_answers = service.faults.lost_requests = 0.03
            service.faults.delay_s = 0.05
        for _ in range(10):
            await asyncio.sleep(rng.uniform(0, 6))
            name, fault = rng.choice("abcd"), rng.random()
            if name not in cluster.services:
                await cluster.begin(name)
            elif fault < 0.3 and len(cluster.services) > 1:
                cluster.crash(name)
            elif fault < 0.5:
                cluster.crash(name)
                await cluster.begin(name)
            elif fault < 0.6 and len(cluster.services) > 1:
                await cluster.services.pop(name).leave()
            elif fault < 0.8:
                until = asyncio.get_running_loop().time() + rng.uniform(1, 10)
                cluster.services[name].faults.no_leader_until = until
            else:
                cluster.no_leader(rng.uniform(4, 9))
        for service in cluster.services.values():
            service.faults.lost_answers = service.faults.lost_requests = 0.0
            service.faults.no_leader_until = 0.0
        await cluster.settle(10.0)
        cluster.end()

    run_virtual(story())


def test_a_crashed_owner_is_replaced_in_time() -> None:
    """One of three replicas crashes: 4.5 seconds later all see that the others own its cells; they
    have lost none."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        cluster.crash("b")
        assert await cluster.settle(4.5) > 2.5
        assert not any(service.losses for service in cluster.services.values())
        cluster.end()

    run_virtual(story())


def test_no_leader_moves_nothing() -> None:
    """The registry has no leader for a minute: every replica keeps its cells and reports that it
    is not connected; after that nothing has moved."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        before = {name: set(s.cells) for name, s in cluster.services.items()}
        cluster.no_leader(60.0)
        await asyncio.sleep(30)
        assert not any(s.lease.view.connected for s in cluster.services.values())
        await asyncio.sleep(34)
        assert cluster.problem() is None
        assert {name: set(s.cells) for name, s in cluster.services.items()} == before
        cluster.end()

    run_virtual(story())


def test_a_cut_off_owner_keeps_its_cells_until_it_learns_more() -> None:
    """A replica cannot reach the registry, and the others take its cells: it keeps them until it
    reaches the registry again, and loses them with its first heartbeat then."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        cut = cluster.services.pop("a")
        had = set(cut.cells)
        cut.faults.no_leader_until = asyncio.get_running_loop().time() + 20
        await asyncio.sleep(19)
        assert cut.cells == had
        taken = set.union(*(s.cells for s in cluster.services.values()))
        assert taken == set(range(CELLS))
        await asyncio.sleep(1.5)
        assert not cut.cells
        assert set(cut.losses) == had
        cluster.services["a"] = cut
        cluster.end()

    run_virtual(story())


def test_a_replica_that_leaves_is_replaced_without_waiting() -> None:
    """A replica drains its cells and ends: the others own them within two seconds."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        await cluster.services.pop("c").leave()
        await cluster.settle(2.0)
        cluster.end()

    run_virtual(story())


def test_a_replica_that_ends_slowly_claims_nothing() -> None:
    """A replica begins to end, and keeps its cells for some seconds; meanwhile another one dies: a
    third replica takes its cells, and the first ones that are released without waiting longer."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        ending = cluster.services.pop("a")
        await ending.lease.leave()
        dead = cluster.crash("b").cells
        await asyncio.sleep(4.5)
        assert dead <= cluster.services["c"].cells
        assert not ending.cells & dead
        cell = min(ending.cells)
        began = loop.time()
        ending.cells.discard(cell)
        await ending.lease.release(cell)
        while cell not in cluster.services["c"].cells:
            await asyncio.sleep(0.05)
        assert loop.time() - began < 1.1
        await ending.leave()
        await cluster.settle(2.0)
        cluster.end()

    run_virtual(story())


def test_a_service_that_does_not_evaluate_loses_its_cells() -> None:
    """The event loop of an owner hangs: its heartbeats stop after five seconds, others take over,
    and when it evaluates again it learns that."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        hung = cluster.services.pop("a")
        hung.busy = True
        await asyncio.sleep(5.0 + 4.5)
        assert set.union(*(s.cells for s in cluster.services.values())) == set(range(CELLS))
        hung.busy = False
        await asyncio.sleep(1.0)
        assert not hung.cells
        cluster.services["a"] = hung
        cluster.end()

    run_virtual(story())


def test_a_second_process_of_one_name_replaces_the_first() -> None:
    """A replica is started while an older process of its name still runs: the older one loses all
    its cells, and the cluster settles without it."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b")
        await cluster.settle(6.0)
        older = cluster.services.pop("a")
        await cluster.begin("a")
        await cluster.settle(6.0)
        assert not older.cells
        await asyncio.sleep(20)
        await cluster.settle(3.0)  # a cell may be on its way back
        assert not older.cells
        cluster.services["older"] = older
        cluster.end()

    run_virtual(story())


def test_a_fenced_owner_gives_up_and_the_cell_is_owned_again() -> None:
    """The log refuses an owner: it gives the cell up, and the cell has an owner soon."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b")
        await cluster.settle(6.0)
        service = cluster.services["a"]
        cell = min(service.cells)
        service.cells.discard(cell)
        service.lease.give_up(cell)
        await cluster.settle(3.0)
        assert cell in cluster.services["b"].cells
        cluster.end()

    run_virtual(story())


def test_cells_are_drained_to_a_new_replica() -> None:
    """A replica joins a quiet cluster: it gets its share, one cell in ten seconds from each owner,
    and no cell is lost on the way."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b")
        await cluster.settle(6.0)
        await cluster.begin("c")
        await asyncio.sleep(60)
        assert 4 <= len(cluster.services["c"].cells) <= 12
        await asyncio.sleep(200)
        assert 10 <= len(cluster.services["c"].cells) <= 32
        await cluster.settle(3.0)
        assert not any(service.losses for service in cluster.services.values())
        cluster.end()

    run_virtual(story())


def test_giving_up_many_cells_is_no_sign_of_death() -> None:
    """An owner gives up all its cells at the same moment, and writes many heartbeats for that: it
    does not take the others for dead."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.begin("a", "b", "c")
        await cluster.settle(6.0)
        service = cluster.services["a"]
        service.faults.delay_s = 0.05
        for cell in sorted(service.cells):
            service.cells.discard(cell)
            service.lease.give_up(cell)
            await asyncio.sleep(0.02)
        await cluster.settle(4.0)
        assert not any(service.losses for service in cluster.services.values())
        assert not service.cells, "it leaves them to others for a while"
        cluster.end()

    run_virtual(story())
