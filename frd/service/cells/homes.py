"""Where the streams of agents belong: to a cell of this process, or to another replica.

An agent says the job of its stream before the first message. If the job's cell belongs to another
replica, the agent is redirected there. If the cell has no owner yet, or this replica is taking it
over, the agent waits: it would only be sent back and forth. All agents that wait for a cell have
one task that looks for its owner: a takeover has no time for thousands. An agent without a rank yet
is welcome at every replica; it reports nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Final

from frd import __version__
from frd.cluster.lease import ClusterView, Lease
from frd.engine.engine import Engine
from frd.errors import ServiceUnavailable
from frd.service.cells.cell import Common
from frd.service.cells.cells import Cells
from frd.service.cells.owner import CellOwner
from frd.service.evidence.inquiries import Inquiries
from frd.service.ingest.collector import Home, Homes
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.service.journal.log import Log
from frd.service.state import NodeView
from frd.wire.messages import Redirect

_WAIT_S: Final = 10.0
"""How long an agent waits for an owner of its job."""
_LOOK_EVERY_S: Final = 0.1


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
