"""Takes over, hands over and drops cells, as the lease decides.

A cell that is being taken over or handed over has one task. Agents that connect meanwhile wait (see
`replica`). A cell that another replica has claimed is dropped on the spot: what its engine knows is
out of date from then on, and nothing of it may be shown.

A service without a cluster has one cell, which is its own for good, on the disk of this machine.
That no other process uses the same data directory is ensured by a lock on it (`frd.service.app`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from frd.cluster.cells import CELLS, preferred
from frd.cluster.lease import ClusterView, Lease
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import FrdError, StoreError
from frd.model import Finding, FindingState
from frd.service.cells.cell import Cell, Common
from frd.service.cells.cells import WHOLE, Cells
from frd.service.findings.keepers import Keeper, LocalKeeper
from frd.service.findings.notifier import Notifier
from frd.service.findings.people import LocalKeys
from frd.service.ingest.collector import Home, Homes
from frd.service.journal.payloads import limits_of, settings_of
from frd.service.journal.writer import JournalWriter, Log
from frd.service.state import CellState, ClusterState
from frd.store.findings import FindingStore

_AGAIN_S: Final = 0.2
_MOVED: Final = "another replica has its jobs now"

Restored = Callable[[Sequence[Finding]], None]
"""Gets the open findings of a cell that was taken over, and closed ones about which messages are
owed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A cell that this process may go on with."""

    log: Log
    keeper: Keeper
    findings: Sequence[Finding] = ()
    """Of the last owner: open ones, and closed ones that were dismissed while their trouble
    lasts, or while a message about them was owed."""
    pauses: Sequence[JobPauses] = ()
    """What its jobs have learned."""


class Archive(Protocol):
    """What the last owner of each cell left."""

    async def open(self, cell: int, claim: int) -> Opened:
        """Go on with a cell, on which this process has the claim with this revision.

        Raises:
            FrdError: try again.
        """
        ...


@dataclass(eq=False)
class CellOwner:
    """An `Owner`."""

    common: Common
    cells: Cells
    archive: Archive
    lease: Lease
    restored: Restored
    _busy: dict[int, CellState] = field(default_factory=dict)
    """Cells with a task, and what it does."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _dropping: set[asyncio.Task[None]] = field(default_factory=set)
    takeovers: Counter[str] = field(default_factory=Counter)
    fenced: int = 0

    # -- what the lease decides ------------------------------------------------------------------

    def gained(self, cell: int, claim: int, why: str) -> None:
        self._start(cell, CellState.TAKING_OVER, self.take_over(cell, claim, why))

    def lost(self, cell: int) -> None:
        if (task := self._tasks.get(cell)) is not None:
            task.cancel()
        self._drop(cell, "another replica has it")

    def drain(self, cell: int, successor: str) -> None:
        if cell in self.cells and cell not in self._busy:
            self._start(cell, CellState.DRAINING, self._hand_over(cell, successor))

    # -- what follows ----------------------------------------------------------------------------

    async def take_over(self, cell: int, claim: int, why: str) -> None:
        began = time.monotonic()
        opened = await self._opened(cell, claim)
        config = self.common.config()
        taken = Cell(
            self.common,
            opened.log,
            opened.keeper,
            successor=partial(self.successor, cell),
            one_job=self.cells.is_cluster,
        )
        self.restored(opened.findings)
        try:
            await taken.start([one for one in opened.findings if one.lasts], opened.pauses)
        except BaseException:  # cancelled, too: another replica has the cell
            self._abandon(taken)
            self.cells.dropped(cell, taken)
            raise
        if opened.keeper.is_over:  # before it was among the cells, where `refused` looks for it
            self.fenced += 1
            self._abandon(taken)
            self.cells.dropped(cell, taken)
            self.lease.give_up(cell)
            return
        if self.common.config() is not config:
            taken.adopt(self.common.config())
        self.cells[cell] = taken
        self.cells.refresh()
        self.lease.owned(cell)
        self.takeovers[why] += 1
        if not self.cells.is_cluster:
            return
        log.info(
            "cell %d: taken over in %.2f s (%s), with %d open findings",
            *(cell, time.monotonic() - began, why),
            sum(one.state is FindingState.OPEN for one in opened.findings),
        )

    async def finish(self) -> None:
        """The process ends: evaluate once more, and hand over to the other replicas."""
        await self.lease.leave()
        taken = [cell for cell, now in self._busy.items() if now is CellState.TAKING_OVER]
        for cell in taken:
            self._tasks[cell].cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for cell in taken:
            if cell not in self.cells:
                self.lease.give_up(cell)
        is_last = all(replica.name == self.lease.view.me for replica in self.lease.view.replicas)
        await asyncio.gather(
            *(
                cell.finish() if is_last else self._hand_over(number, self._heir(number))
                for number, cell in list(self.cells.items())
            )
        )

    async def close(self) -> None:
        """Write what is left, after `finish` and the end of all streams."""
        await asyncio.gather(*(cell.close() for cell in self.cells.values()))
        await asyncio.gather(*self._dropping, return_exceptions=True)

    def successor(self, cell: int) -> str:
        """Where the agents of a cell should go when this replica does not answer."""
        return self._address(self._heir(cell))

    def _heir(self, cell: int) -> str:
        """The replica that takes the cell when this one has gone; empty: none is known to live."""
        view = self.lease.view
        others = [r.name for r in view.replicas if not (r.is_late or r.is_leaving)]
        others = [name for name in others if name != view.me]
        return preferred(cell, others) if others else ""

    def is_open(self, cell: int) -> bool:
        """Streams may come in."""
        return cell in self.cells and cell not in self._busy

    def states(self) -> dict[CellState, int]:
        """The number of cells in each state."""
        view, states = self.lease.view, dict.fromkeys(CellState, 0)
        for cell in range(CELLS):
            owner = view.owners.get(cell)
            if (state := self._busy.get(cell)) is None:
                if cell in self.cells:
                    state = CellState.OWNED
                elif owner is None or owner == view.me:
                    state = CellState.UNOWNED
                else:
                    state = CellState.FOREIGN
            states[state] += 1
        return states

    async def _opened(self, cell: int, claim: int) -> Opened:
        why = ""
        while True:
            try:
                return await self.archive.open(cell, claim)
            except FrdError as error:
                if str(error) != why:
                    log.warning("cell %d: not taken over yet: %s", cell, error)
                why = str(error)
            await asyncio.sleep(_AGAIN_S)

    async def _hand_over(self, cell: int, successor: str) -> None:
        if (leaving := self.cells.get(cell)) is None:
            return  # it was dropped before this began
        self._busy[cell] = CellState.DRAINING
        try:
            await leaving.finish()
            await leaving.close()
            if self.cells.get(cell) is not leaving:
                return  # another replica has claimed it meanwhile
            self.cells.drop(cell)
            try:
                await self.lease.release(cell)
            finally:  # cancelled, too: its agents must not stay at an engine that is not evaluated
                leaving.streams.leave(_MOVED, self._address(successor))
                self.cells.refresh()
        finally:
            self._busy.pop(cell, None)

    def _address(self, name: str) -> str:
        """Where agents reach another replica; empty: it is not known to live."""
        replica = self.lease.view.replica(name)
        return replica.grpc if replica is not None and name != self.lease.view.me else ""

    def _drop(self, cell: int, why: str, address: str | None = None) -> bool:
        """Nothing of it is shown, stored or acknowledged any more; its agents go to `address`, by
        default that of its owner. False: it is not here."""
        if cell not in self.cells:
            return False
        log.warning("cell %d: %s: dropped", cell, why)
        dropped = self.cells.drop(cell)
        self._abandon(dropped)
        if address is None:
            address = self._address(self.lease.view.owners.get(cell, ""))
        dropped.streams.leave(_MOVED, address)
        self.cells.refresh()
        return True

    def _abandon(self, dropped: Cell) -> None:
        dropped.abandon()
        task = asyncio.create_task(dropped.quit())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def refused(self, cell: int) -> None:
        """A write said that another replica has claimed the cell."""
        if self._drop(cell, "another replica has claimed it"):
            self.fenced += 1
            self.lease.give_up(cell)

    def taken(self, cell: int, address: str) -> None:
        """Another replica says that it has the cell, while NATS does not answer this one. `address`
        is that replica's, for agents."""
        if self._drop(cell, f"{address} has it, and NATS does not answer here", address):
            self.lease.give_up(cell)

    def _start(self, cell: int, state: CellState, work: Coroutine[None, None, None]) -> None:
        self._busy[cell] = state
        task = self._tasks[cell] = asyncio.create_task(work)
        task.add_done_callback(partial(self._done, cell))

    def _done(self, cell: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(cell) is task:
            del self._tasks[cell]
            self._busy.pop(cell, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("cell %d: %s", cell, error, exc_info=error)
            self.lease.give_up(cell)


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Holding:
    """How a process has its cells: with the rest of a cluster, or alone."""

    lease: Lease
    owner: CellOwner
    homes: Homes
    journal: JournalWriter
    cluster: Callable[[], ClusterState | None] = lambda: None
    close: Callable[[], Awaitable[None]] = _nothing
    """Call it last."""

    async def stop(self) -> None:
        """After `CellOwner.finish` and the end of all streams."""
        await self.owner.close()
        await self.lease.stop()
        await self.close()
        await asyncio.to_thread(self.journal.close)


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
        whole, keeper, store = self._journal.whole(), LocalKeeper(self._findings), self._findings
        try:
            return Opened(whole, keeper, store.open_findings(), store.pauses())
        except StoreError as error:
            log.error("%s: the service begins without earlier findings", error)
            return Opened(whole, keeper)
