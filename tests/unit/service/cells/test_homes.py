"""Agents that wait for the owner of their cell, and agents that belong to no cell."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from frd.cluster.lease import ClusterView, Lease
from frd.config import Config
from frd.errors import ServiceUnavailable, WireError
from frd.model import AttemptKey, RankInfo
from frd.service.access.grants import EVERYTHING
from frd.service.cells.cell import Cell, Common
from frd.service.cells.cells import Cells
from frd.service.cells.owner import CellOwner
from frd.service.cells.replica import ReplicaHomes
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.collector import Home
from frd.service.ingest.declarations import Reportable
from frd.service.state import NodeView
from frd.store.dumps import DumpStore
from frd.wire.codec import encode_agent
from frd.wire.messages import Redirect
from tests.world.messages import declare
from tests.world.one_replica import CELL, HELLO, JOB, ME, OTHER, replica
from tests.world.virtual_time import in_virtual_time


class OwnerAndLease:
    """No replica has a cell, until the test says otherwise."""

    def __init__(self) -> None:
        self.view = ClusterView(ME.name, (ME, OTHER))
        self.looks = 0
        self.open = False

    def is_open(self, cell: int) -> bool:
        self.looks += 1
        return self.open


@pytest.fixture
def common(tmp_path: Path) -> Common:
    config, now = Config(data_dir=tmp_path), RealTime()
    return Common(
        config=lambda: config,
        now=now,
        clocks=AgentClocks(now),
        dumps=DumpStore(tmp_path / "dumps", max_count=1, max_bytes=1),
        stream_ids=itertools.count(1),
        published=lambda events: None,
    )


def homes_of(common: Common, at: OwnerAndLease, cells: Cells) -> ReplicaHomes:
    return ReplicaHomes(common, cells, cast(CellOwner, at), cast(Lease, at))


def opened(at: OwnerAndLease, cells: Cells) -> Any:
    """The replica takes the cell over; its home."""
    cell: Any = type("CellWithHome", (), {"home": object()})
    cells[CELL], at.open = cast(Cell, cell), True
    return cell.home


def redirected(at: OwnerAndLease, cells: Cells) -> Any:
    """Another replica takes the cell over."""
    at.view = replace(at.view, owners={CELL: OTHER.name})
    return Redirect(OTHER.grpc, "another replica has this job")


@pytest.mark.parametrize("end", [opened, redirected])
@in_virtual_time
async def test_agents_that_wait_for_one_cell(
    common: Common, end: Callable[[OwnerAndLease, Cells], Any]
) -> None:
    """Two hundred agents wait for a cell that is taken over: one look each 0.1 s serves them all,
    some hang up, and the others are let in, or redirected, together."""
    at, cells = OwnerAndLease(), Cells(is_cluster=True, complete=lambda state: state)
    homes = homes_of(common, at, cells)
    waiting = [asyncio.create_task(homes.find(JOB)) for _ in range(200)]
    await asyncio.sleep(0)
    first = at.looks
    for task in waiting[:10]:
        task.cancel()
    await asyncio.sleep(5.0)
    assert at.looks - first <= 51
    found = end(at, cells)
    await asyncio.sleep(0.11)
    assert [task.result() for task in waiting[10:]] == [found] * 190


@in_virtual_time
async def test_each_agent_waits_for_its_own_time(common: Common) -> None:
    """One agent comes 9 s after another one; each is sent away after 10 s, and nothing looks any
    longer; an agent that comes later waits again."""
    at, cells = OwnerAndLease(), Cells(is_cluster=True, complete=lambda state: state)
    homes, loop = homes_of(common, at, cells), asyncio.get_running_loop()
    began = loop.time()
    first = asyncio.create_task(homes.find(JOB))
    await asyncio.sleep(9.0)
    second = asyncio.create_task(homes.find(JOB))
    with pytest.raises(ServiceUnavailable, match="no replica has its cell"):
        await first
    assert 9.9 < loop.time() - began < 10.1
    with pytest.raises(ServiceUnavailable):
        await second
    assert 18.9 < loop.time() - began < 19.1
    await asyncio.sleep(1.0)
    looks = at.looks
    await asyncio.sleep(60.0)
    assert at.looks == looks
    third = asyncio.create_task(homes.find(JOB))
    await asyncio.sleep(1.0)
    found = opened(at, cells)
    assert await third is found


async def test_an_agent_without_ranks_is_shown(common: Common) -> None:
    """An agent is connected before any job begins: the replica shows it; once it is in a cell as
    well, it is one agent, and when it hangs up it is gone."""
    at, cells = OwnerAndLease(), Cells(is_cluster=True, complete=lambda state: state)
    lobby = await homes_of(common, at, cells).find(None)
    assert isinstance(lobby, Home)
    stream = lobby.streams.open()
    lobby.streams.take(stream, HELLO)
    cells.refresh()
    (node,) = cells.state.nodes
    assert (node.node, node.connected, node.reporting) == ("n", True, True)
    cells._merged = replace(cells._merged, nodes=[with_ranks(node)])
    cells.refresh()
    assert [one.ranks for one in cells.state.nodes] == [with_ranks(node).ranks]
    cells._merged = replace(cells._merged, nodes=[])
    lobby.streams.close(stream)
    cells.refresh()
    assert not cells.state.nodes


def with_ranks(node: NodeView) -> NodeView:
    return replace(node, ranks={AttemptKey(JOB, 0): (0, 1)})


async def test_which_jobs_a_stream_may_report(tmp_path: Path) -> None:
    """In a cluster a stream reports the job that its call names, and the reason names both if it
    declares another; a call that names none may declare none."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        home = await parts.homes.find(JOB)
        assert isinstance(home, Home)
        may_report = Reportable(EVERYTHING.may_report, home.one_job, JOB)
        assert may_report(JOB)
        assert not may_report("another")
        may_report.check(JOB)
        with pytest.raises(WireError, match="'another': the call names 'train': open a stream"):
            may_report.check("another")
        lobby = await parts.homes.find(None)
        assert isinstance(lobby, Home)
        stream = lobby.streams.open()
        stream.session.declared.may_report = Reportable(one_job=lobby.one_job)
        lobby.streams.take(stream, HELLO)
        with pytest.raises(WireError, match="the call names None: open a stream"):
            lobby.streams.take(stream, encode_agent(declare([RankInfo(0, 1, "n", "boot", 7, 0)])))
