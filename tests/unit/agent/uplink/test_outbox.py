"""Rows are kept until acknowledged, sent again after a reconnect, and dropped oldest first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frd.model import EntryColumns, Flags
from frd_agent.uplink.outbox import ROW_BYTES, Outbox
from tests.world.messages import entry_columns


def rows(rank: int, *seqs: int, group: int = 0, flags: int = Flags.JOINED) -> EntryColumns:
    return entry_columns(seqs, rank=rank, group=group, flags=flags)


def drain(outbox: Outbox) -> list[tuple[int, int, list[int]]]:
    sent = []
    while (batch := outbox.next_batch()) is not None:
        sent.append((batch.rank, batch.first_revision, batch.seq.tolist()))
    return sent


def test_the_oldest_rows_go_when_space_runs_out() -> None:
    """Five rows fit: the first two of the rank that recorded first are dropped and counted."""
    outbox = Outbox(5 * ROW_BYTES)
    outbox.record(rows(0, 1, 2, 3))
    outbox.record(rows(1, 1, 2, 3, 4))
    assert (outbox.rows, outbox.dropped, outbox.dropped_total) == (5, {0: 2}, 2)
    assert drain(outbox) == [(0, 3, [3]), (1, 1, [1, 2, 3, 4])]


def test_the_rest_of_a_batch_is_what_it_was() -> None:
    """Half of a batch is acknowledged before the stream breaks: of every column the other half goes
    out again on a new one."""
    outbox = Outbox(100 * ROW_BYTES)
    times = np.arange(4) + np.array([[10], [20], [30]])
    whole = replace(
        rows(0, 1, 2, 3, 4),
        group=np.array([4, 5, 6, 7], np.uint32),
        signature=np.array([8, 9, 10, 11], np.uint32),
        flags=np.array([1, 2, 4, 8], np.uint8),
        created_ns=times[0],
        started_ns=times[1],
        completed_ns=times[2],
    )
    outbox.record(whole)
    drain(outbox)
    outbox.ack({0: 2, 9: 5})
    outbox.rewind()
    rest = outbox.next_batch()
    assert rest is not None
    assert (outbox.rows, outbox.bytes) == (2, 2 * ROW_BYTES)
    assert (rest.rank, rest.first_revision) == (0, 3)
    for column in ("group", "seq", "signature", "flags", "created_ns", "started_ns"):
        assert getattr(rest, column).tolist() == getattr(whole, column).tolist()[2:]
    assert rest.completed_ns.tolist() == [32, 33]


def test_what_was_acknowledged_makes_no_rank_look_older() -> None:
    """Rank 0's first rows are acknowledged; rank 1's are the oldest then, and go first."""
    outbox = Outbox(5 * ROW_BYTES)
    outbox.record(rows(0, 1, 2))
    outbox.record(rows(1, 1, 2))
    outbox.ack({0: 2})
    outbox.record(rows(0, 3, 4, 5))
    outbox.record(rows(2, 1))
    assert outbox.dropped == {1: 1}
    assert drain(outbox) == [(0, 3, [3, 4, 5]), (1, 2, [2]), (2, 1, [1])]


def test_a_rank_that_starts_again_is_as_young_as_its_rows() -> None:
    """Rank 0 is forgotten and comes again after rank 1: rank 1's rows are the oldest."""
    outbox = Outbox(4 * ROW_BYTES)
    outbox.record(rows(0, 1, 2))
    outbox.record(rows(1, 1, 2))
    outbox.forget(0)
    outbox.record(rows(0, 8, 9))
    outbox.record(rows(2, 1))
    assert outbox.dropped == {1: 1}


def test_an_agent_that_runs_for_weeks_remembers_only_what_waits() -> None:
    """1,000 batches are acknowledged; the two that wait from the start still go oldest first."""
    outbox = Outbox(6 * ROW_BYTES)
    outbox.record(rows(7, 1, 2))
    outbox.record(rows(8, 1, 2))
    for n in range(1, 1_001):
        outbox.record(rows(0, n))
        outbox.ack({0: n})
    assert len(outbox._order) < 100
    outbox.record(rows(1, 1, 2, 3))
    assert outbox.dropped == {7: 1}
    outbox.record(rows(1, 4, 5, 6))
    assert outbox.dropped == {7: 2, 8: 2}


def test_rows_that_a_service_refuses_can_be_dropped() -> None:
    """Everything that waits is cleared; what comes next goes on counting."""
    outbox = Outbox(100 * ROW_BYTES)
    outbox.record(rows(0, 1, 2))
    assert outbox.clear() == 2
    outbox.record(rows(0, 3))
    outbox.rewind()
    assert drain(outbox) == [(0, 3, [3])]


def test_the_first_joined_row_that_waits_is_known_by_group() -> None:
    """A replay must stop short of the rows that will report the rest."""
    outbox = Outbox(100 * ROW_BYTES)
    outbox.record(rows(0, 4, flags=Flags.COMPLETED))
    outbox.record(rows(0, 5, 6))
    outbox.record(rows(0, 7))
    outbox.record(rows(0, 9, group=3))
    assert outbox.first_joined(0) == {0: 5, 3: 9}
    outbox.ack({0: 2})
    assert outbox.first_joined(0) == {0: 6, 3: 9}


def test_rows_that_were_never_sent_are_counted_with_their_rank() -> None:
    """A rank is forgotten while the service is away: nothing of it is sent any more, and its rows
    that were never sent count as dropped; those of another rank wait."""
    outbox = Outbox(100 * ROW_BYTES)
    outbox.record(rows(0, 1, 2))
    drain(outbox)
    outbox.record(rows(0, 3, 4, 5))
    outbox.record(rows(1, 1))
    outbox.forget(0)
    assert (outbox.rows, outbox.dropped_total) == (1, 3)
    outbox.rewind()
    assert drain(outbox) == [(1, 1, [1])]
