"""Services that do nothing but own cells, with real leases and a fake registry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from frd.cluster.cells import CELLS, preferred
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from tests.world.fake_cluster import FakeKeys, FakeRegistry, Faults
from tests.world.virtual_time import SameLoop, VirtualLoop

WALL = 1_790_000_000
"""The time of day at which the tests begin, about; s."""


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
            wall=lambda: WALL + loop.time(),
        )
        self.cells: set[int] = set()
        self.claims: dict[int, int] = {}
        """Of the cells that it has gained, also of those that it has lost since."""
        self.losses: list[int] = []
        self.drained: list[int] = []
        self.busy = False
        self.leaving = False
        self._tasks: set[asyncio.Task[None]] = set()

    def gained(self, cell: int, claim: int, why: str) -> None:
        assert not self.leaving
        self.cells.add(cell)
        self.claims[cell] = claim
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
    running: list[Service] = field(default_factory=list)
    """These, and those that a test has taken out of them and that go on."""

    async def begin(self, *names: str) -> None:
        for name in names:
            service = Service(self.keys, name, self.seed)
            self.services[name] = service
            self.running.append(service)
            await service.start()

    def crash(self, name: str) -> Service:
        service = self.services.pop(name)
        service.kill()
        self.running = [other for other in self.running if other is not service]
        return service

    def wrongly_sure(self) -> list[str]:
        """Replicas that are sure of a cell which another one has claimed after them."""
        return [
            f"{service.name} is sure of {cell}, which {other.name} has claimed"
            for service in self.running
            if service.lease.is_sure
            for other in self.running
            if other is not service
            for cell in service.cells
            if other.claims.get(cell, 0) > service.claims[cell]
        ]

    def no_leader(self, seconds: float) -> None:
        for name in self.services:
            self.cut_off(name, seconds)

    def cut_off(self, name: str, seconds: float) -> None:
        """The replica does not reach the registry."""
        until = asyncio.get_running_loop().time() + seconds
        self.services[name].faults.no_leader_until = until

    def pause(self, name: str, seconds: float) -> None:
        """The process of the replica is stopped: it sends nothing, and reads no answer."""
        until = asyncio.get_running_loop().time() + seconds
        self.services[name].faults.paused_until = until

    def owned(self) -> set[int]:
        return {cell for service in self.services.values() for cell in service.cells}

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

    def is_balanced(self) -> bool:
        """Every cell is at the replica that is preferred for it."""
        names = sorted(self.services)
        return all(
            preferred(cell, names) == name for name, s in self.services.items() for cell in s.cells
        )

    def end(self) -> None:
        for name in list(self.services):
            self.crash(name)


@asynccontextmanager
async def settled(*names: str, seed: int = 0) -> AsyncIterator[Cluster]:
    """A cluster in which these replicas own all cells. At no step of its life is a replica sure of
    a cell that another one has claimed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    cluster, wrong = Cluster(seed), list[str]()

    def look() -> None:
        if not wrong:
            wrong.extend(f"{loop.time():.3f}: {what}" for what in cluster.wrongly_sure())

    loop.after_each_step.append(look)
    await cluster.begin(*names)
    await cluster.settle(6.0)
    yield cluster
    cluster.end()
    assert not wrong, wrong[0]
