"""What an agent reads of its clocks, and what a clock that was set back may not do to it."""

from __future__ import annotations

import numpy as np

from frd.model import NodeNs, NodeRawNs, WatermarkColumns
from frd.wire.clock import MAX_READINGS, ClockHello
from frd.wire.messages import MAX_SLACK_NS, Goodbye, Watermarks
from frd_agent.counters import Counters
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.node_clock import STEP_NS, Clock, ClockReading, read_clocks
from tests.world.entries import Ring, nccl

S = 1_000_000_000
MS = 1_000_000
T0 = 1_790_000_000 * S


class Node:
    """The two clocks of a node, which the test moves, and the agent's reader of them."""

    def __init__(self) -> None:
        self.raw = 5 * S
        self.real = T0
        self.slack = 300
        self.stats = Counters()
        self.steps: list[int] = []
        hello = ClockHello("boot", "session")
        self.clock = Clock(hello, self.stats, self.steps.append, self._read)

    def _read(self) -> ClockReading:
        return ClockReading(NodeRawNs(self.raw), NodeNs(self.real), self.slack)

    def passes(self, raw_ns: int, real_ns: int) -> None:
        self.raw += raw_ns
        self.real += real_ns
        self.clock.look()


def test_a_step_is_not_slew() -> None:
    """A clock slews by 500 ppm for a while, is set 3 s ahead, runs true, is set 2 s back."""
    node = Node()
    node.passes(0, 0)
    for _ in range(100):
        node.passes(250 * MS, 250 * MS + 125_000)
    assert node.steps == []
    node.passes(250 * MS, 3250 * MS)
    node.passes(250 * MS, 250 * MS)
    node.passes(250 * MS, -1750 * MS)
    assert node.steps == [3 * S, -2 * S]
    assert node.stats.clock_steps == 2


def test_a_slow_reading_is_no_step() -> None:
    """The process loses the core between its two readings: what it read is that much less sure."""
    node = Node()
    node.passes(0, 0)
    node.slack = 40 * MS
    node.passes(250 * MS, 290 * MS)
    assert node.steps == []
    node.slack = MAX_SLACK_NS + 1
    node.passes(250 * MS, 3 * S)
    assert node.steps == []


def test_readings_that_are_not_sent_are_bounded() -> None:
    """The service is away for a minute: the newest readings wait for it."""
    node = Node()
    for _ in range(4 * MAX_READINGS):
        node.passes(250 * MS, 250 * MS)
    readings = node.clock.take_readings()
    assert len(readings.raw_ns) == MAX_READINGS
    assert readings.raw_ns[-1] == node.raw
    assert (readings.real_ns - readings.raw_ns).tolist() == [T0 - 5 * S] * MAX_READINGS
    assert readings.slack_ns.tolist() == [300] * MAX_READINGS
    assert len(node.clock.take_readings().raw_ns) == 0


def test_watermarks_take_the_newest_reading_along() -> None:
    """It is not sent again with a ping, unless the clock stepped: then the ping has all."""
    node = Node()
    node.passes(0, 0)
    node.passes(250 * MS, 250 * MS)
    stamped = node.clock.stamp(marks())
    assert isinstance(stamped, Watermarks)
    assert (stamped.sent_at_ns, stamped.sent_raw_ns, stamped.sent_slack_ns) == (
        node.real,
        node.raw,
        300,
    )
    assert len(node.clock.take_readings().raw_ns) == 0
    node.real -= 3 * S
    node.clock.stamp(marks())
    assert node.steps == [-3 * S]
    assert node.clock.take_readings().real_ns.tolist() == [node.real]
    goodbye = Goodbye("")
    assert node.clock.stamp(goodbye) is goodbye


def marks() -> Watermarks:
    none = np.zeros(0, np.int64)
    index = np.zeros(0, np.uint32)
    columns = WatermarkColumns(index, index, none, none, none, none, index, none)
    return Watermarks(0, columns, NodeNs(T0))


def test_the_real_clocks_are_read_closely() -> None:
    """Two readings a moment apart on this machine agree, and neither clock ran backwards."""
    first, second = read_clocks(), read_clocks()
    assert second.raw_ns > first.raw_ns
    passed = (second.real_ns - first.real_ns) - (second.raw_ns - first.raw_ns)
    assert abs(passed) <= first.slack_ns + second.slack_ns + STEP_NS


def test_what_is_known_of_a_rank_goes_on_after_a_step_back() -> None:
    """The clock is set back by an hour: the rank's marks are fresh again at its next word."""
    current = CurrentState(lambda rank: 0)
    current.set_as_of(0, NodeNs(T0))
    current.set_back(3600 * S)
    current.set_as_of(0, NodeNs(T0 - 3600 * S + S))
    message = current.next_watermarks(NodeNs(T0))
    assert message is not None
    assert message.columns.as_of_ns.tolist() == [T0 - 3599 * S]


def test_an_entry_from_before_a_step_back_is_read() -> None:
    """A rank joins and the clock is set back by an hour: its entry is no younger than the dump."""
    for created, read in ((T0 - MS, 0), (T0 + S, 0), (T0 - S, 1), (T0 + 3600 * S, 1)):
        ring = Ring()
        diff = ring.read(nccl(0, 1, "scheduled", time_created_ns=created), at=T0)
        assert len(diff.rows) == read
        assert ring.tracker.is_whole == bool(read)
