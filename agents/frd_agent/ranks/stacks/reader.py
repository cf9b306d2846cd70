"""Stacks of a rank's program, by the best method that still works.

torch's `dump_traceback` handler is exact but needs the rank's GIL, which a stuck rank may never
release. Reading from outside (`outside`) needs nothing from the rank.

One request at a time: the handler walks the list of threads while CPython adds the unready thread
of a second request to it, and the rank dies of a segmentation fault (seen within seconds of three
concurrent requests, never with one). Agents do not know of each other, so they take turns by a lock
on the rank's counters file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from frd.errors import FrdError
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.outside import MAX_TEXT, NoStack, StackText, decoded, from_outside
from frd_agent.recorder.worker_server import Handlers
from frd_agent.untrusted_files import try_lock

_TURN_S = 0.02
"""How often to try whether another agent's request has been answered."""
_PATIENCE_S = 3_600.0
"""For a request without a waiting caller, see `StackReader`."""


class StackReader:
    """Reads the stack of one rank process repeatedly. Keep one per process.

    A request that waits for the GIL holds one of about 32 threads of torch's worker server until
    the GIL is released; when all threads are held, the rank answers nothing. So only one request
    waits, and later calls wait for its answer, which shows the stack at the time of the answer.
    """

    def __init__(self, process: RankProcess, handlers: Handlers | None, turn: Path | None = None):
        """`handlers` is None if the rank has no socket. `turn` is the file that every agent locks
        during a request to this rank."""
        self._process = process
        self._handlers = handlers
        self._turn = turn
        self._request: asyncio.Task[bytes] | None = None

    async def read(
        self, handler_timeout_s: float = 2.0, py_spy_timeout_s: float = 5.0
    ) -> StackText:
        """The stack as of now, within about the sum of the timeouts; raises nothing."""
        try:
            return StackText("dump_traceback", await self._from_handler(handler_timeout_s))
        except FrdError as error:
            why = f"dump_traceback: {error}"
            return await from_outside(self._process, py_spy_timeout_s, why)

    async def _from_handler(self, timeout_s: float) -> str:
        if self._handlers is None:
            raise NoStack("the rank has no socket")
        if self._request is None or self._request.done():
            self._request = asyncio.create_task(self._ask(self._handlers))
            self._request.add_done_callback(_ignore_failure)
        request = self._request
        await asyncio.wait({request}, timeout=timeout_s)
        if not request.done():
            raise NoStack(f"no answer within {timeout_s:g} s: the GIL may be held")
        text = decoded(request.result())[:MAX_TEXT]
        if "File " not in text:
            raise NoStack("no Python frame in the answer")
        return text

    async def _ask(self, handlers: Handlers) -> bytes:
        async with _turn_at(self._turn):
            return await handlers.ask("dump_traceback", timeout_s=_PATIENCE_S)


@asynccontextmanager
async def _turn_at(path: Path | None) -> AsyncIterator[None]:
    """Hold the lock on `path`; without such a file, hold nothing."""
    try:
        fd = os.open(path or "", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise NoStack(f"{path}: {error.strerror}") from error
    try:
        while not try_lock(fd):
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        os.close(fd)


def _ignore_failure(request: asyncio.Task[bytes]) -> None:
    """Retrieve the exception, so that asyncio does not log a failure without a waiting caller."""
    if not request.cancelled():
        request.exception()
