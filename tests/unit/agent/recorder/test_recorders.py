"""The recorders of one rank, read as an agent reads them; the rank is a simulated one."""

from __future__ import annotations

import asyncio

import numpy as np

from frd.model import AttemptKey, NodeRawNs
from frd_agent import tap
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import Recorders
from frd_agent.recorder.worker_server import First
from frd_agent.uplink.dictionary import Dictionary
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import EPOCH, PLAN, job_of
from tests.sim.ops import S
from tests.sim.ranks import SimRank
from tests.world.node_clocks import time_of


class _Server:
    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        self.gil_is_held = False
        self.firsts: list[str] = []
        """By dump: the handler that was called before."""

    async def names(self) -> tuple[str, ...]:
        return (*self._rank.handlers, tap.IGNORE_CAPTURES)

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        self.firsts.append(f"{name}: {first.name if first is not None else None}")
        if first is not None:
            first.answered = not self.gil_is_held
        return self._rank.dump(name)


def test_a_reset_recorder_is_read_although_another_has_nothing_new() -> None:
    """NCCL's recorder is reset; Gloo's has nothing new, which does not keep the agent from
    reading NCCL's again."""
    job = job_of(PLAN)
    rank = job.ranks[0]
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("job", 0), PLAN.world))
    naming.replace(rank.groups)
    recorders = Recorders(_Server(rank), "2.13.0", time_of(lambda: job.now, EPOCH))
    rows = []
    for second in range(6, 20):
        job.advance(second * S)
        rows.append(len(asyncio.run(recorders.read(naming, 1.0, NodeRawNs(0))).rows))
        if second == 10:
            job.inject(Fault(FaultKind.RECORDER_RESET, (0,)))
    assert len(rank.handlers) == 2
    assert sum(rows[:5]) > 0
    assert sum(rows[-5:]) > 0


def test_one_thread_of_the_rank_at_most_waits_for_the_gil() -> None:
    """Before a dump of NCCL's recorder, a handler that needs the GIL is called. Once it has not
    answered, it is called no more until the tap has published something, which needs the GIL."""
    job = job_of(PLAN)
    rank = job.ranks[0]
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("job", 0), PLAN.world))
    naming.replace(rank.groups)
    server = _Server(rank)
    time = time_of(lambda: job.now, EPOCH)
    recorders = Recorders(server, "2.13.0", time)

    def called(second: int, published_second: int) -> set[str]:
        job.advance(second * S)
        server.firsts.clear()
        raw = time.to_raw(np.array([EPOCH + published_second * S]))
        asyncio.run(recorders.read(naming, 1.0, NodeRawNs(int(raw[0]))))
        return set(server.firsts)

    careful = {f"dump_nccl_trace_json: {tap.IGNORE_CAPTURES}", "fr_trace_json: None"}
    careless = {"dump_nccl_trace_json: None", "fr_trace_json: None"}
    assert called(6, 5) == careful
    server.gil_is_held = True
    assert called(7, 6) == careful
    assert called(8, 6) == careless
    assert called(9, 6) == careless
    server.gil_is_held = False
    assert called(10, 9) == careful
    assert called(11, 9) == careful
