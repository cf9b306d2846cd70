"""Questions about the findings of one job delay no question about another."""

from __future__ import annotations

import asyncio
from functools import partial

from frd.service.requests.turns import Turns
from tests.world.virtual_time import in_virtual_time


@in_virtual_time
async def test_each_job_has_its_turns() -> None:
    """The agents of job a answer nothing for a minute; a question about b is asked immediately, and
    those of a two at a time. More than four of a do not wait."""
    loop, asked = asyncio.get_running_loop(), list[tuple[str, float]]()
    began, turns = loop.time(), Turns(2, 4)

    async def question(name: str, lasts_s: float) -> None:
        asked.append((name, loop.time() - began))
        await asyncio.sleep(lasts_s)

    started = [turns.start("a", partial(question, f"a{n}", 60)) for n in range(6)]
    assert started == [True] * 4 + [False] * 2
    assert turns.start("b", partial(question, "b", 1))
    await turns.wait(10)
    assert asked == [("a0", 0), ("a1", 0), ("b", 0)]
    assert loop.time() - began == 10
    await turns.wait(1_000)
    assert asked[3:] == [("a2", 60), ("a3", 60)]
    assert not turns._jobs


@in_virtual_time
async def test_what_has_not_ended_is_cancelled() -> None:
    """One runs, one waits for its turn; the service ends."""
    turns, cancelled = Turns(1, 2), list[str]()

    async def question(name: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    turns.start("a", partial(question, "first"))
    turns.start("a", partial(question, "second"))
    await asyncio.sleep(1)
    await turns.close()
    assert cancelled == ["first"]
    assert not turns._jobs
