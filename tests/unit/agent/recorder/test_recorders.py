"""The recorders of one rank, read as an agent reads them; the rank is a simulated one."""

from __future__ import annotations

import asyncio

from frd.model import AttemptKey
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import Recorders
from frd_agent.uplink.dictionary import Dictionary
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import EPOCH, PLAN, job_of
from tests.sim.ops import S
from tests.sim.ranks import SimRank
from tests.world.node_clocks import time_of


class _Server:
    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    async def names(self) -> tuple[str, ...]:
        return self._rank.handlers

    async def ask(self, name: str, *, timeout_s: float | None = None, **params: str) -> bytes:
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
        rows.append(len(asyncio.run(recorders.read(naming, 1.0)).rows))
        if second == 10:
            job.inject(Fault(FaultKind.RECORDER_RESET, (0,)))
    assert len(rank.handlers) == 2
    assert sum(rows[:5]) > 0
    assert sum(rows[-5:]) > 0
