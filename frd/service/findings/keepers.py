"""Where a cell keeps its findings and the pauses that its jobs have learned."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from frd.cluster.cluster import STATE, CellStore, Superseded
from frd.engine.matching.learned_pauses import KEPT_JOBS, JobPauses
from frd.errors import FrdError, StoreError
from frd.model import AlignedNs, Finding, FindingEvent
from frd.service.findings.notifier import Notifier
from frd.service.journal.payloads import (
    Handover,
    encode_finding,
    encode_pauses,
    encode_payload,
)
from frd.store.findings import FindingStore, Notified

log = logging.getLogger(__name__)

_CLOSE_WITHIN_S: Final = 1.5
_PAUSES_BYTES: Final = 700_000
"""Of a cell's jobs, so that they fit into one message when they are JSON within JSON."""


class Keeper(Protocol):
    name: str
    """What keeps them, for messages."""
    is_over: bool = False
    """Another replica has the cell: nothing is kept any more."""
    owing: Mapping[str, tuple[Finding, Notified]] = MappingProxyType({})
    """By id, findings as they are kept, with messages that were owed then."""

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        """Keep the newest version of each finding and of the pauses of each job.

        Raises:
            FrdError: they are not kept.
        """
        ...

    def settled(self) -> Sequence[Finding]:
        """Those of `owing` of which it is to be kept that other messages are owed now."""
        return ()

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
    notices: Notifier
    """A finding is kept with the messages that are owed about it: the next owner sends them."""
    utc: Callable[[], AlignedNs]
    refused: Callable[[int], None]
    """Called with the cell when another replica has claimed it."""
    owing: dict[str, tuple[Finding, Notified]] = field(default_factory=dict)
    name: str = field(init=False)
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One write at a time, so that the versions of a finding are stored in their order."""

    def __post_init__(self) -> None:
        self.name = f"cell {self.cell}: NATS"

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        async with self._saving:
            for event in events:
                try:
                    await self._put_finding(event.finding)
                except StoreError as error:  # for good: the others do not wait for it
                    log.error("%s: not stored: %s", self.name, error)
            if pauses:
                self._learn(pauses)
                await self._put_state()

    def settled(self) -> Sequence[Finding]:
        owing, now = self.owing.items(), self.notices.notified_of
        return [finding for id_, (finding, then) in owing if now(id_).owed != then.owed]

    async def close(self) -> None:
        await self.notices.rest(self.owing)
        with contextlib.suppress(FrdError, TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN_S), self._saving:
                for finding in self.settled():
                    await self._put_finding(finding)
                await self._put_state()

    def abandon(self) -> None:
        self.is_over = True

    def _learn(self, pauses: Sequence[JobPauses]) -> None:
        for one in pauses:  # the engine's limit is less
            self.pauses.pop(one.job, None)
            self.pauses[one.job] = one
        for job in list(self.pauses)[: -2 * KEPT_JOBS]:
            del self.pauses[job]

    async def _put_finding(self, finding: Finding) -> None:
        notified = self.notices.notified_of(finding.id)
        await self._put(finding.id, encode_finding(finding, notified))
        if notified.owed:
            self.owing[finding.id] = finding, notified
        else:
            self.owing.pop(finding.id, None)

    async def _put_state(self) -> None:
        while len(pauses := encode_pauses(self.pauses.values())) > _PAUSES_BYTES:
            for job in list(self.pauses)[: len(self.pauses) // 4 + 1]:
                del self.pauses[job]  # of jobs that have learned nothing for longest
        await self._put(STATE, encode_payload(Handover(self.utc(), pauses.decode("ascii"))))

    async def _put(self, key: str, data: bytes) -> None:
        if self.is_over:
            raise Superseded(f"cell {self.cell}: another replica has it")
        try:
            await self.values.put(self.cell, self.claim, key, data)
        except Superseded:
            if not self.is_over:  # otherwise this process may have a newer claim on the cell
                self.is_over = True
                self.refused(self.cell)
            raise
