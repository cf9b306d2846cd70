"""Dumps are taken at any time: each transition is reported exactly once, in order."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from frd.errors import StoreError
from frd.flight.entry import Dump, Entry
from frd.model import YEAR_2200_NS, AlignedNs, Flags
from frd.store.journal import Journal, JournalLimits, read, segments
from frd.store.records import Record, RecordKind
from frd_agent.uplink.outbox import ROW_BYTES, Outbox
from tests.world.entries import Ring, dump, gloo
from tests.world.messages import entry_columns
from tests.world.seeds import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 2)),
        st.tuples(st.just("finish"), st.integers(0, 7)),
        st.tuples(st.just("dump"), st.just(0)),
    ),
    max_size=120,
)


@dataclass
class Recorder:
    """Three groups in one recorder; ops may finish in any order."""

    capacity: int
    entries: list[Entry] = field(default_factory=list)
    seqs: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def enter(self, group: int) -> None:
        self.seqs[group] += 1
        number = len(self.entries)
        self.entries.append(gloo(number, self.seqs[group], done=False, pg_id=group))

    def finish(self, nth: int) -> None:
        waiting = [i for i, entry in enumerate(self.entries) if not entry.retired]
        if waiting:
            i = waiting[min(nth, len(waiting) - 1)]
            self.entries[i] = replace(self.entries[i], retired=True)

    def dumps(self, steps: list[tuple[str, int]]) -> Iterator[Dump]:
        """The dumps that are taken between what the ranks do, and one at the end."""
        for what, n in [*steps, ("dump", 0)]:
            match what:
                case "enter":
                    self.enter(n)
                case "finish":
                    self.finish(n)
                case _:
                    yield dump(self.entries[-self.capacity :])


def _is_over(entry: Entry) -> bool:
    return entry.retired


@given(steps=STEPS, capacity=st.integers(1, 40) | st.just(10_000))
@examples(200)
def test_every_transition_is_reported_once_and_in_order(
    steps: list[tuple[str, int]], capacity: int
) -> None:
    """Ops of three groups start and end in any order; entries are overwritten between dumps, unless
    the recorder is large enough: then no transition is missing."""
    recorder, ring = Recorder(capacity), Ring()
    joined: defaultdict[int, list[int]] = defaultdict(list)
    completed: defaultdict[int, list[int]] = defaultdict(list)
    lost = 0
    before: int | None = None  # the first dump came
    for taken in recorder.dumps(steps):
        if before is None and taken.entries:
            before = taken.entries[0].record_id
        diff = ring.read(*taken.entries)
        lost += diff.lost
        for group, seq, _, flags, *_ in diff.rows:
            if flags & Flags.JOINED:
                joined[group].append(seq)
            if flags & Flags.COMPLETED:
                completed[group].append(seq)
    for reported in (*joined.values(), *completed.values()):
        assert reported == sorted(set(reported)), "once, in order"
    assert sum(map(len, joined.values())) + lost + (before or 0) == len(recorder.entries)
    for group, seqs in completed.items():
        assert set(seqs) <= set(joined[group])
    if len(recorder.entries) <= capacity:
        assert lost == 0
        for group, seqs in joined.items():
            name = ring.names._dictionary.groups[group].info.name
            entries = [entry for entry in recorder.entries if entry.group_name == name]
            in_order = [entry.collective_seq_id for entry in takewhile(_is_over, entries)]
            assert (len(seqs), completed[group]) == (len(entries), in_order)
    for watermarks in ring.watermarks:
        assert watermarks.completed <= watermarks.enqueued
        assert (watermarks.completed < watermarks.enqueued) == (watermarks.head_created_ns > 0)


# -- outbox ----------------------------------------------------------------------------------------
# Laws of the outbox, whatever the order of recording, acknowledging, reconnecting and dropping.


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


# -- laws of the journal: damage never turns into records that were not written --------------------


BATCHES = st.lists(
    st.lists(
        st.builds(
            Record,
            kind=st.sampled_from(RecordKind),
            at=st.integers(0, YEAR_2200_NS - 1).map(AlignedNs),
            stream=st.integers(0, 2**62 - 1),
            payload=st.binary(max_size=200),
        ),
        max_size=4,
    ),
    max_size=6,
)


def written(folder: Path, batches: list[list[Record]], segment_bytes: int) -> None:
    journal = Journal(
        folder,
        settings=b"{}",
        preamble=lambda: [Record(RecordKind.OPENED, AlignedNs(0), 1, b"")],
        begun_at=AlignedNs(0),
        limits=JournalLimits(segment_bytes, total_bytes=1_000_000),
    )
    for batch in batches:
        journal.append(batch)
    assert journal.dropped == 0
    journal.close()


def salvaged(path: Path) -> list[Record]:
    """All records that reading gives before it ends or fails with a clear error."""
    got: list[Record] = []
    with contextlib.suppress(StoreError):
        for record in read(path, lambda _: None):
            got.append(record)  # noqa: PERF402 (the records before the error count)
    return got


@given(batches=BATCHES, segment_bytes=st.integers(50, 2000))
@examples(50)
def test_reading_gives_what_was_written(batches: list[list[Record]], segment_bytes: int) -> None:
    """Any records, in segments of any size, come back unchanged and in order."""
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), batches, segment_bytes)
        got = list(read(Path(folder), lambda _: None))
    assert got[2:] == [record for batch in batches for record in batch]


@given(batches=BATCHES, data=st.data())
@examples(150)
def test_damage_gives_a_clean_prefix(batches: list[list[Record]], data: st.DataObject) -> None:
    """A segment cut anywhere, or with any bit flipped, gives a prefix of what was written."""
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), batches, segment_bytes=100_000)
        (path,) = segments(Path(folder))
        whole = salvaged(path)
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans(), label="truncate"):
            del content[data.draw(st.integers(0, len(content)), label="length") :]
        else:
            bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        got = salvaged(path)
    assert got == whole[: len(got)]
