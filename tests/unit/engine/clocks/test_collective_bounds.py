"""Bounds of a clock that other nodes give: the tightest count, and only so many are kept."""

from __future__ import annotations

from frd.engine.clocks.alignment import FAR_NS, GROWTH_PPM
from frd.engine.clocks.estimator import MOST_PEERS, PeerBounds
from frd.engine.clocks.exchange import SILENT_NS

S = 1_000_000_000
EPOCH = 1_800_000_000 * S


def test_a_looser_word_does_not_take_a_tighter_one_back() -> None:
    """A peer bounds the offset to 100 us, a second later to 50 ms: the first still says more."""
    seen = PeerBounds()
    seen.add("a", 1, EPOCH, -100_000, 100_000)
    seen.add("a", 1, EPOCH + S, -50_000_000, 50_000_000)
    grown = S * GROWTH_PPM // 1_000_000 + 1  # rounded up
    assert seen.interval(EPOCH + S) == (-100_000 - grown, 100_000 + grown)


def test_a_word_that_has_grown_old_gives_way() -> None:
    """Half a minute on, clocks may have drifted by more than the newer, looser word leaves open."""
    seen = PeerBounds()
    seen.add("a", 1, EPOCH, None, 100_000)
    seen.add("a", 1, EPOCH + 30 * S, None, 2_000_000)
    assert seen.interval(EPOCH + 30 * S) == (-FAR_NS, 2_000_001)
    assert seen.interval(EPOCH + 31 * S + SILENT_NS) == (-FAR_NS, FAR_NS)


def test_the_oldest_of_too_many_peers_is_forgotten() -> None:
    """In a job of many nodes the two tightest words came first, and so many others since."""
    seen = PeerBounds()
    for peer in range(MOST_PEERS):
        high = 1_000 if peer < 2 else 90_000
        seen.add(f"node{peer}", 100, EPOCH, None, high)
    assert seen.interval(EPOCH)[1] == 1_001
    seen.add("another", 100, EPOCH, None, 90_000)
    assert seen.interval(EPOCH)[1] == 90_001
