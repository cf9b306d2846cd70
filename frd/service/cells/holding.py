"""How a process comes to its cells. Alone, it has the only one for good; `replica` has the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from frd.cluster.lease import Lease
from frd.model import Finding
from frd.service.cells.alone import LocalLease
from frd.service.cells.archive import LocalArchive
from frd.service.cells.cell import Common
from frd.service.cells.cells import WHOLE, Cells
from frd.service.cells.homes import OneHome
from frd.service.cells.owner import CellOwner
from frd.service.findings.silences import LocalKeys
from frd.service.ingest.collector import Home, Homes
from frd.service.state import ClusterState
from frd.store.findings import FindingStore
from frd.wire.messages import Redirect

Restored = Callable[[Sequence[Finding]], None]
"""Gets the open findings of a cell that was taken over."""


@dataclass(frozen=True, slots=True)
class Holding:
    lease: Lease
    owner: CellOwner
    homes: Homes
    cluster: Callable[[], ClusterState | None]
    close: Callable[[], Awaitable[None]]
    """Call it last."""

    async def stop(self) -> None:
        """After `CellOwner.finish` and the end of all streams."""
        await self.owner.close()
        await self.lease.stop()
        await self.close()


async def hold_alone(
    common: Common, cells: Cells, store: FindingStore, restored: Restored
) -> Holding:
    await common.silences.keep_in(LocalKeys(store))
    lease = LocalLease()
    archive = LocalArchive(common.config, store, common.now)
    owner = CellOwner(common, cells, archive, lease, restored)
    await owner.take_over(WHOLE, "start")
    return Holding(lease, owner, OneHome(cells), lambda: None, _nothing)


class LateHomes:
    """Streams that come in before the process holds its cells wait."""

    def __init__(self) -> None:
        self._homes: Homes | None = None
        self._known = asyncio.Event()

    def know(self, homes: Homes) -> None:
        self._homes = homes
        self._known.set()

    async def find(self, job: str | None) -> Home | Redirect:
        await self._known.wait()
        assert self._homes is not None
        return await self._homes.find(job)


async def _nothing() -> None:
    pass
