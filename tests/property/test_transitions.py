"""Dumps are taken at any time: each transition is reported exactly once, in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from frd.flight.entry import Dump, Entry
from frd.model import Flags
from frd_agent.recorder.transitions import RecorderTracker
from tests.world.entries import T0, naming

LATER = T0 + 10**15

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
        self.entries.append(
            Entry(
                record_id=len(self.entries),
                process_group=(str(group), ""),
                profiling_name="gloo:all_reduce",
                collective_seq_id=self.seqs[group],
                op_id=self.seqs[group],
                pg_id=group,
                time_created_ns=T0 + len(self.entries),
            )
        )

    def finish(self, nth: int) -> None:
        waiting = [i for i, entry in enumerate(self.entries) if not entry.retired]
        if waiting:
            i = waiting[min(nth, len(waiting) - 1)]
            fields = {name: getattr(self.entries[i], name) for name in Entry.__struct_fields__}
            self.entries[i] = Entry(**fields | {"retired": True})

    def dump(self) -> Dump:
        tracker = self.entries[-self.capacity :]
        return Dump(version="2.10", entries=tuple(tracker))


@given(steps=STEPS, capacity=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_every_transition_is_reported_once_and_in_order(
    steps: list[tuple[str, int]], capacity: int
) -> None:
    """Ops of three groups start and end in any order; entries are overwritten between dumps."""
    recorder, tracker, names = Recorder(capacity), RecorderTracker(), naming()
    joined: defaultdict[int, list[int]] = defaultdict(list)
    completed: defaultdict[int, list[int]] = defaultdict(list)
    lost = 0
    before: int | None = None  # the first dump came
    for what, n in [*steps, ("dump", 0)]:
        if what == "enter":
            recorder.enter(n)
        elif what == "finish":
            recorder.finish(n)
        else:
            dump = recorder.dump()
            if before is None and dump.entries:
                before = dump.entries[0].record_id
            diff = tracker.apply(dump, LATER, names)
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
    for progress in tracker.groups:
        watermarks = progress.watermarks
        assert watermarks.completed <= watermarks.enqueued
        assert (watermarks.completed < watermarks.enqueued) == (watermarks.head_created_ns > 0)


@given(steps=STEPS)
@settings(max_examples=80, deadline=None)
def test_without_overrun_nothing_is_missing(steps: list[tuple[str, int]]) -> None:
    """The recorder is large enough: every transition is reported, whenever dumps are taken."""
    recorder, tracker, names = Recorder(10_000), RecorderTracker(), naming()
    reported: defaultdict[tuple[str, int], Flags] = defaultdict(lambda: Flags(0))
    for what, n in [*steps, ("dump", 0)]:
        if what == "enter":
            recorder.enter(n)
        elif what == "finish":
            recorder.finish(n)
        else:
            for group, seq, _, flags, *_ in tracker.apply(recorder.dump(), LATER, names).rows:
                name = names._dictionary.groups[group].info.name
                assert not reported[name, seq] & flags
                reported[name, seq] |= Flags(flags)
    by_group: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in recorder.entries:
        by_group[entry.group_name].append(entry)
    for name, entries in by_group.items():
        in_order = True
        for entry in entries:
            in_order = in_order and entry.retired
            expected = Flags.JOINED | (Flags.COMPLETED if in_order else Flags(0))
            assert reported[name, entry.collective_seq_id] == expected


def test_a_dump_taken_twice_reports_nothing_new() -> None:
    """The same dump a second time reports nothing."""
    recorder, tracker, names = Recorder(100), RecorderTracker(), naming()
    recorder.enter(0)
    dump = recorder.dump()
    assert tracker.apply(dump, LATER, names).rows
    assert not tracker.apply(dump, LATER + 1, names).rows
