"""The samples of all jobs of a node, for the sampler, which knows attempts but no jobs.

Every job has its own queue, because it has its own stream. The sampler's thread adds while the
event loop adds and removes queues, so a table of them is replaced, never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from frd.model import MemoryEvent, SeriesInfo
from frd_agent.memory.samples import Samples
from frd_agent.memory.target import Reading


class NodeSamples:
    def __init__(self, job_of: Callable[[int], str], attempt_of: Callable[[int], int]) -> None:
        """`job_of` gives the job of an attempt, `attempt_of` the attempt of a rank, by the
        dictionary's numbers. Both are called on the sampler's thread, too."""
        self._job_of = job_of
        self._attempt_of = attempt_of
        self._queues: Mapping[str, Samples] = {}

    def use(self, queues: Mapping[str, Samples]) -> None:
        """The queues by job, from now on."""
        self._queues = dict(queues)

    # -- the sampler's side --------------------------------------------------------------------

    def add(
        self, begin_ns: int, end_ns: int, readings: Iterable[Reading], *, late: bool = False
    ) -> bool:
        """As `Samples.add`. Readings of a job without a queue, which has just ended, are left
        out."""
        queues = self._queues
        by_job: dict[str, list[Reading]] = {}
        for reading in readings:
            by_job.setdefault(self._job_of(reading.attempt), []).append(reading)
        jumped = False
        for job, some in by_job.items():
            if (queue := queues.get(job)) is not None:
                jumped |= queue.add(begin_ns, end_ns, some, late=late)
        return jumped

    def event(self, event: MemoryEvent) -> None:
        queue = self._queues.get(self._job_of(self._attempt_of(event.rank)))
        if queue is not None:
            queue.event(event)

    def follow(self, attempts: Collection[int], ranks: Collection[int]) -> None:
        """These are alive, and no others."""
        for queue in self._queues.values():
            queue.follow(attempts, ranks)

    def latest(self) -> dict[SeriesInfo, int]:
        """As `Samples.latest`; from any thread."""
        return {
            series: value
            for queue in self._queues.values()
            for series, value in queue.latest().items()
        }
