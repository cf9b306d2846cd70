"""Work that is done again and again. A fault in it is logged, and the work goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Faults:
    """Faults of periodic work; one that repeats is logged once."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        """By work."""

    @contextmanager
    def logged(self, what: str) -> Iterator[None]:
        """Log an exception of the block, and go on behind it; `what` names the work."""
        try:
            yield
        except Exception as error:
            if self._last.get(what) != repr(error):
                log.exception("%s: failed: it is tried again", what)
            self._last[what] = repr(error)
        else:
            self._last.pop(what, None)


async def repeat(
    what: str,
    every_s: float,
    work: Callable[[], Awaitable[None] | None],
    asked: asyncio.Event | None = None,
) -> None:
    """Do `work` every `every_s` seconds, until this is cancelled; `what` names it in the log. With
    `asked`, only so long after it was set."""
    faults = Faults()
    while True:
        if asked is not None:
            await asked.wait()
            asked.clear()
        await asyncio.sleep(every_s)
        with faults.logged(what):
            if (doing := work()) is not None:
                await doing
