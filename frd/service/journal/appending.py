"""Appends records to the log of a cell: packed in a worker thread, one bundle in flight, in order.

Knows the numbers of bundles: where the last complete checkpoint began, which every bundle says in
its head, and what may be deleted. It knows neither streams nor what waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from frd.cluster.log import FencedLog, LogUnavailable
from frd.cluster.packing import NO_MARK, Mark, frames, pack
from frd.service.metrics.recent_peak import RecentPeak
from frd.store.journal import JournalLimits
from frd.store.records import Record

_RETRY_S: Final = 0.2

logger = logging.getLogger(__name__)


class Appender:
    """For one task. `log` is that of `cell` and was taken by `owner`."""

    def __init__(self, cell: int, log: FencedLog, owner: str) -> None:
        self.cell = cell
        self.deleted = 0
        """How often the oldest bundles were deleted."""
        self._log = log
        self._owner = owner
        self._now = asyncio.get_running_loop().time
        self._last_checkpoint = 0
        self._began: float | None = None
        self._times = RecentPeak()

    @property
    def append_s(self) -> float:
        """The slowest recent append, one in progress included."""
        now = self._now()
        running = 0.0 if self._began is None else now - self._began
        return max(self._times.value(now), running)

    async def append(self, records: Sequence[Record]) -> None:
        """Returns when they are stored.

        Raises:
            Fenced: another owner has taken the log.
            LogLost: the servers have lost bundles, perhaps some of these.
        """
        for some in frames(records):
            await self._append_frame(some, NO_MARK)

    async def append_checkpoint(
        self, records: Sequence[Record], limits: JournalLimits, *, is_start: bool
    ) -> None:
        """The same for all records of a checkpoint; then delete what is beyond `limits`."""
        some = list(frames(records))
        first = 0
        for index, one in enumerate(some):
            mark = Mark.MIDDLE | (Mark.START if is_start else NO_MARK)
            mark |= Mark.FIRST if index == 0 else NO_MARK
            mark |= Mark.LAST if index == len(some) - 1 else NO_MARK
            number = await self._append_frame(one, mark)
            first = first or number
        self._last_checkpoint = first
        await self._trim(limits)

    async def take_again(self) -> None:
        """After `LogLost`: the next records must be a checkpoint.

        Raises:
            Fenced: another owner has taken the log.
        """
        self._last_checkpoint = 0
        while True:
            try:
                await self._log.retake(self._owner)
            except LogUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _append_frame(self, records: Sequence[Record], mark: Mark) -> int:
        """Returns the number of its first bundle."""
        # Packed once: an append that is tried again must be of the same bytes.
        bundles = await asyncio.to_thread(pack, records, mark, checkpoint=self._last_checkpoint)
        numbers = [await self._append(data) for data in bundles]
        return numbers[0]

    async def _append(self, data: bytes) -> int:
        self._began = began = self._now()
        logged = False
        try:
            while True:
                try:
                    number = await self._log.append(data)
                except LogUnavailable as error:
                    if not logged:
                        logger.warning("cell %d: log: %s: trying again", self.cell, error)
                    logged = True
                    await asyncio.sleep(_RETRY_S)
                else:
                    break
        finally:
            self._began = None
        if logged:
            logger.warning("cell %d: log: written again", self.cell)
        self._times.add(self._now() - began, self._now())
        return number

    async def _trim(self, limits: JournalLimits) -> None:
        """Delete what is older, or more, than the limits allow, of earlier owners, too; but never
        the last checkpoint and what follows it."""
        with contextlib.suppress(LogUnavailable):  # the next checkpoint deletes it, too
            self.deleted += await self._log.trim(
                self._last_checkpoint, max_bytes=limits.total_bytes, max_age_s=limits.max_age_s
            )
