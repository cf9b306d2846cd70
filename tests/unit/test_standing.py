"""Where a rank stands between two dumps, and up to when that is the whole truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frd.flight import Dump, Entry, Status
from frd.model import AttemptKey, NodeNs
from frd_agent.dictionary import Dictionary
from frd_agent.naming import KnownGroup, Naming, Signatures
from frd_agent.progress import Marks
from frd_agent.standing import Recorder, Standing, stand
from frd_agent.transitions import Ring

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


def ring_of(entries: Sequence[Entry], status: Status) -> Ring:
    dictionary = Dictionary()
    names = Naming(dictionary, Signatures(dictionary), dictionary.attempt(JOB, 0))
    names.replace({"0": KnownGroup("default_pg", (0, 1))})
    ring = Ring()
    ring.apply(Dump("", "2.10", entries=tuple(entries), status={0: status}), DUMPED, names)
    return ring


def at(ring: Ring, status: Status, recorder: Recorder = GENERIC) -> Standing:
    return stand([(recorder, ring)], {(0, 0): status}, PUBLISHED)


def test_unchanged_counters_carry_the_dump_forward() -> None:
    """Nothing has happened since the dump: it is the whole truth up to the publication."""
    ring = ring_of([op(0, 1), op(1, 2, retired=False)], Status(2, -1, 1))
    assert at(ring, Status(2, -1, 1)) == Standing([(0, Marks(2, -1, 1, T0 + 1))], PUBLISHED, True)


def test_counters_of_a_pure_group_are_seqs() -> None:
    """Five more collectives, the last one open: known without a dump, its start to a second."""
    ring = ring_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    assert at(ring, Status(7, -1, 6)) == Standing(
        [(0, Marks(7, -1, 6, PUBLISHED))], PUBLISHED, True
    )
    later = stand([(GENERIC, ring)], {(0, 0): Status(7, -1, 6)}, NodeNs(PUBLISHED + 10**9))
    assert later.marks == [(0, Marks(7, -1, 6, PUBLISHED))], "first seen is what counts"


def test_ops_that_leave_no_entry_make_counters_useless() -> None:
    """Gloo's sends count as ops: after one, seven ops are not seven collectives."""
    ring = ring_of([op(0, 1), op(1, 2, op_id=3)], Status(3, -1, 3))
    assert at(ring, Status(7, -1, 7)) == Standing([(0, Marks(2, -1, 2))], DUMPED, False)


def test_a_constant_lead_of_ops_is_taken_off() -> None:
    """The ring shows only ops after an early send: all are one ahead."""
    ring = ring_of([op(0, 1, op_id=2), op(1, 2, op_id=3)], Status(3, -1, 3))
    assert at(ring, Status(5, -1, 5)) == Standing([(0, Marks(4, -1, 4))], PUBLISHED, True)


def test_nccl_counts_seqs_until_it_counts_p2p() -> None:
    """NCCL's counters are seqs, but a send writes its own number into them."""
    recorder = Recorder("dump_nccl_trace_json", {}, 0)
    pure = ring_of([op(0, 4, op_id=9, backend="nccl")], Status(4, -1, 4))
    assert at(pure, Status(5, -1, 4), recorder).marks == [(0, Marks(5, -1, 4, PUBLISHED))]
    send = replace(Dump("", "2.10"), entries=(p2p(1),), status={0: Status(4, -1, 4)})
    dictionary = Dictionary()
    names = Naming(dictionary, Signatures(dictionary), dictionary.attempt(JOB, 0))
    names.replace({"0": KnownGroup("default_pg", (0, 1))})
    pure.apply(send, DUMPED, names)
    assert at(pure, Status(90, -1, 4), recorder).as_of_ns == DUMPED


def p2p(record_id: int) -> Entry:
    return Entry(
        record_id=record_id,
        process_group=("0", "default_pg"),
        profiling_name="nccl:send 0->1",
        collective_seq_id=4,
        pg_id=0,
        op_id=10,
        is_p2p=True,
        time_created_ns=T0,
    )


def test_a_group_that_no_entry_has_named_yet() -> None:
    """A new process group has counters, and the dump is older: absence elsewhere is unproven."""
    ring = ring_of([op(0, 1)], Status(1, -1, 1))
    raw = {(0, 0): Status(1, -1, 1), (0, 5): Status(1, -1, 0)}
    assert stand([(GENERIC, ring)], raw, PUBLISHED).as_of_ns == DUMPED


def test_without_counters_the_dump_is_all() -> None:
    """The tap cannot be read, or the recorder has no counters: as of the dump."""
    ring = ring_of([op(0, 1)], Status(1, -1, 1))
    assert stand([(GENERIC, ring)], None, PUBLISHED) == Standing(
        [(0, Marks(1, -1, 1))], DUMPED, False
    )
    blind = Recorder("fr_trace_json", {"backend": "nccl2"}, None)
    assert stand([(blind, ring)], {}, PUBLISHED).exact is False


def test_several_recorders_are_known_as_far_as_the_worst_of_them() -> None:
    """One ring is translatable, the other is not: the rank is known up to the latter's dump."""
    good = ring_of([op(0, 1)], Status(1, -1, 1))
    bad = ring_of([op(0, 1), op(1, 2, op_id=3)], Status(3, -1, 3))
    rings = [(GENERIC, good), (Recorder("dump_nccl_trace_json", {}, 1), bad)]
    raw = {(0, 0): Status(2, -1, 2), (1, 0): Status(9, -1, 9)}
    standing = stand(rings, raw, PUBLISHED)
    assert (standing.as_of_ns, standing.exact) == (DUMPED, False)


def test_a_dump_newer_than_the_counters_counts() -> None:
    """The GIL is held: the socket answers, and its dump is what is known."""
    ring = ring_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    standing = stand([(GENERIC, ring)], {(0, 0): Status(1, -1, 1)}, NodeNs(DUMPED - 10**9))
    assert standing.marks == [(0, Marks(2, -1, 2))]
    assert standing.as_of_ns == DUMPED
