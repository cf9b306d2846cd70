"""An event loop whose time passes only when all tasks wait, and then without delay; work of
`asyncio.to_thread` runs in place."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InPlace(ThreadPoolExecutor):
    """Runs immediately, in order, what production gives to threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


_REAL_S = 10.0


class _Selector(selectors.DefaultSelector):
    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            # At the end of a loop a thread shuts its executor down, which takes real time.
            found = super().select(_REAL_S)
            if not found:
                raise RuntimeError("all tasks wait for something that never happens")
        if not found and timeout:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        self.after_each_step: list[Callable[[], None]] = []
        super().__init__(self._virtual)
        self.set_default_executor(InPlace())

    def time(self) -> float:
        return self._virtual.now

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        for look in self.after_each_step:
            look()


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine function, in virtual time."""

    @functools.wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(story(*args, **kwargs))

    return test


class SameLoop:
    """A `frd.cluster.thread.Runner` without a thread."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def submit(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work)
