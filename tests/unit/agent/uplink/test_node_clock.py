"""What an agent reads of its clocks, and that a wall clock that is set moves no event."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import grpc
import grpc.aio
import numpy as np
import pytest

from frd.engine.clocks.exchange import SILENT_NS
from frd.model import NodeNs, NodeRawNs, WatermarkColumns
from frd.wire.clock import MAX_READINGS, ClockHello, encode_pong
from frd.wire.messages import MAX_SLACK_NS, AgentEvent, Goodbye, Watermarks
from frd_agent.node_time import STEP_NS, read_clocks
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.node_clock import LONGEST_PAUSE_S, Clock
from frd_agent.uplink.route import Connection
from tests.world.clocks import EPOCH, MS, S
from tests.world.entries import dump, naming, nccl
from tests.world.node_clocks import Clocks
from tests.world.virtual_time import run_virtual

HOUR = 3600 * S


class Node(Clocks):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(ClockHello("boot", "session"), self.stats, self.time)

    def moves(self, raw_ns: int, real_ns: int) -> None:
        self.raw += raw_ns
        self.wall += real_ns
        self.clock.look()


def test_a_step_is_not_slew(caplog: pytest.LogCaptureFixture) -> None:
    """A clock slews by 500 ppm for a while, is set 3 s ahead, runs true, is set 2 s back."""
    node = Node()
    for _ in range(100):
        node.moves(250 * MS, 250 * MS + 125_000)
    assert node.stats.clock_steps == 0
    with caplog.at_level(logging.WARNING):
        node.moves(250 * MS, 3250 * MS)
        node.moves(250 * MS, 250 * MS)
        node.moves(250 * MS, -1750 * MS)
    assert [record.args for record in caplog.records] == [(3.0,), (-2.0,)]
    assert node.stats.clock_steps == 2


def test_a_slow_reading_is_no_step() -> None:
    """The process loses the core between its two readings: what it read is that much less sure."""
    node = Node()
    node.slack = 40 * MS
    node.moves(250 * MS, 290 * MS)
    node.slack = MAX_SLACK_NS + 1
    node.moves(250 * MS, S)
    assert node.stats.clock_steps == 0
    assert len(node.clock.take_readings().raw_ns) == 1


def test_readings_that_are_not_sent_are_bounded() -> None:
    """The service is away for a minute: the newest readings wait for it."""
    node = Node()
    for _ in range(4 * MAX_READINGS):
        node.moves(250 * MS, 250 * MS)
    readings = node.clock.take_readings()
    assert len(readings.raw_ns) == MAX_READINGS
    assert readings.raw_ns[-1] == node.raw
    assert (readings.real_ns - readings.raw_ns).tolist() == [EPOCH - 7 * S] * MAX_READINGS
    assert readings.slack_ns.tolist() == [300] * MAX_READINGS
    assert len(node.clock.take_readings().raw_ns) == 0


def test_watermarks_take_the_newest_reading_along() -> None:
    """It is not sent again with a ping. Clocks that could not be read together are no reading."""
    node = Node()
    node.moves(250 * MS, 250 * MS)
    assert sent(node.clock.stamp(marks())) == (node.wall, node.raw, 300)
    assert len(node.clock.take_readings().raw_ns) == 0
    node.slack = MAX_SLACK_NS + 1
    node.passes(S)
    assert sent(node.clock.stamp(marks())) == (0, node.raw, 0)
    goodbye = Goodbye("")
    assert node.clock.stamp(goodbye) is goodbye


def marks() -> Watermarks:
    none = np.zeros(0, np.int64)
    index = np.zeros(0, np.uint32)
    columns = WatermarkColumns(index, index, none, none, none, none, index, none)
    return Watermarks(0, columns, NodeNs(0), NodeRawNs(0))


def sent(stamped: AgentEvent) -> tuple[int, int | None, int]:
    assert isinstance(stamped, Watermarks)
    return stamped.sent_at_ns, stamped.sent_raw_ns, stamped.sent_slack_ns


def test_the_real_clocks_are_read_closely() -> None:
    """Two readings a moment apart on this machine agree, and neither clock ran backwards."""
    first, second = read_clocks(), read_clocks()
    assert second.raw_ns > first.raw_ns
    passed = (second.real_ns - first.real_ns) - (second.raw_ns - first.raw_ns)
    assert abs(passed) <= first.slack_ns + second.slack_ns + STEP_NS


@pytest.mark.parametrize(
    ("jump", "error"),
    [(-HOUR, 0), (-3 * S, 0), (-S, S), (-20 * MS, 20 * MS), (3 * S, 0), (HOUR, 0)],
)
def test_a_step_between_two_dumps_moves_no_row(jump: int, error: int) -> None:
    """A rank joins a collective every second and is dumped every three; the wall clock steps in
    between. Rows are in order, and each has the time at which it happened. Only a stamp that is
    read after a step back by less than its age may mean two moments: the newer one counts."""
    node = Node()
    tracker, names = RecorderTracker(to_raw=node.time.to_raw), naming((0, 1))
    entries, truth, rows = [], [], []
    for second in range(30):
        node.passes(S - 100 * MS)
        entries.append(nccl(second, second + 1, "scheduled", time_created_ns=node.wall))
        truth.append(node.raw)
        if second == 16:  # a dump has shown the entries of seconds up to 14
            node.wall += jump
        node.passes(100 * MS)
        node.clock.look()
        if second % 3 == 2:
            taken_at = node.time.now()
            node.passes(50 * MS)
            rows += tracker.apply(dump(entries), taken_at, names).rows
    assert [row[1] for row in rows] == list(range(1, 31))
    created = [row[4] for row in rows]
    assert created == sorted(created)
    assert np.abs(np.array(created) - truth).max() == error


def test_an_entry_from_before_the_agent_is_read() -> None:
    """The clock was set back by an hour before the agent began: an entry that seems to be of the
    future is read. An entry of just now waits for the next dump."""
    node = Node()
    node.passes(S)
    names = naming((0, 1))
    for created, read in ((node.wall + HOUR, 1), (node.wall - MS, 0), (node.wall - 500 * MS, 1)):
        tracker = RecorderTracker(to_raw=node.time.to_raw)
        entry = nccl(0, 1, "scheduled", time_created_ns=created)
        assert len(tracker.apply(dump([entry]), node.raw, names).rows) == read
        assert tracker.is_whole == bool(read)
        assert 0 < tracker.taken_at_ns <= node.raw


class Pings:
    """A service's end of clock streams: it answers the first ping of each, or does not, and ends
    the stream after so many seconds."""

    def __init__(self, *streams: tuple[bool, float]) -> None:
        self.left = list(streams)
        self.written = 0

    def clock(self) -> Pings:
        if not self.left:
            raise asyncio.CancelledError
        self.answers, self.lasts_s = self.left.pop(0)
        return self

    async def write(self, data: bytes) -> None:
        self.written += 1

    async def read(self) -> object:
        if self.answers:
            self.answers = False
            return encode_pong(1, 1.0)
        await asyncio.sleep(self.lasts_s)
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    async def details(self) -> str:
        return "its stream of rows is gone"

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(
    ("streams", "warnings"),
    [
        ([(True, 60.0), (True, 60.0)], 0),
        ([(False, 0.1), (True, 6.0), (True, 6.0)], 0),
        ([(True, 60.0), (False, 0.0)], 1),
        ([(False, 5.1), (False, 5.1), (False, 5.1)], 1),
    ],
)
def test_one_failure_of_pings_is_no_news(
    streams: list[tuple[bool, float]], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock stream ends, which each handover causes: that is logged if the next one does not
    last either. A stream without an answer has not lasted, however late it is refused."""
    node = Node()
    node.clock.roll = lambda low, high: high
    connection = cast(Connection, Pings(*streams))
    with pytest.raises(asyncio.CancelledError), caplog.at_level(logging.WARNING):
        run_virtual(node.clock.ping(connection))
    ended = [one.getMessage() for one in caplog.records]
    assert ended == ["clock: pings have ended: aborted: its stream of rows is gone"] * warnings


def test_a_stream_without_ranks_has_few_pings() -> None:
    """The job's ranks are forgotten: there are as many pings as keep the clock known, no more,
    until the job has ranks again."""

    async def run() -> None:
        node, service = Node(), Pings((True, 1e9))
        pinging = asyncio.create_task(node.clock.ping(cast(Connection, service)))
        counts = []
        for node.clock.least_pause_s in (0.0, LONGEST_PAUSE_S, 0.0):
            await asyncio.sleep(75.0)  # the last pause may have begun before
            before = service.written
            await asyncio.sleep(600.0)
            counts.append(service.written - before)
        assert counts[0] > 1_000
        assert 600 / SILENT_NS * S < counts[1] / 2 <= 600 / 45
        assert counts[2] > 1_000
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)

    run_virtual(run())
