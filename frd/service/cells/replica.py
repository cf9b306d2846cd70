"""A replica: a process that shares the cells of a cluster with others.

The log of a cell is the truth about its findings. What `Copies` and the local database hold is a
copy of it, so that every replica can answer for the past of all jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from frd import __version__
from frd.cluster.cluster import Cluster, StoredFinding
from frd.cluster.cluster import FindingStore as SharedFindings
from frd.cluster.log import FencedLog
from frd.cluster.registry import RegistryUnavailable
from frd.config import Config
from frd.errors import StoreError
from frd.forms import later
from frd.model import AlignedNs, Change, FindingEvent, FindingState
from frd.service.cells.cell import Common
from frd.service.cells.cells import Cells
from frd.service.cells.homes import ReplicaHomes
from frd.service.cells.owner import CellOwner, Holding, Opened, Restored
from frd.service.clocks.real_time import RealTime
from frd.service.findings.keepers import SharedKeeper
from frd.service.findings.silences import READ_EVERY_S
from frd.service.journal.appending import Appender
from frd.service.journal.payloads import (
    decode_finding,
    encode_pauses,
    limits_of,
    settings_of,
    usable,
)
from frd.service.journal.preamble import KeptFindings
from frd.service.journal.reading import Recovered, recover
from frd.service.journal.replicated import ReplicatedLog
from frd.service.journal.runs import Budget
from frd.service.periodic import repeat
from frd.service.state import ClusterState
from frd.store.findings import FindingStore

_AGAIN_S: Final = 1.0
_AHEAD_NS: Final = 1_000_000_000
"""The clock of a former owner may be ahead by so much."""
_STORED_WITHIN_S: Final = 1.0

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
    archive = SharedArchive(cluster, common.config, store, common.now)
    owner = CellOwner(common, cells, archive, cluster.lease, restored)
    archive.refused = owner.refused
    await common.silences.keep_in(cluster.keys)
    reading = repeat("reading silences", READ_EVERY_S, common.silences.read)
    tasks = [asyncio.create_task(one) for one in (_copy(cluster.findings, store), reading)]

    async def close() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()

    def state() -> ClusterState:
        logs = [cell.log for cell in cells.values() if isinstance(cell.log, ReplicatedLog)]
        return ClusterState(
            view=cluster.lease.view,
            cells=owner.states(),
            takeovers=dict(owner.takeovers),
            fenced=owner.fenced,
            append_s=max((one.append_s for one in logs), default=0.0),
            unacked_bytes=sum(one.unacked_bytes for one in logs),
        )

    try:
        await cluster.lease.start(owner)
    except BaseException:
        await close()
        raise
    homes = ReplicaHomes(common, cells, owner, cluster.lease)
    return Holding(cluster.lease, owner, homes, state, close)


@dataclass(slots=True, eq=False)
class SharedArchive:
    """An `Archive` in the logs of the cluster."""

    cluster: Cluster
    config: Callable[[], Config]
    store: FindingStore
    now: RealTime
    _budget: Budget = field(default_factory=Budget)
    refused: Callable[[int], None] = lambda cell: None
    """Called when the log of a cell refuses this replica."""

    async def open(self, cell: int) -> Opened:
        fenced = self.cluster.log(cell)
        await fenced.take(self.config().member)
        warn = partial(log.warning, "cell %d: %s", cell)
        left = await self._left(cell, fenced, warn)
        ahead_ns = max(0, left.last_at - self.now.utc())
        if ahead_ns > _AHEAD_NS:
            log.error(
                "cell %d: its log ends %.0f s ahead of this machine's clock: "
                "synchronize the clocks (NTP)",
                *(cell, ahead_ns / 1e9),
            )
        # Nothing that this owner goes on with has happened later than now.
        findings = [later(finding, -ahead_ns) for finding in left.findings]
        stored = await self._stored(cell)
        shared = {one.id: usable(decode_finding, one.data, warn) for one in stored}
        logged = {finding.id: finding for finding in (*findings, *left.closed)}
        for id_, finding in shared.items():
            if finding and finding.state is FindingState.OPEN and id_ not in logged:
                findings.append(finding)
        # The last owner had no time for these, or what is shared could not be read.
        unshared = [one for id_, one in logged.items() if shared.get(id_) != one]
        closed = [finding for finding in unshared if finding.state is FindingState.CLOSED]
        config = self.config()  # the one with which the cell begins
        replicated = ReplicatedLog(
            Appender(cell, fenced, config.member),
            settings=settings_of(config, self.now.ahead_ns),
            now=self.now(),
            limits=limits_of(config),
            budget=self._budget,
            findings=KeptFindings(self.now(), findings, closed),
            learned=encode_pauses(left.pauses),
            on_fenced=partial(self.refused, cell),
        )
        keeper = SharedKeeper(
            cell,
            replicated,
            self.cluster.findings,
            {one.id: one.revision for one in stored},
            unshared,
            self.store,
            self.now,
        )
        return Opened(replicated, keeper, findings, left.pauses)

    async def _left(self, cell: int, fenced: FencedLog, warn: Callable[[str], None]) -> Recovered:
        """What the last owner left. A log that cannot be read must not leave the cell without an
        owner: it begins without its history, and agents report the present again."""
        try:
            return await recover(fenced, warn)
        except StoreError as error:
            log.error("cell %d: %s: the cell begins without what its log has", cell, error)
            return Recovered((), (), (), AlignedNs(0))

    async def _stored(self, cell: int) -> Sequence[StoredFinding]:
        """What all replicas share. It only repeats the log: no answer must not delay an owner,
        who learns missing revisions from the conflict of its first write (`SharedKeeper`)."""
        try:
            async with asyncio.timeout(_STORED_WITHIN_S):
                return await self.cluster.findings.of_cell(cell)
        except TimeoutError:
            why = f"no answer within {_STORED_WITHIN_S:g} s"
        except RegistryUnavailable as error:
            why = str(error)
        log.warning("cell %d: it begins with the findings of its log only: %s", cell, why)
        return ()


async def _copy(shared: SharedFindings, store: FindingStore) -> None:
    """Copy all findings of the cluster to the local database, for ever."""
    revision = 0
    while True:
        try:
            async for stored in shared.tail(revision):
                revision = stored.revision
                try:
                    await _copy_one(stored, store)
                except Exception:  # any error: the findings after it must be copied
                    log.exception("cell %d: finding %s: not copied", stored.cell, stored.id)
        except Exception as error:  # any error: the same
            log.warning("findings of other replicas: %s: trying again", str(error) or repr(error))
        await asyncio.sleep(_AGAIN_S)


async def _copy_one(stored: StoredFinding, store: FindingStore) -> None:
    try:
        event = FindingEvent(Change.UPDATED, decode_finding(stored.data))
    except StoreError:  # of a newer release
        return
    is_known = False
    while True:
        try:
            return await asyncio.to_thread(store.save, [event])
        except StoreError as error:
            if not is_known:
                log.warning("findings of other replicas: %s: trying again", error)
            is_known = True
        await asyncio.sleep(_AGAIN_S)
