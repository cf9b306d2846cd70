"""The event loop of one simulated process: its turns are actions of the kernel.

A loop can be paused, as SIGSTOP does, and killed: then no task of it ever runs again, not even a
`finally`. Threads run in place.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tests.sim.kernel import Kernel
from tests.world.clocks import S

T = TypeVar("T")
_LAST_TURNS: Final = 10


class VirtualLoop(asyncio.AbstractEventLoop):
    """`failed` is called with each error that no task has handled, `turned` after each turn."""

    def __init__(
        self,
        kernel: Kernel,
        failed: Callable[[str], None],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self._kernel = kernel
        self._failed = failed
        self._turned = turned
        self._ready: deque[asyncio.Handle] = deque()
        self._is_planned = False
        self.is_paused = False
        self.is_dead = False

    # -- the process -----------------------------------------------------------------------------

    def pause(self) -> None:
        self.is_paused = True

    def go_on(self) -> None:
        self.is_paused = False
        self._plan()

    def kill(self) -> None:
        self.is_dead = True

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, which waits for nothing but tasks that end now, and then nothing more."""
        task = self.create_task(work)
        for _ in range(_LAST_TURNS):
            self._turn()
        if not task.done():
            self._failed("what should end does not")
        self.kill()

    def close(self) -> None:
        """At the end of the world: end all tasks, so that collecting them later does nothing."""
        self.is_dead = self.is_paused = False
        self._failed = lambda what: None
        self._turned = lambda: None
        for task in asyncio.all_tasks(self):
            task.cancel()
        for _ in range(_LAST_TURNS):
            self._turn()
        self.is_dead = True
        self._ready.clear()

    def _plan(self) -> None:
        if self._ready and not (self._is_planned or self.is_paused or self.is_dead):
            self._is_planned = True
            self._kernel.at(self._kernel.now, self._turn)

    def _turn(self) -> None:
        self._is_planned = False
        asyncio._set_running_loop(self)
        try:
            while self._ready and not (self.is_paused or self.is_dead):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        self._turned()

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not (handle.cancelled() or self.is_dead):
            self._ready.append(handle)
            self._plan()

    # -- asyncio.AbstractEventLoop, as far as it is used -----------------------------------------

    def time(self) -> float:
        return self._kernel.now / S

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            self._plan()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            # After all that happens at that time: an evaluation comes before a time-out.
            self._kernel.at(round(when * S) + 1, lambda: self._due(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._failed(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
