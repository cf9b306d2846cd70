"""One-way messages give an upper bound of a node's offset, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from frd.model import AlignedNs, NodeNs
from frd.service import clocks as module
from frd.service.clocks import WINDOW_S, Clocks

S = 1_000_000_000
T0 = 1_790_000_000 * S
OFFSET = -3 * S
"""The node's clock is three seconds ahead of the service's."""


def send(clocks: Clocks, at: int, way: int, offset: int = OFFSET, boot: str = "boot") -> int:
    """A message that arrives at service time `at` after `way` ns; gives its lag."""
    return clocks.sample(boot, NodeNs(at - way - offset), AlignedNs(at))


def test_the_fastest_message_counts() -> None:
    """Messages take from 1 to 50 ms; the offset is high by the fastest way, and by no more."""
    clocks = Clocks()
    for i, way_ms in enumerate([50, 7, 1, 20, 3]):
        send(clocks, T0 + i * S, way_ms * 1_000_000)
    assert clocks.offset_ns("boot") == OFFSET + 1_000_000


def test_lag_is_time_beyond_the_fastest() -> None:
    """A message that waited 2 s in a full buffer has a lag of 2 s, whatever the clocks say."""
    clocks = Clocks()
    send(clocks, T0, 1_000_000)
    assert send(clocks, T0 + 3 * S, 2 * S + 1_000_000) == 2 * S


def test_the_fastest_message_is_forgotten_with_its_window() -> None:
    """The node's clock slews 10 ms back; after a window the offset has followed."""
    clocks = Clocks()
    send(clocks, T0, 1_000_000)
    for second in range(1, WINDOW_S + 11):
        send(clocks, T0 + second * S, 1_000_000, OFFSET + 10_000_000)
    assert clocks.offset_ns("boot") == OFFSET + 11_000_000


def test_a_step_forward_is_followed_at_once() -> None:
    """The node's clock jumps 5 s ahead: the next message shows it."""
    clocks = Clocks()
    send(clocks, T0, 1_000_000)
    send(clocks, T0 + S, 1_000_000, OFFSET - 5 * S)
    assert clocks.offset_ns("boot") == OFFSET - 5 * S + 1_000_000


def test_unknown_times_stay_unknown() -> None:
    """A column with zeros (no such time) keeps them; the rest moves by the offset."""
    clocks = Clocks()
    send(clocks, T0, 0)
    node = np.array([T0 - OFFSET, 0], np.int64)
    assert clocks.to_aligned("boot", node).tolist() == [T0, 0]
    assert node.tolist() == [T0 - OFFSET, 0]
    assert clocks.one_to_aligned("boot", NodeNs(0)) == 0
    assert clocks.one_to_aligned("boot", NodeNs(T0 - OFFSET)) == T0


def test_nothing_is_claimed_of_what_is_not_known() -> None:
    """A node that has not spoken has no offset, and one-way messages never give an uncertainty."""
    clocks = Clocks()
    assert clocks.offset_ns("boot") is None
    send(clocks, T0, 1)
    assert clocks.uncertainty_ns("boot") is None


def test_silent_nodes_are_forgotten() -> None:
    """After an hour of silence a node's clock is no longer kept."""
    clocks = Clocks()
    send(clocks, T0, 1)
    clocks.forget(AlignedNs(T0 + 3000 * S))
    assert clocks.offset_ns("boot") is not None
    clocks.forget(AlignedNs(T0 + 3700 * S))
    assert clocks.offset_ns("boot") is None


def test_ever_new_nodes_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody says hello under a new boot id each time; those who speak on are kept."""
    monkeypatch.setattr(module, "MAX_NODES", 8)
    clocks = Clocks()
    for at in range(100):
        send(clocks, T0 + 2 * at * S, 1)
        send(clocks, T0 + (2 * at + 1) * S, 1, boot=f"boot {at}")
    known = [at for at in range(100) if clocks.offset_ns(f"boot {at}") is not None]
    assert known == list(range(100 - len(known), 100))
    assert len(known) < 8
    assert clocks.offset_ns("boot") is not None
