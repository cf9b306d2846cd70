"""A service without a cluster: one cell, which is its own for good, on the disk of this machine.

That no other process uses the same data directory is ensured by a lock on it (`frd.service.app`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from frd.cluster.lease import ClusterView, Lease
from frd.config import Config
from frd.errors import StoreError
from frd.service.cells.cell import Common
from frd.service.cells.cells import WHOLE, Cells
from frd.service.cells.owner import CellOwner, Holding, Opened, Restored
from frd.service.clocks.real_time import RealTime
from frd.service.findings.keepers import LocalKeeper
from frd.service.findings.silences import LocalKeys
from frd.service.ingest.collector import Home
from frd.service.journal.payloads import limits_of, settings_of
from frd.service.journal.writer import JournalWriter
from frd.store.findings import FindingStore

logger = logging.getLogger(__name__)


async def hold_alone(
    common: Common, cells: Cells, store: FindingStore, restored: Restored
) -> Holding:
    await common.silences.keep_in(LocalKeys(store))
    lease = LocalLease()
    archive = LocalArchive(common.config, store, common.now)
    owner = CellOwner(common, cells, archive, lease, restored)
    await owner.take_over(WHOLE, "start")
    return Holding(lease, owner, OneHome(cells))


class LocalLease(Lease):
    view = ClusterView()


class OneHome:
    """All streams belong to the same cell."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def find(self, job: str | None) -> Home:
        return self._cells[WHOLE].home


class LocalArchive:
    """The data directory of this machine."""

    def __init__(self, config: Callable[[], Config], findings: FindingStore, now: RealTime) -> None:
        self._config = config
        self._findings = findings
        self._now = now

    async def open(self, cell: int) -> Opened:
        config = self._config()
        log = JournalWriter(
            config.data_dir / "journal",
            settings=settings_of(config, self._now.ahead_ns),
            now=self._now(),
            limits=limits_of(config),
        )
        keeper, store = LocalKeeper(self._findings), self._findings
        try:
            return Opened(log, keeper, store.open_findings(), store.pauses())
        except StoreError as error:
            logger.error("%s: the service begins without earlier findings", error)
            return Opened(log, keeper)
