"""A replica: a process that shares the cells of a cluster with others.

What an owner leaves to the next one is in the cluster's values of the cell. The local database has
a copy of all findings, so that every replica can answer for the past of all jobs; the journal is
of the cells that this process has had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from frd import __version__
from frd.cluster.cells import CELLS
from frd.cluster.cluster import STATE, CellStore, CellValue
from frd.cluster.registry import RegistryUnavailable
from frd.config import Config
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import StoreError
from frd.forms import later
from frd.model import AlignedNs, Change, Finding, FindingEvent
from frd.service.cells.cell import Common
from frd.service.cells.cells import Cells
from frd.service.cells.homes import ReplicaHomes
from frd.service.cells.owner import CellOwner, Holding, Opened, Restored, open_journal
from frd.service.clocks.real_time import RealTime
from frd.service.findings.keepers import SharedKeeper
from frd.service.findings.people import READ_EVERY_S
from frd.service.journal.payloads import (
    Handover,
    decode_finding,
    decode_pauses,
    decode_payload,
    encode_finding,
    settings_of,
    usable,
)
from frd.service.journal.writer import JournalWriter
from frd.service.periodic import repeat
from frd.service.state import ClusterState
from frd.store.findings import FindingStore
from frd.store.records import RecordKind

_AGAIN_S: Final = 1.0
_AHEAD_NS: Final = 1_000_000_000
"""The clock of a former owner may be ahead by so much."""
_DELETE_EVERY_S: Final = 300.0
"""One cell is looked at in this time: all its findings are read, which are kept for weeks."""
_TAKEN_TOGETHER: Final = 4
"""So many cells are read in the same moment: what one holds may be many megabytes."""

log = logging.getLogger(__name__)


async def hold_replica(
    common: Common, cells: Cells, store: FindingStore, restored: Restored, grpc: str, http: str
) -> Holding:
    """`grpc` and `http` are the addresses at which agents and other replicas reach this process.

    Raises:
        ClusterError: the cluster cannot be used: names the key and what to do.
    """
    from frd.cluster.nats import connect  # noqa: PLC0415  NATS is an extra

    config = common.config()
    cluster = await connect(config.cluster, config.member, grpc, http, __version__)
    journal = open_journal(common)
    archive = SharedArchive(cluster.values, journal, common.config, common.now)
    owner = CellOwner(common, cells, archive, cluster.lease, restored)
    archive.refused = owner.refused
    await common.silences.keep_in(cluster.keys)
    deletion = Deletion(cluster.values, cells.keys, common.config, common.now.utc)
    tasks = [
        asyncio.create_task(one)
        for one in (
            copy(cluster.values, store),
            repeat("reading silences", READ_EVERY_S, common.silences.read),
            repeat("deleting old findings", _DELETE_EVERY_S, deletion.look),
        )
    ]

    async def close() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()

    def state() -> ClusterState:
        return ClusterState(
            view=cluster.lease.view,
            cells=owner.states(),
            takeovers=dict(owner.takeovers),
            fenced=owner.fenced,
            sure=cluster.lease.is_sure,
        )

    try:
        await cluster.lease.start(owner)
    except BaseException:
        await close()
        await asyncio.to_thread(journal.close)
        raise
    homes = ReplicaHomes(common, cells, owner, cluster.lease)
    return Holding(cluster.lease, owner, homes, journal, state, close)


@dataclass(slots=True, eq=False)
class SharedArchive:
    """An `Archive` in the values of the cluster's cells."""

    values: CellStore
    journal: JournalWriter
    config: Callable[[], Config]
    now: RealTime
    refused: Callable[[int], None] = lambda cell: None
    """Called when another replica has claimed a cell of this one."""
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_TAKEN_TOGETHER))

    async def open(self, cell: int, claim: int) -> Opened:
        async with self._reading:
            values = await self.values.of_cell(cell)
            left, pauses, last_at = await asyncio.to_thread(_left, values)
        ahead_ns = max(0, last_at - self.now.utc())
        if ahead_ns > _AHEAD_NS:
            log.error(
                "cell %d: its last owner's time is %.0f s ahead of this machine's clock: "
                "synchronize the clocks (NTP)",
                *(cell, ahead_ns / 1e9),
            )
        # Nothing that this owner goes on with has happened later than now.
        findings = [later(finding, -ahead_ns) for finding in left if finding.lasts]
        now = self.now()
        journal = self.journal.cell(cell, settings_of(self.config(), self.now.ahead_ns), now)
        for finding in findings:
            journal.record(RecordKind.RESTORED, now, payload=encode_finding(finding))
        by_job = {one.job: one for one in pauses}
        keeper = SharedKeeper(cell, claim, self.values, by_job, self.now.utc, self.refused)
        return Opened(journal, keeper, findings, pauses)


def _left(
    values: Sequence[CellValue],
) -> tuple[Sequence[Finding], Sequence[JobPauses], AlignedNs]:
    """All findings, oldest first, the learned pauses, and the latest time of all, UTC. What a newer
    release has stored in a form that this one cannot decode is left out."""
    findings: list[Finding] = []
    pauses: Sequence[JobPauses] = ()
    last_at = 0
    for value in values:
        warn = partial(log.warning, "cell %d: %s", value.cell)
        if value.key == STATE:
            state = usable(partial(decode_payload, form=Handover), value.data, warn) or Handover()
            pauses = usable(decode_pauses, state.pauses.encode(), warn) or ()
            last_at = max(last_at, state.at)
        elif (finding := usable(decode_finding, value.data, warn)) is not None:
            findings.append(finding)
            last_at = max(last_at, finding.opened_at, finding.closed_at or 0)
    findings.sort(key=lambda finding: finding.opened_at)
    return findings, pauses, AlignedNs(last_at)


class Deletion:
    """Deletes closed findings from the values of this process's cells: those that are too old, and
    of a cell that has more than its share of `store.finding_count` the oldest."""

    def __init__(
        self,
        values: CellStore,
        cells: Callable[[], Iterable[int]],
        config: Callable[[], Config],
        utc: Callable[[], AlignedNs],
    ) -> None:
        self._values = values
        self._cells = cells
        self._config = config
        self._utc = utc
        self._last = -1
        """The cell that was looked at."""

    async def look(self) -> None:
        """Look at the next cell."""
        if not (cells := sorted(self._cells())):
            return
        self._last = next((cell for cell in cells if cell > self._last), cells[0])
        limits = self._config().store
        before = self._utc() - round(limits.finding_retention_s * 1e9)
        most = limits.finding_count // CELLS
        try:
            values = await self._values.of_cell(self._last)
            for value in await asyncio.to_thread(_old, values, before, most):
                await self._values.delete(value)
        except RegistryUnavailable as error:
            log.warning("cell %d: old findings: %s: not deleted yet", self._last, error)


def _old(values: Sequence[CellValue], before: int, most: int) -> Sequence[CellValue]:
    """Those to delete, so that `most` are left."""
    over: list[tuple[int, CellValue]] = []
    for value in values:
        if value.key != STATE:
            with contextlib.suppress(StoreError):  # of a newer release, which deletes it
                finding = decode_finding(value.data)
                if not finding.lasts:
                    over.append((finding.closed_at or finding.opened_at, value))
    over.sort(key=lambda one: one[0])
    excess = max(0, len(over) - most)
    return [value for n, (at, value) in enumerate(over) if n < excess or at < before]


async def copy(values: CellStore, store: FindingStore) -> None:
    """Copy all findings of the cluster to the local database, for ever."""
    revision = 0
    while True:
        try:
            async for value in values.tail(revision):
                revision = value.revision
                try:
                    await _copy_one(value, store)
                except Exception:  # any error: the findings after it must be copied
                    log.exception("cell %d: finding %s: not copied", value.cell, value.key)
        except Exception as error:  # any error: the same
            log.warning("findings of the cluster: %s: trying again", str(error) or repr(error))
        await asyncio.sleep(_AGAIN_S)


async def _copy_one(value: CellValue, store: FindingStore) -> None:
    try:
        event = FindingEvent(Change.UPDATED, decode_finding(value.data))
    except StoreError:  # of a newer release
        return
    is_known = False
    while True:
        try:
            return await asyncio.to_thread(store.save, [event])
        except StoreError as error:
            if not is_known:
                log.warning("findings of the cluster: %s: trying again", error)
            is_known = True
        await asyncio.sleep(_AGAIN_S)
