"""Recorders of hooks (torch 2.15): what is in flight can be read at any time, all else only by the
rank's interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

import msgspec
import pytest

from frd.flight.entry import Entry, Status
from frd.model import HIDDEN, Flags, NodeRawNs
from frd_agent import tap
from frd_agent.node_time import ClockReading
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rank_progress import RankProgress, live_progress
from frd_agent.recorder.recorders import Heartbeat, Reading, Recorders
from frd_agent.recorder.rows import Row
from frd_agent.recorder.worker_server import Busy, First, Handlers
from tests.world.entries import T0, Ring, dump, gloo, naming
from tests.world.node_clocks import time_of

READ = NodeRawNs(T0 + 10**9)
LATER = NodeRawNs(T0 + 2 * 10**9)
PUBLISHED = NodeRawNs(T0 + 3 * 10**9)
DONE: dict[str, Any] = {"state": "completed", "retired": True}
NOTICED = {"time_discovered_started_ns": T0 + 10**9, "time_discovered_completed_ns": T0 + 10**9}


def op(number: int, seq: int, *, done: bool = True, pg_id: int = 0, **more: Any) -> Entry:
    """`number`: its record id and op id."""
    more = {"profiling_name": "nccl2:all_reduce", "op_id": number} | more
    more = (DONE | NOTICED if done else {"state": "scheduled", "retired": False}) | more
    return gloo(number, seq, pg_id=pg_id, **more)


def send(number: int, before: int, *, done: bool = True) -> Entry:
    """After `before` collectives."""
    return op(number, before, done=done, is_p2p=True, profiling_name="nccl2:send 0->1")


def ring(*entries: Entry, **status: tuple[int, int, int]) -> Ring:
    found = Ring(number=tap.HOOKED)
    found.read(*entries, at=READ, **status)
    return found


def progress_at(ring: Ring, *counters: int) -> RankProgress:
    return live_progress([ring.tracker], {(tap.HOOKED, 0): Status(*counters)}, PUBLISHED)


def test_what_a_look_lacks_has_ended() -> None:
    """All was read up to op 3; then the rank enqueues op 4 to 6, of which 6 is in flight. A look
    shows that without rows, and the counters carry it forward."""
    seen = ring(*(op(i, i + 1) for i in range(3)), g0=(2, -1, 2))
    seen.tracker.peek(dump([op(5, 6, done=False)], g0=(5, -1, 4)), LATER)
    expected = [(0, GroupWatermarks(6, -1, 5, T0 + 5000))]
    assert progress_at(seen, 5, -1, 4) == RankProgress(expected, PUBLISHED, True)
    assert progress_at(seen, 6, -1, 4) == RankProgress(expected, LATER, False)


def test_an_idle_rank_is_as_far_as_its_counters() -> None:
    """Nothing is in flight. The counters number ops as the entries did, one less than the seq.
    While they move, some of the ops may be sends, the first of the group: the next whole dump
    shows that, before the rank is taken to rest."""
    seen = ring(op(0, 1), op(1, 2), g0=(1, -1, 1))
    seen.tracker.peek(dump([], g0=(7, -1, 7)), LATER)
    known = [(0, GroupWatermarks(2, -1, 2))]
    assert progress_at(seen, 7, -1, 7) == RankProgress(known, READ, False)
    seen.tracker.peek(dump([], g0=(7, -1, 7)), LATER)
    expected = [(0, GroupWatermarks(8, -1, 8))]
    assert progress_at(seen, 7, -1, 7) == RankProgress(expected, PUBLISHED, True)


@pytest.mark.parametrize("in_flight", [[], [send(4, 2, done=False)]])
def test_counters_that_count_sends(in_flight: list[Entry]) -> None:
    """After sends the counters alone do not say how many collectives came: what is known is as old
    as the last whole dump. A send in flight says it."""
    seen = ring(op(0, 1), send(1, 1), op(2, 2), g0=(2, -1, 2))
    seen.tracker.peek(dump(in_flight, g0=(4, -1, 3)), LATER)
    known = bool(in_flight)
    assert progress_at(seen, 4, -1, 3) == RankProgress(
        [(0, GroupWatermarks(2, -1 if known else HIDDEN, 2))], PUBLISHED if known else READ, known
    )


def test_counters_that_have_not_moved() -> None:
    """A group with sends rests since it was read, so the rank is where it was; its op has ended."""
    seen = ring(op(0, 1), send(1, 1), op(2, 2, done=False), g0=(2, -1, 1))
    seen.tracker.peek(dump([], g0=(2, -1, 2)), LATER)
    expected = [(0, GroupWatermarks(2, -1, 2))]
    assert progress_at(seen, 2, -1, 2) == RankProgress(expected, PUBLISHED, True)


def test_a_group_that_no_dump_has_shown() -> None:
    """The rank is in an op of another group, which was not read yet: nothing newer is known."""
    seen = ring(op(0, 1), g0=(0, -1, 0))
    seen.tracker.peek(dump([op(1, 1, done=False, pg_id=1)], g0=(0, -1, 0), g1=(0, -1, -1)), LATER)
    assert progress_at(seen, 0, -1, 0).as_of_ns == READ


def test_times_of_completion_are_bounds() -> None:
    """A thread of torch notices the end of an op up to seconds late. Its row says so by a start at
    the same time, and no op counts as started."""
    (row,) = Ring(number=tap.HOOKED).read(op(0, 1), g0=(0, -1, 0)).rows
    assert (row[1], row[3]) == (1, Flags.JOINED | Flags.COMPLETED)
    assert row[4] > 0
    assert row[5:] == [NOTICED["time_discovered_completed_ns"]] * 2


class _Server:
    """A rank with a recorder of a hook, which holds `entries`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.gil_is_held = False
        self.asked: list[str] = []

    def connected(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def taken_at(self, asked_at: ClockReading) -> ClockReading:
        return asked_at

    async def names(self) -> tuple[str, ...]:
        return ("fr_trace_json", tap.IGNORE_CAPTURES, tap.TRACE)

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        self.asked.append("?".join((name, *params.values())))
        if first is not None:
            first.answered = not self.gil_is_held
            if first.required and not first.answered:
                raise Busy("busy")
        assert name != tap.TRACE or first is not None
        backend = params.get("backend", "gloo")
        every = [one for one in self.entries if one.profiling_name.startswith(f"{backend}:")]
        shown = [one for one in every if name == tap.TRACE or one.state != "completed"]
        last = max((one.op_id for one in every), default=-1)
        done = max((one.op_id for one in every if one.retired), default=-1)
        counts = {
            "last_enqueued_collective": str(last),
            "last_started_collective": "-1",
            "last_completed_collective": str(done),
        }
        status = {"0": counts} if every else {}
        return msgspec.json.encode({"version": "2.10", "entries": shown, "pg_status": status})


class _Agent:
    def __init__(self) -> None:
        self.server = _Server()
        self.recorders = Recorders(cast(Handlers, self.server), time_of(lambda: int(READ), 0))
        self.recorders.hooked = ("nccl2",)
        self.recorders.begin_attempt(naming())
        self.rows: list[Row] = []
        self._published_ns: int = LATER

    def read(
        self, entries: Iterable[Entry], *, may_hold: bool = True, is_stale: bool = False
    ) -> Reading:
        self.server.entries = list(entries)
        self.server.asked.clear()
        self.rows.clear()
        self._published_ns += 1
        heartbeat = Heartbeat(NodeRawNs(self._published_ns), is_stale)
        return asyncio.run(self.recorders.read(1.0, heartbeat, self.rows.extend, may_hold=may_hold))

    @property
    def seqs(self) -> list[int]:
        return [row[1] for row in self.rows]


LOOK, WHOLE = "fr_trace_json?nccl2", f"{tap.TRACE}?nccl2"


def test_the_interpreter_is_asked_for_all_entries_only_if_it_may_be_held() -> None:
    """A look costs the program nothing and gives no rows; a whole dump gives all rows in order."""
    agent = _Agent()
    agent.read([op(0, 1)])
    assert agent.server.asked == ["fr_trace_json", LOOK, WHOLE]
    assert agent.seqs == [1]
    agent.read([op(0, 1), op(1, 2), op(2, 3, done=False)], may_hold=False)
    assert (agent.server.asked[1:], agent.seqs) == ([LOOK], [])
    reading = agent.read([op(0, 1), op(1, 2), op(2, 3, done=False)])
    assert (agent.seqs, reading.held, reading.is_busy) == ([2, 3], True, False)


@pytest.mark.parametrize("is_stale", [False, True])
def test_an_interpreter_that_is_held(is_stale: bool) -> None:
    """It does not answer: how far the rank is, is known nevertheless, and the rows come later.
    While its tap's heartbeat is stale, it is not asked."""
    agent = _Agent()
    agent.read([op(0, 1)])
    agent.server.gil_is_held = True
    ops = [op(0, 1), op(1, 2), op(2, 3, done=False)]
    reading = agent.read(ops, is_stale=is_stale)
    assert agent.server.asked[1:] == ([LOOK] if is_stale else [LOOK, WHOLE])
    assert (agent.seqs, reading.held, reading.is_busy) == ([], False, False)
    (tracker,) = (one for one in agent.recorders.trackers if one.number == tap.HOOKED)
    ((_, watermarks),) = tracker.latest.watermarks
    assert (watermarks.enqueued, watermarks.completed) == (3, 2)
    agent.server.gil_is_held = False
    assert agent.read(ops).held
    assert agent.seqs == [2, 3]


def test_ops_that_are_marked_when_issued() -> None:
    """A backend without completion hooks: all entries are shown at any time, and the interpreter
    is never asked."""
    agent = _Agent()
    issued = [op(i, i + 1, done=False, retired=True) for i in range(3)]
    agent.read(issued)
    assert agent.server.asked == ["fr_trace_json", LOOK]
    assert agent.seqs == [1, 2, 3]


def test_a_rank_whose_newest_op_is_a_send_may_wait_in_a_batch() -> None:
    """Parts of a batch end when they are enqueued, and the batch has no entry: the rank looks idle,
    and may wait. A later collective shows that it went on."""
    seen = ring(op(0, 1), send(1, 1), g0=(1, -1, 1))
    assert progress_at(seen, 1, -1, 1).watermarks == [(0, GroupWatermarks(1, HIDDEN, 1))]
    seen.tracker.peek(dump([], g0=(3, -1, 3)), LATER)  # of which ops is unknown
    assert progress_at(seen, 3, -1, 3).watermarks == [(0, GroupWatermarks(1, HIDDEN, 1))]
    seen.read(op(0, 1), send(1, 1), send(2, 1), op(3, 2), at=LATER, g0=(3, -1, 3))
    assert progress_at(seen, 3, -1, 3).watermarks == [(0, GroupWatermarks(2, -1, 2))]
