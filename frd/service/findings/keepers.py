"""Where a cell keeps its findings and the pauses that its jobs have learned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from frd.cluster.findings import FindingStore as SharedFindings
from frd.cluster.registry import Conflict
from frd.engine.matching.learned_pauses import JobPauses
from frd.model import AlignedNs, Finding, FindingEvent
from frd.service.journal.log import Log
from frd.service.journal.payloads import encode_finding
from frd.store.findings import FindingStore


class Keeper(Protocol):
    name: str
    """What keeps them, for messages."""

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        """Keep the newest version of each finding and of the pauses of each job.

        Raises:
            FrdError: they are not kept.
        """
        ...


class LocalKeeper:
    """In the database of this machine."""

    name = "findings database"

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        await asyncio.to_thread(self._store.save, events)
        await asyncio.to_thread(self._store.save_pauses, pauses)


class SharedKeeper:
    """In the log of a cell, and from there in the cluster's store of findings, which all replicas
    copy. Pauses are in the log already: the evaluator records them."""

    def __init__(
        self,
        cell: int,
        log: Log,
        shared: SharedFindings,
        revisions: dict[str, int],
        store: FindingStore,
        now: Callable[[], AlignedNs],
    ) -> None:
        """`revisions` are those of the cell's findings in `shared`; `store` is the local copy."""
        self.name = f"log of cell {cell}"
        self._cell = cell
        self._log = log
        self._shared = shared
        self._revisions = revisions
        self._store = store
        self._now = now

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        if not events:
            return
        await self._log.save([event.finding for event in events], self._now())
        for event in events:
            await self._share(event.finding)
        await asyncio.to_thread(self._store.save, events)

    async def _share(self, finding: Finding) -> None:
        data = encode_finding(finding)
        while True:
            revision = self._revisions.get(finding.id, 0)
            try:
                stored = await self._shared.put(self._cell, finding.id, data, revision)
            except Conflict:
                # A former owner was late, or there is a newer one: only the log knows which.
                await self._log.save([finding], self._now())
                known = await self._shared.of_cell(self._cell)
                self._revisions = {one.id: one.revision for one in known}
            else:
                self._revisions[finding.id] = stored
                return
