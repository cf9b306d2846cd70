"""The interval of the offset between two raw clocks, at any time."""

from __future__ import annotations

import pytest

from frd.engine.clocks.exchange import DRIFT, Exchange, OffsetBounds
from frd.model import NodeRawNs, ServiceRawNs

MS = 1_000_000
S = 1_000_000_000


def exchange(at: int, *, there: int = MS, back: int = MS) -> Exchange:
    """Sent at a node raw time; the service's raw clock is five seconds ahead."""
    came = at + there
    return Exchange(
        NodeRawNs(at),
        ServiceRawNs(came + 5 * S),
        ServiceRawNs(came + 5 * S),
        NodeRawNs(came + back),
    )


def test_an_exchange_bounds_on_both_sides() -> None:
    """The ping took a millisecond, the pong three: above by the one, below by the other."""
    low, high = OffsetBounds(exchange(100 * S, back=3 * MS)).at(100 * S)
    assert (low, high) == pytest.approx((5 * S - 3 * MS, 5 * S + MS), abs=1 * MS // 1000)


@pytest.mark.parametrize("later", [-60 * S, -S, S, 60 * S])
def test_a_bound_widens_with_the_distance_from_it(later: int) -> None:
    """Before it as after it, by what clocks may drift, and never by less than that."""
    bounds = OffsetBounds(exchange(100 * S))
    low, high = bounds.at(100 * S + later)
    assert high - (5 * S + MS) > abs(later) / DRIFT
    assert (5 * S - MS) - low > abs(later + 2 * MS) / DRIFT - 2 * MS
    assert high - low < 2 * MS + 2 * abs(later) / DRIFT + MS // 100


def test_of_two_exchanges_each_side_has_the_one_that_binds_more() -> None:
    """One was quick there, the other back."""
    bounds = OffsetBounds(exchange(100 * S, there=MS // 10, back=9 * MS))
    assert bounds.narrow(exchange(101 * S, there=9 * MS, back=MS // 10))
    low, high = bounds.at(101 * S)
    assert high - low < 2 * MS // 10 + S // DRIFT + MS // 100
