"""P2P ops in flight, as each rank tells them: its last word is what counts."""

from __future__ import annotations

from frd.engine.state.p2p import P2PChannels
from frd.engine.state.tables import RankTable
from frd.model import AlignedNs
from tests.world.messages import p2p_ops
from tests.world.observe import rank_info


def tell(channels: P2PChannels, rank: int, in_flight: list[int], since: list[int]) -> None:
    """So many to each of the next ranks."""
    rows = enumerate(zip(in_flight, since, strict=True), rank + 1)
    ops = p2p_ops(rank, *((0, peer, True, count, at) for peer, (count, at) in rows))
    channels.replace(ops, max(since))


def ranks(as_of: int) -> RankTable:
    """Eight that reported up to then."""
    made = RankTable()
    for rank in range(8):
        made.declare(rank_info(rank))
        made.as_of[rank] = as_of
    return made


def test_a_later_word_replaces_the_one_before() -> None:
    """Rank 5 tells twice, then that it is done; what rank 2 told between is not touched."""
    channels = P2PChannels()
    tell(channels, 5, [1, 2], [70, 50])
    tell(channels, 2, [1], [60])
    tell(channels, 5, [0, 1], [0, 80])
    snapshot = channels.snapshot(ranks(99), AlignedNs(99))
    assert list(zip(snapshot.rank, snapshot.peer, snapshot.since, strict=True)) == [
        (2, 3, 60),
        (5, 7, 80),
    ]
    assert channels.waiting(ranks(99), 29).rank.tolist() == [2]
    tell(channels, 5, [0, 0], [0, 0])
    assert channels.snapshot(ranks(99), AlignedNs(99)).rank.tolist() == [2]
    assert channels.waiting(ranks(99), 9).rank.tolist() == [2]


def test_who_has_told_nothing_may_be_forgotten() -> None:
    """A rank starts again before it told of any channel."""
    channels = P2PChannels()
    channels.forget(3)
    tell(channels, 3, [1], [40])
    channels.forget(3)
    assert len(channels.snapshot(ranks(99), AlignedNs(99)).rank) == 0
    assert len(channels.waiting(ranks(100), 0).rank) == 0
