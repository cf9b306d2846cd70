"""Where a cell keeps its findings and the pauses that its jobs have learned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from frd.cluster.cluster import STATE, CellStore, Superseded
from frd.engine.matching.learned_pauses import KEPT_JOBS, JobPauses
from frd.errors import FrdError
from frd.model import AlignedNs, FindingEvent
from frd.service.journal.payloads import (
    Handover,
    encode_finding,
    encode_pauses,
    encode_payload,
)
from frd.store.findings import FindingStore

_CLOSE_WITHIN_S: Final = 1.5


class Keeper(Protocol):
    name: str
    """What keeps them, for messages."""
    is_over: bool = False
    """Another replica has the cell: nothing is kept any more."""

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        """Keep the newest version of each finding and of the pauses of each job.

        Raises:
            FrdError: they are not kept.
        """
        ...

    async def close(self) -> None:
        """Nothing is saved any more. What the next owner must know is written, as far as that is
        possible in a short time."""
        return

    def abandon(self) -> None:
        """Another replica has the cell: write nothing more. `close` is not needed then."""
        return


class LocalKeeper(Keeper):
    """In the database of this machine."""

    name = "findings database"

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        await asyncio.to_thread(self._store.save, events)
        await asyncio.to_thread(self._store.save_pauses, pauses)


@dataclass(slots=True, eq=False)
class SharedKeeper(Keeper):
    """In the cluster, for the next owner of a cell; all replicas copy the findings from there."""

    cell: int
    claim: int
    """The revision of this owner's claim on the cell."""
    values: CellStore
    pauses: dict[str, JobPauses]
    """By job; those of the last owner first."""
    utc: Callable[[], AlignedNs]
    refused: Callable[[int], None]
    """Called with the cell when another replica has claimed it."""
    name: str = field(init=False)
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One write at a time, so that the versions of a finding are stored in their order."""

    def __post_init__(self) -> None:
        self.name = f"cell {self.cell}: NATS"

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        async with self._saving:
            for event in events:
                await self._put(event.finding.id, encode_finding(event.finding))
            if pauses:
                self._learn(pauses)
                await self._put_state()

    async def close(self) -> None:
        with contextlib.suppress(FrdError, TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN_S), self._saving:
                await self._put_state()

    def abandon(self) -> None:
        self.is_over = True

    def _learn(self, pauses: Sequence[JobPauses]) -> None:
        for one in pauses:  # the engine's limit is less
            self.pauses.pop(one.job, None)
            self.pauses[one.job] = one
        for job in list(self.pauses)[: -2 * KEPT_JOBS]:
            del self.pauses[job]

    async def _put_state(self) -> None:
        pauses = encode_pauses(self.pauses.values()).decode("ascii")
        await self._put(STATE, encode_payload(Handover(self.utc(), pauses)))

    async def _put(self, key: str, data: bytes) -> None:
        if self.is_over:
            raise Superseded(f"cell {self.cell}: another replica has it")
        try:
            await self.values.put(self.cell, self.claim, key, data)
        except Superseded:
            self.is_over = True
            self.refused(self.cell)
            raise
