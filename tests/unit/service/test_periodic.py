"""Periodic work goes on after a fault, which is logged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frd.service.cells.cell import Cell
from frd.service.periodic import repeat
from tests.world.one_replica import CELL, replica
from tests.world.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_fault_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Of ten rounds the third to fifth fail alike, the eighth, too: the work is done ten times, and
    two faults are logged."""
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(len(rounds) + 1)
        if rounds[-1] in (3, 4, 5, 8):
            raise ValueError("broken")

    repeating = asyncio.create_task(repeat("work", 1.0, work))
    await asyncio.sleep(10.5)
    repeating.cancel()
    assert len(rounds) == 10
    assert [record.message for record in caplog.records] == ["work: failed: it is tried again"] * 2


@in_virtual_time
async def test_work_that_is_asked_for() -> None:
    """Nothing is done until it is asked for, and then once, however often that was; what is asked
    for during the work is done after it."""
    asked, times = asyncio.Event(), list[float]()
    loop = asyncio.get_running_loop()

    def work() -> None:
        times.append(loop.time())
        if len(times) == 1:
            asked.set()

    repeating = asyncio.create_task(repeat("work", 0.2, work, asked))
    await asyncio.sleep(10)
    assert not times
    began_s = loop.time()
    for _ in range(2):
        asked.set()
        await asyncio.sleep(0.05)
    await asyncio.sleep(10)
    repeating.cancel()
    assert [round(at - began_s, 3) for at in times] == [0.2, 0.4]


async def test_a_fault_in_one_cell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first of two cells has a fault at each look: the other one is looked at, and the log
    names the first one, once."""
    async with replica(tmp_path) as parts:
        for cell in (CELL, CELL + 1):
            parts.owner.gained(cell, 1, "start")
            await parts.settle()
        looked = []

        def look(cell: Cell) -> None:
            if cell is parts.cells[CELL]:
                raise ValueError("broken")
            looked.append(cell)

        for _ in range(2):
            parts.cells.each("looking at it", look)
        assert looked == [parts.cells[CELL + 1]] * 2
        of_faults = [r.message for r in caplog.records if r.exc_info]
        assert of_faults == [f"cell {CELL}: looking at it: failed: it is tried again"]
