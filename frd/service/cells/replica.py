"""A replica: a process that shares the cells of a cluster with others, and where streams belong.

What an owner leaves to the next one is in the cluster's values of the cell. The local database has
a copy of all findings, so that every replica can answer for the past of all jobs; the journal is
of the cells that this process has had.

An agent says the job of its stream before the first message. If the job's cell belongs to another
replica, the agent is redirected there. If the cell has no owner yet, or this replica is taking it
over, the agent waits: it would only be sent back and forth. All agents that wait for a cell have
one task that looks for its owner: a takeover has no time for thousands. An agent without a rank yet
is welcome at every replica; it reports nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from frd import __version__
from frd.cluster.cells import CELLS
from frd.cluster.cluster import STATE, CellStore, CellValue
from frd.cluster.lease import ClusterView, Lease
from frd.cluster.registry import RegistryUnavailable
from frd.config import Config
from frd.engine.engine import Engine
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import ServiceUnavailable, StoreError
from frd.forms import later
from frd.model import AlignedNs, Change, Finding, FindingEvent
from frd.service.cells.cell import Common
from frd.service.cells.cells import Cells
from frd.service.cells.owner import CellOwner, Holding, Opened, open_journal
from frd.service.clocks.real_time import RealTime
from frd.service.evidence.inquiries import Inquiries
from frd.service.findings.keepers import SharedKeeper
from frd.service.findings.notifier import Notifier
from frd.service.findings.people import READ_EVERY_S
from frd.service.ingest.collector import Home, Homes
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.service.journal.payloads import (
    Handover,
    decode_finding,
    decode_notified,
    decode_pauses,
    decode_payload,
    encode_finding,
    settings_of,
    usable,
)
from frd.service.journal.writer import JournalWriter, Log
from frd.service.periodic import repeat
from frd.service.state import ClusterState, NodeView
from frd.store.findings import FindingStore, Notified
from frd.store.records import RecordKind
from frd.wire.messages import Redirect

_AGAIN_S: Final = 1.0
_AHEAD_NS: Final = 1_000_000_000
"""The clock of a former owner may be ahead by so much."""
_DELETE_EVERY_S: Final = 300.0
"""One cell is looked at in this time: all its findings are read, which are kept for weeks."""
_TAKEN_TOGETHER: Final = 4
"""So many cells are read in the same moment: what one holds may be many megabytes."""
_WAIT_S: Final = 10.0
"""How long an agent waits for an owner of its job."""
_LOOK_EVERY_S: Final = 0.1

log = logging.getLogger(__name__)


async def hold_replica(
    common: Common, cells: Cells, store: FindingStore, notices: Notifier, grpc: str, http: str
) -> Holding:
    """`grpc` and `http` are the addresses at which agents and other replicas reach this process.

    Raises:
        ClusterError: the cluster cannot be used: names the key and what to do.
    """
    from frd.cluster.nats import connect  # noqa: PLC0415  NATS is an extra

    config = common.config()
    cluster = await connect(config.cluster, config.member, grpc, http, __version__)
    journal = open_journal(common)
    archive = SharedArchive(cluster.values, journal, common.config, common.now, notices)
    owner = CellOwner(common, cells, archive, cluster.lease, notices.take_up)
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
    notices: Notifier
    refused: Callable[[int], None] = lambda cell: None
    """Called when another replica has claimed a cell of this one."""
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_TAKEN_TOGETHER))

    async def open(self, cell: int, claim: int) -> Opened:
        async with self._reading:
            values = await self.values.of_cell(cell)
            left, notified, pauses, last_at = await asyncio.to_thread(_left, values)
        ahead_ns = max(0, last_at - self.now.utc())
        if ahead_ns > _AHEAD_NS:
            log.error(
                "cell %d: its last owner's time is %.0f s ahead of this machine's clock: "
                "synchronize the clocks (NTP)",
                *(cell, ahead_ns / 1e9),
            )
        # Nothing that this owner goes on with has happened later than now.
        owed = {id_ for id_, one in notified.items() if one.owed}
        goes_on = [one for one in left if one.lasts or one.id in owed]
        findings = [later(finding, -ahead_ns) for finding in goes_on]
        self.notices.recall(notified[one.id] for one in findings if one.id in notified)
        owing = {one.id: (one, notified[one.id]) for one in findings if one.id in owed}
        now = self.now()
        journal = self.journal.cell(cell, settings_of(self.config(), self.now.ahead_ns), now)
        for finding in filter(attrgetter("lasts"), findings):
            journal.record(RecordKind.RESTORED, now, payload=encode_finding(finding))
        by_job = {one.job: one for one in pauses}
        of_cell = cell, claim, self.values, by_job
        keeper = SharedKeeper(*of_cell, self.notices, self.now.utc, self.refused, owing)
        return Opened(journal, keeper, findings, pauses)


def _left(
    values: Sequence[CellValue],
) -> tuple[Sequence[Finding], Mapping[str, Notified], Sequence[JobPauses], AlignedNs]:
    """All findings, oldest first, by id which messages were made of them, the learned pauses, and
    the latest time of all, UTC. What a newer release has stored in a form that this one cannot
    decode is left out."""
    findings: list[Finding] = []
    notified: dict[str, Notified] = {}
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
            if (one := usable(decode_notified, value.data, warn)) is not None:
                notified[finding.id] = one
            last_at = max(last_at, finding.opened_at, finding.closed_at or 0)
    findings.sort(key=lambda finding: finding.opened_at)
    return findings, notified, pauses, AlignedNs(last_at)


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


class ReplicaHomes:
    """`cells` shows the agents that belong to no cell, too."""

    def __init__(self, common: Common, cells: Cells, owner: CellOwner, lease: Lease) -> None:
        self._common = common
        self._cells = cells
        self._owner = owner
        self._lease = lease
        self._lobby = _lobby(common)
        self._until: dict[int, float] = {}
        """By cell: how long agents wait for it."""
        self._searches: dict[int, asyncio.Task[Home | Redirect | None]] = {}
        """By cell: the last search of an owner, for all agents that wait for it."""
        cells.idle = self._idle

    async def find(self, job: str | None) -> Home | Redirect:
        if job is None:
            return self._lobby
        cell, loop = self._cells.number_of(job), asyncio.get_running_loop()
        if (found := self._look(cell)) is not None:
            return found
        self._until[cell] = loop.time() + _WAIT_S
        search = self._searches.get(cell)
        if search is None or search.done():
            search = self._searches[cell] = loop.create_task(self._search(cell))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                found = await asyncio.shield(search)
        if found is None:
            raise ServiceUnavailable(f"job: {job!r}: no replica has its cell {cell} yet: try again")
        return found

    async def _search(self, cell: int) -> Home | Redirect | None:
        """None: no agent waits any more."""
        loop = asyncio.get_running_loop()
        while loop.time() < self._until[cell]:
            await asyncio.sleep(_LOOK_EVERY_S)
            if (found := self._look(cell)) is not None:
                return found
        return None

    def _look(self, cell: int) -> Home | Redirect | None:
        if self._owner.is_open(cell):
            return self._cells[cell].home
        if (address := _elsewhere(self._lease.view, cell)) is not None:
            return Redirect(address, "another replica has this job")
        return None

    def _idle(self) -> Sequence[NodeView]:
        streams, late_s = self._lobby.streams, self._common.config().policy.telemetry_late_s
        return streams.nodes.views(self._common.now(), late_s) if streams else ()


def _elsewhere(view: ClusterView, cell: int) -> str | None:
    name = view.owners.get(cell)
    replica = view.replica(name) if name is not None and name != view.me else None
    if replica is None or replica.is_late:
        return None  # dialled in vain, the agent would wait longer before each try
    return replica.grpc


def _lobby(common: Common) -> Home:
    """For agents that have no job yet. A declaration is refused: in a cluster each stream has one
    job, which decides where it belongs."""
    shared = Shared(Engine(common.config().policy))
    streams = Streams(
        shared,
        common.clocks,
        NoLog(),
        now=common.now,
        version=__version__,
        instance=secrets.token_hex(8),
        ids=common.stream_ids,
    )
    return Home(streams, Inquiries(streams), one_job=True)


class NoLog(Log):
    """Of streams that report nothing, and of a cell that needs no replay."""
