"""How many questions about findings are asked at a time: a few for each job.

A job whose agents do not answer, or that has hundreds of findings, delays no question about others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _OfJob:
    slots: asyncio.Semaphore
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Turns:
    def __init__(self, at_a_time: int, most: int) -> None:
        """For each job: so many run at a time, and at most so many run or wait."""
        self._at_a_time, self._most = at_a_time, most
        self._jobs: dict[str, _OfJob] = {}

    def start(self, job: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do `work` when it is its turn; False if too much waits already."""
        of_job = self._jobs.setdefault(job, _OfJob(asyncio.Semaphore(self._at_a_time)))
        if len(of_job.tasks) >= self._most:
            return False
        task = asyncio.create_task(self._in_turn(of_job.slots, work))
        of_job.tasks.add(task)
        task.add_done_callback(lambda _: self._done(job, task))
        return True

    async def wait(self, within_s: float) -> None:
        """Until nothing runs or waits, or the time is over."""
        if tasks := [task for of_job in self._jobs.values() for task in of_job.tasks]:
            await asyncio.wait(tasks, timeout=within_s)

    async def close(self) -> None:
        """Whatever has not ended is cancelled."""
        tasks = [task for of_job in self._jobs.values() for task in of_job.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_turn(
        self, slots: asyncio.Semaphore, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async with slots:
            await work()

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        of_job = self._jobs[job]
        of_job.tasks.discard(task)
        if not of_job.tasks:
            del self._jobs[job]
