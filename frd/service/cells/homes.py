"""Where the streams of agents belong: to a cell of this process, or to another replica.

An agent says the job of its stream before the first message. If the job's cell belongs to another
replica, the agent is redirected there. If the cell has no owner yet, or this replica is taking it
over, the agent waits: it would only be sent back and forth. An agent without a rank yet is welcome
at every replica; it reports nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from frd import __version__
from frd.cluster.lease import ClusterView, Lease
from frd.engine.engine import Engine
from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, Finding
from frd.service.cells.cell import Common
from frd.service.cells.cells import WHOLE, Cells
from frd.service.cells.owner import CellOwner
from frd.service.ingest.collector import Home
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.service.requests.inquiries import Inquiries
from frd.store.journal import JournalLimits
from frd.store.records import RecordKind
from frd.wire.messages import AgentEvent, Redirect

_WAIT_S: Final = 10.0
"""How long an agent waits for an owner of its job."""
_LOOK_EVERY_S: Final = 0.1


class OneHome:
    """Without a cluster, all streams belong to the same cell."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def find(self, job: str | None) -> Home:
        return self._cells[WHOLE].home


class ReplicaHomes:
    def __init__(self, common: Common, cells: Cells, owner: CellOwner, lease: Lease) -> None:
        self._cells = cells
        self._owner = owner
        self._lease = lease
        self._lobby = _lobby(common)

    async def find(self, job: str | None) -> Home | Redirect:
        if job is None:
            return self._lobby
        cell, loop = self._cells.number_of(job), asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_S
        while loop.time() < deadline:
            if self._owner.is_open(cell):
                return self._cells[cell].home
            if (address := _elsewhere(self._lease.view, cell)) is not None:
                return Redirect(address, "another replica has this job")
            await asyncio.sleep(_LOOK_EVERY_S)
        raise ServiceUnavailable(f"job: {job!r}: no replica has its cell {cell} yet: try again")


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
        _NoLog(),
        now=common.now,
        version=__version__,
        instance=secrets.token_hex(8),
        ids=common.stream_ids,
    )
    return Home(streams, Inquiries(streams), one_job=True)


class _NoLog:
    """A `Log` of streams that report nothing."""

    position = stored = dropped = evicted = 0
    fenced = False

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        pass

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> bool:
        return True

    def take_cut(self) -> Sequence[int]:
        return ()

    def tick(self, at: AlignedNs) -> None:
        pass

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        pass

    async def save(self, findings: Sequence[Finding], at: AlignedNs) -> None:
        pass

    def abandon(self) -> None:
        pass

    async def stop(self) -> None:
        pass
