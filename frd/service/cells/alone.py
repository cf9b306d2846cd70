"""A service without a cluster: one cell, which is its own for good, on the disk of this machine.

That no other process uses the same data directory is ensured by a lock on it (`frd.service.app`).
"""

from __future__ import annotations

import logging

from frd.cluster.lease import ClusterView, Lease
from frd.errors import StoreError
from frd.service.cells.cell import Common
from frd.service.cells.cells import WHOLE, Cells
from frd.service.cells.owner import CellOwner, Holding, Opened
from frd.service.findings.keepers import LocalKeeper
from frd.service.findings.notifier import Notifier
from frd.service.findings.silences import LocalKeys
from frd.service.ingest.collector import Home
from frd.service.journal.payloads import limits_of, settings_of
from frd.service.journal.writer import JournalWriter
from frd.store.findings import FindingStore

logger = logging.getLogger(__name__)


async def hold_alone(
    common: Common, cells: Cells, store: FindingStore, notices: Notifier
) -> Holding:
    await common.silences.keep_in(LocalKeys(store))
    lease = LocalLease()
    journal = open_journal(common)
    owner = CellOwner(common, cells, LocalArchive(journal, store), lease, notices.take_up)
    await owner.take_over(WHOLE, 0, "start")
    return Holding(lease, owner, OneHome(cells), journal)


def open_journal(common: Common) -> JournalWriter:
    config, now = common.config(), common.now
    return JournalWriter(
        config.data_dir / "journal",
        settings=settings_of(config, now.ahead_ns),
        now=now(),
        limits=limits_of(config),
    )


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

    def __init__(self, journal: JournalWriter, findings: FindingStore) -> None:
        self._journal = journal
        self._findings = findings

    async def open(self, cell: int, claim: int) -> Opened:
        log, keeper, store = self._journal.whole(), LocalKeeper(self._findings), self._findings
        try:
            return Opened(log, keeper, store.open_findings(), store.pauses())
        except StoreError as error:
            logger.error("%s: the service begins without earlier findings", error)
            return Opened(log, keeper)
