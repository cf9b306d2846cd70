"""Where a rank stands between two dumps, and up to when that is the whole truth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from frd.flight import Dump, Entry, Status
from frd.model import AttemptKey, NodeNs
from frd_agent.recorder.naming import KnownGroup, Naming
from frd_agent.recorder.progress import Marks
from frd_agent.recorder.standing import Recorder, Standing, stand, stand_at_end
from frd_agent.recorder.transitions import Ring
from frd_agent.uplink.dictionary import Dictionary

T0 = 1_700_000_000_000_000_000
JOB = AttemptKey("job", 0)
DUMPED = NodeNs(T0 + 10**9)
PUBLISHED = NodeNs(T0 + 2 * 10**9)
GENERIC = Recorder("fr_trace_json", {}, 0)


def op(
    record_id: int, seq: int, *, op_id: int = 0, backend: str = "gloo", retired: bool = True
) -> Entry:
    return Entry(
        record_id=record_id,
        process_group=("0", "default_pg"),
        profiling_name=f"{backend}:all_reduce",
        collective_seq_id=seq,
        pg_id=0,
        op_id=op_id or seq,
        time_created_ns=T0 + record_id,
        state="completed" if retired and backend != "gloo" else "scheduled",
        retired=retired,
    )


def naming() -> Naming:
    dictionary = Dictionary()
    names = Naming(dictionary, dictionary.attempt(JOB, 0))
    names.replace({"0": KnownGroup("default_pg", (0, 1))})
    return names


def dump(entries: Sequence[Entry], status: Status) -> Dump:
    return Dump("", "2.10", entries=tuple(entries), status={0: status})


def ring_of(entries: Sequence[Entry], status: Status) -> Ring:
    ring = Ring()
    ring.apply(dump(entries, status), DUMPED, naming())
    return ring


def at(ring: Ring, status: Status, recorder: Recorder = GENERIC) -> Standing:
    return stand([(recorder, ring)], {(0, 0): status}, PUBLISHED)


def test_unchanged_counters_carry_the_dump_forward() -> None:
    """Nothing has happened since the dump: it is the whole truth up to the publication."""
    ring = ring_of([op(0, 1), op(1, 2, retired=False)], Status(2, -1, 1))
    assert at(ring, Status(2, -1, 1)) == Standing([(0, Marks(2, -1, 1, T0 + 1))], PUBLISHED, True)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_counters_that_moved_claim_nothing(backend: str) -> None:
    """The counters are 5 ahead: sends that Gloo counts, or NCCL numbers, are no collectives."""
    entries = [op(i, i + 1, backend=backend) for i in range(300)]
    ring = ring_of(entries, Status(300, -1, 300))
    assert at(ring, Status(305, -1, 305)) == Standing([(0, Marks(300, -1, 300))], DUMPED, False)


def test_what_gloo_completed_last_is_not_all_that_it_completed() -> None:
    """Op 2 hangs in one of Gloo's threads while the other one ends op 3: 2 is still open."""
    entries = [op(0, 1), op(1, 2, retired=False), op(2, 3, retired=False)]
    ring = ring_of(entries, Status(3, -1, 1))
    assert at(ring, Status(3, -1, 3)).marks == [(0, Marks(3, -1, 1, T0 + 1))]


@pytest.mark.parametrize(
    ("torn", "whole"),
    [
        ([op(0, 1)], [op(0, 1), op(1, 2)]),  # op 2 is counted, its entry is still to come
        ([op(0, 1), op(1, 2, retired=False)], [op(0, 1), op(1, 2)]),  # so is the mark of its end
    ],
)
def test_a_dump_between_counter_and_entry(torn: list[Entry], whole: list[Entry]) -> None:
    """The rank rests, but the dump was taken in the middle of its last op: it is taken again."""
    ring, status = Ring(), Status(2, -1, 2)
    names = naming()
    ring.apply(dump(torn, status), DUMPED, names)
    assert not ring.is_whole
    assert (at(ring, status).as_of_ns, at(ring, status).exact) == (DUMPED, False)
    ring.apply(dump(whole, status), NodeNs(DUMPED + 1), names)
    assert at(ring, status) == Standing([(0, Marks(2, -1, 2))], PUBLISHED, True)


def test_counters_ahead_of_entries_in_two_dumps_are_so_for_good() -> None:
    """Op 2 hangs, op 3 is over, and a send was counted: the second dump is the truth."""
    entries, status = [op(0, 1), op(1, 2, retired=False), op(2, 3)], Status(4, -1, 3)
    ring, names = Ring(), naming()
    for _ in range(2):
        ring.apply(dump(entries, status), DUMPED, names)
    assert at(ring, status) == Standing([(0, Marks(3, -1, 1, T0 + 1))], PUBLISHED, True)


def test_the_first_op_of_a_group_is_counted_before_it_is_seen() -> None:
    """A dump has counters of a group and no entry of it yet: that group is not known to be idle."""
    ring, names = Ring(), naming()
    new = Dump("", "2.10", entries=(op(0, 1),), status={0: Status(1, -1, 1), 7: Status(1, -1, 0)})
    ring.apply(new, DUMPED, names)
    assert not ring.is_whole


def test_a_group_that_no_entry_has_named_yet() -> None:
    """A new process group has counters, and the dump is older: absence elsewhere is unproven."""
    ring = ring_of([op(0, 1)], Status(1, -1, 1))
    raw = {(0, 0): Status(1, -1, 1), (0, 5): Status(1, -1, 0)}
    assert stand([(GENERIC, ring)], raw, PUBLISHED).as_of_ns == DUMPED


def test_a_group_that_was_destroyed_is_not_waited_for() -> None:
    """The tap tells no counters of it any more; of the rest nothing has moved since the dump."""
    other = structs.replace(op(1, 1), process_group=("1", "old"), pg_id=1)
    status = {0: Status(1, -1, 1), 1: Status(1, -1, 1)}
    ring, names = Ring(), naming()
    ring.apply(Dump("", "2.10", entries=(op(0, 1), other), status=status), DUMPED, names)
    ring.close(lambda name: name == "1")
    standing = at(ring, Status(1, -1, 1))
    assert (standing.as_of_ns, standing.exact) == (PUBLISHED, True)


def test_without_counters_the_dump_is_all() -> None:
    """The tap cannot be read, or the recorder has no counters: as of the dump."""
    ring = ring_of([op(0, 1)], Status(1, -1, 1))
    assert stand([(GENERIC, ring)], None, PUBLISHED) == Standing(
        [(0, Marks(1, -1, 1))], DUMPED, False
    )
    blind = Recorder("fr_trace_json", {"backend": "nccl2"}, None)
    assert stand([(blind, ring)], {}, PUBLISHED).exact is False


def test_several_recorders_are_known_as_far_as_the_worst_of_them() -> None:
    """One recorder rests, the other has moved: the rank is known up to the latter's dump."""
    good = ring_of([op(0, 1)], Status(1, -1, 1))
    bad = ring_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    open_collectives = [(GENERIC, good), (Recorder("dump_nccl_trace_json", {}, 1), bad)]
    raw = {(0, 0): Status(1, -1, 1), (1, 0): Status(9, -1, 9)}
    standing = stand(open_collectives, raw, PUBLISHED)
    assert (standing.as_of_ns, standing.exact) == (DUMPED, False)


def test_a_dump_newer_than_the_counters_counts() -> None:
    """The GIL is held: the socket answers, and its dump is what is known."""
    ring = ring_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    standing = stand([(GENERIC, ring)], {(0, 0): Status(1, -1, 1)}, NodeNs(DUMPED - 10**9))
    assert standing.marks == [(0, Marks(2, -1, 2))]
    assert standing.as_of_ns == DUMPED


# -- the end -------------------------------------------------------------------------------------


def last(ring: Ring, status: Status) -> Standing | None:
    return stand_at_end([(GENERIC, ring)], {(0, 0): status}, PUBLISHED)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_last_counters_of_a_process_tell_how_far_it_came(backend: str) -> None:
    """Ten more collectives came after the last dump, then the process ended."""
    ring = ring_of([op(i, i + 1, backend=backend) for i in range(30)], Status(30, -1, 30))
    assert last(ring, Status(40, -1, 40)) == Standing([(0, Marks(40, -1, 40))], PUBLISHED, True)
    assert last(ring, Status(30, -1, 30)) == Standing([(0, Marks(30, -1, 30))], PUBLISHED, True)
    inside = last(ring, Status(40, -1, 39))
    assert inside is not None
    assert inside.marks == [(0, Marks(40, -1, 39, PUBLISHED))]


def test_the_last_counters_do_not_tell_sends_from_collectives() -> None:
    """Gloo has counted a send among the ops of the group, so what came after is not known."""
    ring = ring_of([op(0, 1), op(1, 2, op_id=3)], Status(3, -1, 3))
    assert last(ring, Status(5, -1, 5)) is None
    assert last(ring, Status(3, -1, 3)) == Standing([(0, Marks(2, -1, 2))], PUBLISHED, True)


def test_a_group_that_no_dump_has_shown_leaves_the_end_unknown() -> None:
    """It was made and used after the last dump."""
    ring = ring_of([op(0, 1)], Status(1, -1, 1))
    raw = {(0, 0): Status(1, -1, 1), (0, 1): Status(4, -1, 4)}
    assert stand_at_end([(GENERIC, ring)], raw, PUBLISHED) is None
