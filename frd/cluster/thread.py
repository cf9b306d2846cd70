"""A thread with its own event loop, in which all that talks to NATS runs.

The analysis of a large job may block the service's event loop for seconds. Heartbeats must go on
meanwhile, and acknowledgements of the log must be read. The service calls in from its own loop and
awaits the result there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """Where the work of the cluster runs: a `LoopThread`, or the loop of a simulation."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T: ...

    def submit(self, work: Coroutine[Any, Any, T]) -> Any: ...


class LoopThread:
    """Begins when it is made; `stop` ends it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and await its result in the caller's event loop.

        When the caller is cancelled, `work` is, too.
        """
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the thread; may be called in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        if not self._thread.is_alive():
            return
        await self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=5)
