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
