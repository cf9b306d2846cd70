"""Cells are taken over, handed over and dropped as a scripted lease says; streams find a home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frd.cluster.cells import CELLS, cell_of, preferred
from frd.cluster.lease import ClusterView
from frd.cluster.registry import RegistryUnavailable
from frd.model import AlignedNs, AttemptKey, Finding, FindingState, Kind, RankInfo
from frd.service.cells.cell import Cell
from frd.service.ingest.collector import Home
from frd.service.ingest.streams import Stream
from frd.service.state import CellState, Counters
from frd.wire.codec import encode_agent
from frd.wire.messages import Ack, Redirect
from tests.world.messages import declare, entry_columns
from tests.world.one_replica import CELL, HELLO, JOB, ME, OTHER, Contested, Parts, replica
from tests.world.virtual_time import in_virtual_time

NEXT = (CELL + 1) % CELLS


async def connected(parts: Parts) -> Stream:
    """A stream of an agent in the cell of the job."""
    home = await parts.homes.find(JOB)
    assert isinstance(home, Home)
    stream = home.streams.open()
    home.streams.take(stream, HELLO)
    return stream


def redirects(stream: Stream) -> list[str]:
    """The addresses that the agent was sent to."""
    return [event.address for event in stream.outgoing if isinstance(event, Redirect)]


async def test_a_gained_cell_is_a_home(tmp_path: Path) -> None:
    """The lease gives a cell: it is taken over, the lease hears of it, agents of its jobs come."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "dead")
        assert parts.owner.states()[CellState.TAKING_OVER] == 1
        home = await parts.homes.find(JOB)
        assert isinstance(home, Home)
        assert home.one_job
        assert parts.lease.calls == [("owned", CELL)]
        assert parts.owner.takeovers == {"dead": 1}
        states = parts.owner.states()
        assert (states[CellState.OWNED], states[CellState.UNOWNED]) == (1, CELLS - 1)


async def test_agents_are_sent_to_the_owner(tmp_path: Path) -> None:
    """Another replica has the cell: its address; it is dead and not replaced: no address."""
    async with replica(tmp_path) as parts:
        parts.lease.owners(**{f"c{CELL}": OTHER.name})
        found = await parts.homes.find(JOB)
        assert isinstance(found, Redirect)
        assert found.address == OTHER.grpc
        assert parts.owner.states()[CellState.FOREIGN] == 1
        assert parts.owner.successor(CELL) == OTHER.grpc


async def test_agents_are_not_sent_to_an_owner_that_may_be_dead(tmp_path: Path) -> None:
    """The owner's last heartbeats are missing: the agent waits, and is let in when this replica has
    taken the cell over."""
    async with replica(tmp_path) as parts:
        late = replace(OTHER, is_late=True)
        parts.lease.view = ClusterView(ME.name, (ME, late), {CELL: OTHER.name})
        waiting = asyncio.create_task(parts.homes.find(JOB))
        await asyncio.sleep(0.25)
        assert not waiting.done()
        parts.owner.gained(CELL, 1, "dead")
        assert isinstance(await waiting, Home)


async def test_a_cell_is_handed_over(tmp_path: Path) -> None:
    """A drain: the cell ends, the lease goes to the successor, then streams are redirected."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream = await connected(parts)
        parts.owner.drain(CELL, OTHER.name)
        await parts.settle()
        assert parts.lease.calls[-1] == ("release", CELL)
        assert redirects(stream) == [OTHER.grpc]
        assert stream.moved
        assert CELL not in parts.cells


async def test_a_cell_is_taken_from_a_replica_that_is_cut_off(tmp_path: Path) -> None:
    """NATS does not answer a replica, and another one says that it has its cell: the cell is
    dropped and given up, and its streams go there. It says so again: nothing happens."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream = await connected(parts)
        for _ in range(2):
            parts.owner.taken(CELL, OTHER.grpc)
        assert CELL not in parts.cells
        assert parts.lease.calls == [("owned", CELL), ("give_up", CELL)]
        assert redirects(stream) == [OTHER.grpc]


async def both_here(parts: Parts) -> None:
    async with asyncio.timeout(10):
        while len(parts.cells) < 2:
            await asyncio.sleep(0.01)


async def test_totals_do_not_fall_with_a_cell(tmp_path: Path) -> None:
    """One of two cells is lost and comes back: what it has counted still counts, once, and an alert
    about losses has no reason to fire."""
    async with replica(tmp_path) as parts:
        for cell in (CELL, NEXT):
            parts.owner.gained(cell, 1, "dead")
        await both_here(parts)
        for cell, lost in ((CELL, 100), (NEXT, 3)):
            counted = Counters(entries=lost, store_errors={"journal": lost})
            view = replace(parts.cells[cell].state.status_view, evicted={"rows": lost})
            state = replace(parts.cells[cell].state, counters=counted, status_view=view)
            parts.cells[cell].evaluator.state = state
        parts.cells.refresh()

        def totals() -> tuple[int, int, int]:
            state = parts.cells.state
            evicted = state.status_view.evicted.get("rows", 0) + state.counters.evicted["rows"]
            return state.counters.entries, state.counters.store_errors["journal"], evicted

        parts.owner.lost(CELL)
        assert totals() == (103, 103, 103)
        parts.owner.gained(CELL, 1, "dead")
        await both_here(parts)
        parts.cells.refresh()
        assert totals() == (103, 103, 103)


async def test_a_refused_write(tmp_path: Path) -> None:
    """A write finds the claim of another replica: the owner drops the cell, counts that and gives
    the lease back."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        await parts.homes.find(JOB)
        parts.owner.refused(CELL)
        assert CELL not in parts.cells
        assert parts.owner.fenced == 1
        assert parts.lease.calls[-1] == ("give_up", CELL)


async def test_a_write_that_is_refused_before_the_takeover_ends(tmp_path: Path) -> None:
    """Another replica claims the cell while this one takes it over: the cell is given up, and
    nothing of it is shown."""
    async with replica(tmp_path) as parts:
        parts.archive.local = Contested()
        parts.owner.gained(CELL, 1, "dead")
        await parts.settle()
        assert CELL not in parts.cells
        assert parts.lease.calls == [("give_up", CELL)]
        assert parts.owner.fenced == 1


def acknowledged(stream: Stream) -> list[Ack]:
    """Of what the service would write now."""
    return [event for event in stream.take_outgoing() if isinstance(event, Ack)]


async def with_rows(parts: Parts) -> tuple[Stream, Cell]:
    """A stream whose rows are applied, and not acknowledged."""
    stream, cell = await connected(parts), parts.cells[CELL]
    rank = RankInfo(0, 1, "n", "boot", 10)
    cell.streams.take(stream, encode_agent(declare([rank], key=AttemptKey(JOB, 0))))
    cell.streams.take(stream, encode_agent(entry_columns([0, 1, 2], revision=1)))
    await cell.evaluator.evaluate()
    return stream, cell


async def test_no_acknowledgement_while_the_replica_is_not_sure(tmp_path: Path) -> None:
    """The process pauses before, or after, what it has applied is drawn for an acknowledgement:
    nothing goes out. It is sure again: the agent may forget its rows."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream, cell = await with_rows(parts)
        parts.lease.is_sure = False
        cell.streams.flush_acks()
        assert not acknowledged(stream)
        parts.lease.is_sure = True
        cell.streams.flush_acks()
        parts.lease.is_sure = False
        assert not acknowledged(stream)
        parts.lease.is_sure = True
        assert acknowledged(stream) == [Ack({0: 3})]


async def test_a_lost_cell_acknowledges_nothing_more(tmp_path: Path) -> None:
    """The lease says that another replica has the cell, and is sure of the others then."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream, cell = await with_rows(parts)
        cell.streams.flush_acks()
        parts.owner.lost(CELL)
        cell.streams.flush_acks()
        cell.streams.close(stream)
        assert not acknowledged(stream)


async def test_rows_that_come_after_the_last_evaluation(tmp_path: Path) -> None:
    """A cell that is handed over acknowledges what its last evaluation has seen, and nothing after
    that: the agent sends it to the next owner."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream, cell = await with_rows(parts)
        await cell.finish()
        for revision in (4, 5):
            cell.streams.take(stream, encode_agent(entry_columns([revision], revision=revision)))
        cell.streams.flush_acks()
        assert {ack.revisions[0] for ack in acknowledged(stream)} <= {3}


async def test_a_cell_is_lost_while_it_is_released(tmp_path: Path) -> None:
    """Its agents are sent away, though the task that hands it over is cancelled."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        stream, released = await connected(parts), asyncio.Event()

        async def release(cell: int) -> None:
            released.set()
            await asyncio.sleep(1_000)

        parts.lease.release = release  # type: ignore[method-assign]
        parts.owner.drain(CELL, OTHER.name)
        await released.wait()
        parts.owner.lost(CELL)
        await parts.settle()
        assert stream.moved


async def test_a_stream_without_hello_when_its_cell_goes(tmp_path: Path) -> None:
    """An agent has called, and its first message arrives after its cell was dropped: it is sent on
    instead of being welcomed by a cell that acknowledges nothing."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        home = await parts.homes.find(JOB)
        assert isinstance(home, Home)
        stream = home.streams.open()
        parts.lease.owners(**{f"c{CELL}": OTHER.name})
        parts.owner.lost(CELL)
        interrupted: list[bool] = []
        stream.interrupt = interrupted.append
        home.streams.take(stream, HELLO)
        assert redirects(stream) == [OTHER.grpc]
        assert len(stream.outgoing) == 1
        assert interrupted
        assert len(home.streams) == 0


def while_it_is_handed_over(parts: Parts) -> None:
    finish = parts.cells[CELL].finish

    async def refused() -> None:
        await finish()
        parts.owner.refused(CELL)

    parts.cells[CELL].finish = refused  # type: ignore[method-assign]


def when_the_end_has_just_begun(parts: Parts) -> None:
    asyncio.get_running_loop().call_soon(parts.owner.refused, CELL)


@pytest.mark.parametrize("refuse", [while_it_is_handed_over, when_the_end_has_just_begun])
async def test_a_cell_is_refused_at_the_end(
    tmp_path: Path, refuse: Callable[[Parts], None]
) -> None:
    """The last writes of a replica that ends are refused: the cell is dropped, it is not
    released a second time, and the other cells are handed over."""
    async with replica(tmp_path) as parts:
        for cell in (CELL, NEXT):
            parts.owner.gained(cell, 1, "start")
        await parts.settle()
        refuse(parts)
        await parts.owner.finish()
        assert not parts.cells
        released = [call for call in parts.lease.calls if call[0] == "release"]
        assert [call[1] for call in released] == [NEXT]


async def test_a_cell_is_lost_while_it_is_handed_over(tmp_path: Path) -> None:
    """Another replica takes a cell during its last evaluation, for which NATS must answer: the
    handover ends, and no task of the cell is left."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
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
        assert cell._evaluating in before
        assert cell._evaluating not in asyncio.all_tasks()
        assert not parts.owner._dropping


async def test_what_is_open_in_a_lost_cell(tmp_path: Path) -> None:
    """A cell with an open finding and a closed one is lost: webhooks forget the open one."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        await parts.settle()
        at = AlignedNs(1)
        still_open = Finding("a", Kind.STALL, FindingState.OPEN, "train", 0, at)
        closed = replace(still_open, id="b", state=FindingState.CLOSED, closed_at=at)
        before = parts.cells[CELL].state
        view = replace(before.status_view, findings=[still_open, closed])
        parts.cells[CELL].evaluator.state = replace(before, status_view=view)
        forgotten: list[tuple[int, Cell]] = []
        parts.cells.dropped = lambda number, cell: forgotten.append((number, cell))
        parts.owner.lost(CELL)
        assert [(n, cell.state.open_findings()) for n, cell in forgotten] == [(CELL, [still_open])]


async def test_a_takeover_that_fails(tmp_path: Path) -> None:
    """No answer: it is tried again."""
    async with replica(tmp_path) as parts:
        parts.archive.errors = [RegistryUnavailable("no answer"), RegistryUnavailable("no answer")]
        parts.owner.gained(CELL, 1, "start")
        assert isinstance(await parts.homes.find(JOB), Home)


async def test_settings_change_while_a_cell_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGHUP after the cell was made, and before it is one of the replica's cells: it adopts the
    new settings."""
    async with replica(tmp_path) as parts:
        start = Cell.start
        policy = replace(parts.configs[0].policy, stall_after_s=77.0)

        async def changed(cell: Cell, *of_former: Any) -> None:
            parts.configs.append(parts.configs[0].model_copy(update={"policy": policy}))
            await start(cell, *of_former)

        monkeypatch.setattr(Cell, "start", changed)
        parts.owner.gained(CELL, 1, "start")
        await parts.settle()
        assert parts.cells[CELL]._engine.policy == policy


async def test_a_takeover_that_is_overtaken(tmp_path: Path) -> None:
    """The lease takes a cell back while it is taken over: it never becomes a home."""
    async with replica(tmp_path) as parts:
        parts.archive.errors = [RegistryUnavailable("no answer")] * 1000
        parts.owner.gained(CELL, 1, "start")
        await asyncio.sleep(0.05)
        parts.owner.lost(CELL)
        await parts.settle()
        assert CELL not in parts.cells
        assert parts.lease.calls == []


async def test_the_end_of_a_replica(tmp_path: Path) -> None:
    """SIGTERM: the replica claims nothing more, gives up the cell that it was taking over, and
    hands over the other one."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, 1, "start")
        await parts.homes.find(JOB)
        parts.archive.errors = [RegistryUnavailable("no answer")] * 1000
        parts.owner.gained(NEXT, 1, "dead")
        await asyncio.sleep(0.05)
        parts.lease.calls.clear()
        await parts.owner.finish()
        assert parts.lease.calls == [("leave",), ("give_up", NEXT), ("release", CELL)]


async def test_agents_are_not_sent_to_a_replica_that_ends(tmp_path: Path) -> None:
    """SIGTERM, while the other replica ends, too, or may be dead: the cell is released, and its
    agents look for themselves."""
    for odd in (replace(OTHER, is_late=True), replace(OTHER, is_leaving=True)):
        async with replica(tmp_path) as parts:
            parts.owner.gained(CELL, 1, "start")
            stream = await connected(parts)
            parts.lease.view = ClusterView(ME.name, (ME, odd))
            assert parts.owner.successor(CELL) == ""
            await parts.owner.finish()
            assert parts.lease.calls[-1] == ("release", CELL)
            assert stream.moved
            assert not redirects(stream)


def test_cells_are_for_ever() -> None:
    """The hashes are part of the format: replicas of all releases must agree on them."""
    assert [cell_of(job) for job in ("", "train", "job-1", "söhne/1")] == [52, 57, 43, 15]
    assert [preferred(cell, ["a", "b", "c"]) for cell in range(6)] == [*"bbbbba"]


def test_few_cells_move() -> None:
    """A replica that is gone gives its cells to the others; the cells of others stay."""
    names = ["frd-0", "frd-1", "frd-2"]
    before = [preferred(cell, names) for cell in range(CELLS)]
    after = [preferred(cell, names[:2]) for cell in range(CELLS)]
    assert all(a == b for a, b in zip(after, before, strict=True) if b != "frd-2")
    assert all(10 <= before.count(name) <= 32 for name in names)


@in_virtual_time
async def test_a_cell_without_trouble_is_evaluated_rarely(tmp_path: Path) -> None:
    """A cell in which all is well is evaluated once a second; what an agent sends that may change
    a finding is evaluated within a quarter of a second; while a rank waits, all is."""
    async with replica(tmp_path) as at:
        at.owner.gained(CELL, 1, "start")
        await at.settle()
        cell = at.cells[CELL]

        settle, times = cell.evaluator.settle, list[AlignedNs]()

        def settled(now: AlignedNs) -> None:
            times.append(now)
            settle(now)

        cell.evaluator.settle = settled

        async def evaluations(seconds: float) -> int:
            before = len(times)
            await asyncio.sleep(seconds)
            return len(times) - before

        at.cells.refresh()
        earlier = at.cells.state.evaluated_at or 0
        assert 9 <= await evaluations(10) <= 11
        at.cells.refresh()
        assert (at.cells.state.evaluated_at or 0) > earlier
        cell.home.streams.take(cell.home.streams.open(), HELLO)
        assert await evaluations(0.26) == 1
        assert 9 <= await evaluations(10) <= 11
        cell.streams.shared.engine.waiting = lambda least_ns: {JOB}  # type: ignore[method-assign]
        await evaluations(1.1)
        assert 39 <= await evaluations(10) <= 41
