"""Cells that another replica takes while this one is busy with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.world.one_replica import CELL, OTHER, replica


async def test_a_cell_is_lost_while_it_is_handed_over(tmp_path: Path) -> None:
    """Another replica takes a cell during its last evaluation, for which the log must answer: the
    handover ends, and no task of the cell is left."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, "start")
        await parts.settle()
        before, answer = asyncio.all_tasks(), asyncio.Event()
        cell = parts.cells[CELL]
        cell.evaluator.evaluate = answer.wait  # type: ignore[assignment, method-assign]
        parts.owner.drain(CELL, OTHER.name)
        await asyncio.sleep(0.01)
        parts.owner.lost(CELL)
        await asyncio.sleep(0.01)
        answer.set()
        await asyncio.sleep(0.01)
        assert CELL not in parts.cells
        assert {cell._evaluating, cell._inspecting} <= before
        assert not {cell._evaluating, cell._inspecting} & asyncio.all_tasks()
        assert not parts.owner._dropping
