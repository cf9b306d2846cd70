"""Dumps are taken at any time: each transition is reported exactly once, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from frd.flight.entry import Dump, Entry
from frd.model import Flags
from tests.world.entries import Ring, dump, gloo
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
