"""Where a cell keeps its findings and the pauses that its jobs have learned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from frd.engine.matching.learned_pauses import JobPauses
from frd.model import FindingEvent
from frd.store.findings import FindingStore


class Keeper(Protocol):
    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        """Keep the newest version of each finding and of the pauses of each job.

        Raises:
            FrdError: they are not kept.
        """
        ...


class LocalKeeper:
    """In the database of this machine."""

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        await asyncio.to_thread(self._store.save, events)
        await asyncio.to_thread(self._store.save_pauses, pauses)
