"""Laws of the outbox, whatever the order of recording, acknowledging, reconnecting and dropping."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from frd_agent.uplink.outbox import ROW_BYTES, Outbox
from tests.world.messages import entry_columns

RANKS = st.integers(0, 2)
MAX_ROWS = 40


class Streams(RuleBasedStateMachine):
    """A service that applies rows by revision, behind streams that break at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(MAX_ROWS * ROW_BYTES)
        self.recorded: defaultdict[int, int] = defaultdict(int)
        self.applied: defaultdict[int, int] = defaultdict(int)
        self.received: defaultdict[int, list[int]] = defaultdict(list)
        self.acked: defaultdict[int, int] = defaultdict(int)

    @rule(rank=RANKS, count=st.integers(1, 30))
    def record(self, rank: int, count: int) -> None:
        first = self.recorded[rank] + 1
        self.outbox.record(entry_columns(range(first, first + count), rank=rank))
        self.recorded[rank] += count

    @rule(batches=st.integers(1, 5))
    def send(self, batches: int) -> None:
        for _ in range(batches):
            if (batch := self.outbox.next_batch()) is None:
                return
            assert batch.seq.tolist() == list(
                range(batch.first_revision, batch.first_revision + len(batch))
            ), "a row keeps its revision"
            for seq in batch.seq.tolist():
                if seq > self.applied[batch.rank]:
                    self.received[batch.rank].append(seq)
                    self.applied[batch.rank] = seq

    @rule(rank=RANKS, share=st.floats(0, 1))
    def acknowledge(self, rank: int, share: float) -> None:
        self.acked[rank] = max(self.acked[rank], int(self.applied[rank] * share))
        self.outbox.ack({rank: self.acked[rank]})

    @rule()
    def reconnect(self) -> None:
        self.outbox.rewind()

    @invariant()
    def within_bounds(self) -> None:
        assert 0 <= self.outbox.rows <= MAX_ROWS

    @invariant()
    def applied_once_and_in_order(self) -> None:
        for received in self.received.values():
            assert received == sorted(set(received))

    def teardown(self) -> None:
        """Nothing is lost but what was dropped, and that was counted."""
        self.outbox.rewind()
        while self.outbox.next_batch() is not None:
            pass
        self.outbox.rewind()
        self.send(10_000)
        for rank, recorded in self.recorded.items():
            missing = recorded - len(self.received[rank])
            assert missing <= self.outbox.dropped.get(rank, 0)
            self.outbox.ack({rank: recorded})
        assert self.outbox.rows == 0
        assert self.outbox.dropped_total == sum(self.outbox.dropped.values())


Streams.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestStreams = Streams.TestCase
