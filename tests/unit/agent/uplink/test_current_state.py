"""What the agent holds for true, and what of it a stream has not been told."""

from __future__ import annotations

import pytest

from frd.model import NodeRawNs
from frd.wire.messages import Statuses, Unreadable
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rows import channel_columns
from frd_agent.uplink.current_state import CurrentState, Wait

S = 1_000_000_000
NOW = NodeRawNs(1_700_000_000 * S)


def current() -> CurrentState:
    """Even ranks are of attempt 0, odd ones of attempt 1."""
    return CurrentState(lambda rank: rank % 2)


def waiting(since_s: float) -> GroupWatermarks:
    return GroupWatermarks(7, -1, 6, NOW - round(since_s * S))


def test_a_new_stream_is_told_of_ranks_at_rest() -> None:
    """Nothing has changed since the last stream: up to when that is known is told all the same."""
    known = current()
    known.set_as_of(0, NOW)
    for _ in range(2):
        told = known.next_watermarks()
        assert told is not None
        assert told.columns.seen_rank.tolist() == [0]
        assert known.next_watermarks() is None
        known.rewind()


def test_that_nothing_is_in_flight_is_told_once() -> None:
    """An earlier agent may have been killed after it had told of a send that is over since."""
    known = current()
    for _ in range(2):
        known.set_channels(channel_columns(0, ()))
    told = [known.next_channels(), known.next_channels()]
    assert [None if one is None else len(one.group) for one in told] == [0, None]


def test_a_message_tells_of_one_attempt() -> None:
    """Ranks of two attempts have moved: their watermarks go out apart."""
    known = current()
    for rank in range(4):
        known.set_watermarks(rank, 0, GroupWatermarks(7, -1, 7))
    told = [known.next_watermarks(), known.next_watermarks()]
    assert known.next_watermarks() is None
    ranks = {one.attempt_index: one.columns.rank.tolist() for one in told if one is not None}
    assert ranks == {0: [0, 2], 1: [1, 3]}


@pytest.mark.parametrize("surely", [False, True])
@pytest.mark.parametrize(("since_s", "wait"), [(0.5, Wait.NO), (2, Wait.NEW), (61, Wait.OLD)])
def test_a_wait_is_new_for_a_minute(since_s: float, wait: Wait, surely: bool) -> None:
    """A rank that has only begun to wait does not count. Nor does one that is done with what it
    waited in, and it hides no other one."""
    known = current()
    known.set_watermarks(0, 0, waiting(30))
    known.set_watermarks(0, 0, GroupWatermarks(7, -1, 7))
    assert known.wait(NOW, surely=surely) is Wait.NO
    known.set_watermarks(2, 0, waiting(since_s))
    known.set_as_of(2, NOW)
    assert known.wait(NOW, surely=surely) is wait


def test_a_wait_is_sure_once_the_rank_was_seen_in_it_for_long() -> None:
    """It was in an op when its ring was last read, and may be in another one by now."""
    known = current()
    known.set_watermarks(0, 0, waiting(5))
    known.set_as_of(0, NodeRawNs(NOW - 4 * S))
    assert known.wait(NOW, surely=False) is Wait.NEW
    assert known.wait(NOW, surely=True) is Wait.NO
    known.set_as_of(0, NodeRawNs(NOW - 3 * S))
    assert known.wait(NOW, surely=True) is Wait.NEW


def test_nothing_is_told_of_a_rank_that_is_forgotten() -> None:
    """It moved, and was superseded before anybody was told."""
    known = current()
    known.set_watermarks(0, 0, waiting(1))
    known.set_as_of(0, NOW)
    known.forget(0)
    assert known.next_watermarks() is None
    assert known.wait(NOW, surely=False) is Wait.NO


def test_what_may_not_be_read_is_sent_when_it_changes() -> None:
    """Also that it can be read again; a new stream gets what holds, and nothing if all is well."""
    known, texts = current(), Unreadable(("of uid 7",))
    sent = []
    for unreadable in (Unreadable(), texts, texts, Unreadable()):
        known.set_unreadable(unreadable)
        has_news, message = known.has_news, known.next_statuses()
        assert has_news == (message is not None)
        sent.append(message and message.unreadable)
    assert sent == [None, texts, None, Unreadable()]
    known.rewind()
    assert known.next_statuses() is None
    known.set_unreadable(texts)
    for _ in range(2):
        assert known.next_statuses() == Statuses((), unreadable=texts)
        known.rewind()
