"""A replica's cells under a scripted lease, with a local journal, without listeners and servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from frd.cluster.cells import cell_of
from frd.cluster.lease import ClusterView, Owner, Replica
from frd.config import Config
from frd.engine.matching.learned_pauses import JobPauses
from frd.model import Finding, FindingEvent, NodeNs, NodeRawNs
from frd.service.cells.cell import Common
from frd.service.cells.cells import Cells
from frd.service.cells.owner import CellOwner, LocalArchive, Opened, open_journal
from frd.service.cells.replica import NoLog, ReplicaHomes
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.findings.keepers import Keeper
from frd.service.state import CellState
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, Hello

ME, OTHER = (
    Replica(name, f"{name}:9373", f"http://{name}:9374", "test") for name in ("frd-0", "frd-1")
)
JOB = "train"
CELL = cell_of(JOB)
HELLO = encode_agent(Hello(PROTOCOL, "test", "n", "boot", "s", NodeNs(1), NodeRawNs(1)))


class ScriptedLease:
    """Says what the test says, and remembers the calls on it."""

    is_sure = True

    def __init__(self) -> None:
        self.view = ClusterView(ME.name, (ME, OTHER))
        self.calls: list[tuple[object, ...]] = []

    def owners(self, **names: str) -> None:
        owners = {int(cell.removeprefix("c")): name for cell, name in names.items()}
        self.view = ClusterView(ME.name, (ME, OTHER), owners)

    async def start(self, owner: Owner) -> None:
        pass

    def ticked(self) -> None:
        pass

    def owned(self, cell: int) -> None:
        self.calls.append(("owned", cell))

    async def release(self, cell: int) -> None:
        self.calls.append(("release", cell))

    def give_up(self, cell: int) -> None:
        self.calls.append(("give_up", cell))

    async def leave(self) -> None:
        self.calls.append(("leave",))

    async def stop(self) -> None:
        pass


@dataclass
class Archive:
    """A local journal; opening fails with these errors first."""

    local: LocalArchive
    errors: list[Exception] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)

    async def open(self, cell: int, claim: int) -> Opened:
        if self.errors:
            raise self.errors.pop(0)
        self.opened.append(await self.local.open(cell, claim))
        return self.opened[-1]


class Contested(LocalArchive):
    """Another replica claims each cell before the takeover ends, and a write finds that."""

    def __init__(self) -> None:
        pass

    async def open(self, cell: int, claim: int) -> Opened:
        return Opened(NoLog(), SupersededKeeper())


class SupersededKeeper(Keeper):
    name = "nothing"
    is_over = True

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        assert not events


@dataclass
class Parts:
    lease: ScriptedLease
    archive: Archive
    cells: Cells
    owner: CellOwner
    homes: ReplicaHomes
    restored: list[Finding]
    configs: list[Config]
    """The last one is in force."""

    async def settle(self) -> None:
        """All tasks of the owner have ended."""
        while self.owner.states()[CellState.TAKING_OVER] + self.owner.states()[CellState.DRAINING]:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def replica(folder: Path) -> AsyncIterator[Parts]:
    configs, now = [Config(data_dir=folder)], RealTime()
    store = FindingStore(folder / "findings.sqlite3")
    common = Common(
        config=lambda: configs[-1],
        now=now,
        clocks=AgentClocks(now),
        dumps=DumpStore(folder / "dumps", max_count=1, max_bytes=1),
        stream_ids=itertools.count(1),
        published=lambda events: None,
        is_sure=lambda: lease.is_sure,
    )
    lease = ScriptedLease()
    journal = open_journal(common)
    archive = Archive(LocalArchive(journal, store))
    cells = Cells(is_cluster=True, complete=lambda state: state)
    restored: list[Finding] = []
    owner = CellOwner(common, cells, archive, lease, restored.extend)
    try:
        homes = ReplicaHomes(common, cells, owner, lease)
        yield Parts(lease, archive, cells, owner, homes, restored, configs)
    finally:
        await owner.finish()
        await owner.close()
        journal.close()
        store.close()
