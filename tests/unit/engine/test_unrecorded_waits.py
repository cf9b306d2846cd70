"""The table of waits that no recorder shows."""

from __future__ import annotations

from frd.engine.state.tables import RankTable
from frd.engine.state.unrecorded_waits import UnrecordedWaits
from frd.model import AlignedNs, NodeRawNs, RankInfo, UnrecordedWait, WaitSource


def wait(op: str, since: int, as_of: int) -> UnrecordedWait:
    return UnrecordedWait(0, WaitSource.STACK, op, NodeRawNs(since), NodeRawNs(as_of))


def ranks() -> RankTable:
    """One rank whose node time is 1,000 ns behind aligned time."""
    table = RankTable()
    table.declare(RankInfo(0, 1, "node", "boot", 7))
    table.clock_aligned[0] = 1_000
    return table


def test_the_latest_report_counts() -> None:
    """A rank is in recv, then in new_group; the report on recv is repeated late."""
    waits = UnrecordedWaits()
    assert waits.observe(wait("recv", 10, 20))
    assert waits.observe(wait("new_group", 30, 40))
    assert not waits.observe(wait("recv", 10, 20))
    [seen] = waits.snapshot(ranks(), AlignedNs(10_000))[0]
    assert (seen.op, seen.since_ns, seen.as_of_ns) == ("new_group", 1_030, 1_040)


def test_a_wait_that_is_over() -> None:
    """The next stack of the rank shows its own code: it was seen there."""
    waits = UnrecordedWaits()
    waits.observe(wait("recv", 10, 20))
    assert waits.any_waits
    waits.observe(wait("", 20, 30))
    assert not waits.any_waits
    [seen] = waits.snapshot(ranks(), AlignedNs(10_000))[0]
    assert (seen.op, seen.as_of_ns) == ("", 1_030)


def test_times_move_with_the_clock() -> None:
    """The clock of the node moves by 5 ns."""
    waits = UnrecordedWaits()
    waits.observe(wait("recv", 10, 20))
    waits.move_times(0, 5)
    [seen] = waits.snapshot(ranks(), AlignedNs(10_000))[0]
    assert (seen.since_ns, seen.as_of_ns) == (1_015, 1_025)
