"""A node's clock before enough is known of it: nothing that is said of it does harm."""

from __future__ import annotations

from frd.engine.clocks.estimator import Exchange, NodeClock
from frd.model import ServiceRawNs
from tests.world.clocks import MS, S


def exchange(at: int, service_ahead: int) -> Exchange:
    """A millisecond's round trip at a node raw time."""
    there = at + service_ahead
    stamps = (at, there, there, at + MS)
    return Exchange(*stamps)  # type: ignore[arg-type]


def test_exchanges_that_contradict_before_the_first_question() -> None:
    """Its raw clock jumps by 10 s between two pings: the first is forgotten, others count."""
    clock = NodeClock()
    assert clock.newest(ServiceRawNs(9 * S)).reason == "no exchange yet"
    for at in range(10, 30):
        assert clock.exchange(exchange(at * S, S if at == 10 else 11 * S)) is None
    assert clock.contradictions == 1
    assert not clock.newest(ServiceRawNs(41 * S)).reason


def test_what_a_collective_says_of_an_unknown_clock_is_no_contradiction() -> None:
    """There is nothing yet that it could contradict, and it is not remembered against the clock."""
    clock = NodeClock()
    for peer in "abc":
        assert clock.constrain(peer, 7, ServiceRawNs(41 * S), most_ns=-5 * S)
    assert clock.contradictions == 0
