"""Cells that another replica takes while this one is busy with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frd.model import AlignedNs, Finding, FindingState, Kind
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


async def test_what_is_open_in_a_lost_cell(tmp_path: Path) -> None:
    """A cell with an open finding and a closed one is lost: webhooks forget the open one."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, "start")
        await parts.settle()
        at = AlignedNs(1)
        still_open = Finding("a", Kind.STALL, FindingState.OPEN, "train", 0, at)
        closed = replace(still_open, id="b", state=FindingState.CLOSED, closed_at=at)
        before = parts.cells[CELL].state
        view = replace(before.status_view, findings=[still_open, closed])
        parts.cells[CELL].evaluator.state = replace(before, status_view=view)
        forgotten: list[Sequence[Finding]] = []
        parts.cells._dropped = forgotten.append
        parts.owner.lost(CELL)
        assert [list(findings) for findings in forgotten] == [[still_open]]
