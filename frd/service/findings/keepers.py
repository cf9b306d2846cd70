"""Where a cell keeps its findings and the pauses that its jobs have learned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final, Protocol

from frd.cluster.cluster import FindingStore as SharedFindings
from frd.cluster.registry import Conflict
from frd.engine.matching.learned_pauses import JobPauses
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState
from frd.service.journal.payloads import encode_finding
from frd.service.journal.replicated import ReplicatedLog
from frd.store.findings import FindingStore

_AGAIN_S: Final = 1.0
_CLOSE_WITHIN_S: Final = 1.5

log = logging.getLogger(__name__)


class Keeper(Protocol):
    name: str
    """What keeps them, for messages."""

    @property
    def failures(self) -> int:
        """Writes to the database of this machine that failed although `save` did not."""
        ...

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        """Keep the newest version of each finding and of the pauses of each job.

        Raises:
            FrdError: they are not kept.
        """
        ...

    async def close(self) -> None:
        """Bring what was saved to where others read it, as far as that is possible in a short
        time, and end. Nothing is saved any more."""
        return

    def abandon(self) -> None:
        """Another replica has the cell: write nothing more. `close` is not needed then."""
        return


class LocalKeeper(Keeper):
    """In the database of this machine."""

    name = "findings database"
    failures = 0

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        await asyncio.to_thread(self._store.save, events)
        await asyncio.to_thread(self._store.save_pauses, pauses)


@dataclass(slots=True, eq=False)
class SharedKeeper:
    """In the log of a cell. From there, without anyone waiting for it, in the cluster's store of
    findings, which all replicas copy, and in the local copy. Pauses are in the log already: the
    evaluator records them."""

    cell: int
    log: ReplicatedLog
    shared: SharedFindings
    revisions: dict[str, int]
    """Of the cell's findings in `shared`."""
    unshared: InitVar[Sequence[Finding]]
    """Findings of the log that it does not have as they are."""
    store: FindingStore
    """The local copy."""
    now: Callable[[], AlignedNs]
    name: str = field(init=False)
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """So that the log has the versions of a finding in their order."""
    _to_share: Outbox = field(init=False)
    _to_copy: Outbox = field(init=False)

    def __post_init__(self, unshared: Sequence[Finding]) -> None:
        self.name = f"log of cell {self.cell}"
        self._to_share = Outbox(f"cell {self.cell}: shared findings", self._share)
        self._to_copy = Outbox(f"cell {self.cell}: findings database", self._copy)
        self._pass_on(unshared)

    @property
    def failures(self) -> int:
        return self._to_copy.failures

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        if not events:
            return
        findings = [event.finding for event in events]
        async with self._saving:
            await self.log.save(findings, self.now())
            self._pass_on(findings)

    async def close(self) -> None:
        await asyncio.gather(self._to_share.close(), self._to_copy.close())

    def abandon(self) -> None:
        self._to_share.abandon()
        self._to_copy.abandon()

    def _pass_on(self, findings: Sequence[Finding]) -> None:
        self._to_share.put(findings)
        self._to_copy.put(findings)

    async def _share(self, finding: Finding) -> None:
        data = encode_finding(finding)
        while True:
            revision = self.revisions.get(finding.id, 0)
            try:
                stored = await self.shared.put(self.cell, finding.id, data, revision)
            except Conflict:
                # A former owner was late, or there is a newer one: only the log knows which.
                async with self._saving:
                    await self.log.save([self._to_share.newest(finding)], self.now())
                known = await self.shared.of_cell(self.cell)
                self.revisions = {one.id: one.revision for one in known}
            else:
                self.revisions[finding.id] = stored
                if finding.state is FindingState.CLOSED:
                    self.log.shared(finding)
                return

    async def _copy(self, finding: Finding) -> None:
        event = FindingEvent(Change.UPDATED, finding)
        await asyncio.to_thread(self.store.save, [event])


class Outbox:
    """Has a task from the beginning until `close` or `abandon`. `what` is for messages."""

    def __init__(self, what: str, write: Callable[[Finding], Awaitable[None]]) -> None:
        self._what = what
        self._write = write
        self.failures = 0
        self._waiting: dict[str, Finding] = {}
        """The newest version of each finding that is not written, by id."""
        self._news = asyncio.Event()
        self._is_closing = False
        self._why = ""
        """The last failure, until a write succeeds."""
        self._task = asyncio.create_task(self._run())

    def put(self, findings: Iterable[Finding]) -> None:
        self._waiting |= {finding.id: finding for finding in findings}
        self._news.set()

    def newest(self, finding: Finding) -> Finding:
        return self._waiting.get(finding.id, finding)

    async def close(self) -> None:
        """Write what waits, as far as that is possible in a short time, and end."""
        self._is_closing = True
        self._news.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_WITHIN_S)
        self._task.cancel()
        await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Write nothing more."""
        self._task.cancel()

    async def _run(self) -> None:
        while self._waiting or not self._is_closing:
            await self._news.wait()
            self._news.clear()
            while self._waiting and not await self._write_all():
                await asyncio.sleep(_AGAIN_S)

    async def _write_all(self) -> bool:
        """False: some could not be written."""
        why = ""
        for finding in list(self._waiting.values()):
            try:
                await self._write(finding)
            except Exception as error:  # any error: it must not hold other findings back
                self.failures += 1
                why = str(error) or repr(error)
                if not self._why:
                    log.warning("%s: finding %s: %s: trying again", self._what, finding.id, why)
                    self._why = why
            else:
                if self._waiting[finding.id] is finding:
                    del self._waiting[finding.id]
        self._why = why
        return not why
