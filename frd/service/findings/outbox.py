"""Findings on their way to a place that may not answer: each is written until that succeeds.

Only the newest version of a finding is kept, so that a place that does not answer for long costs
no more memory than there are findings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from frd.model import Finding

_AGAIN_S: Final = 1.0
_CLOSE_WITHIN_S: Final = 1.5

log = logging.getLogger(__name__)


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
