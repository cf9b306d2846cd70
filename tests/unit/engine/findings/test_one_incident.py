"""Findings of scripted jobs: one incident, one finding, one id."""

from __future__ import annotations

import pytest

from frd.engine.findings.attachments import Evidence
from frd.model import (
    Activity,
    Change,
    Confidence,
    Kind,
    RankState,
    Reason,
    Signature,
)
from tests.world.job import Job, changes, hanging
from tests.world.scene import named

OPENED, UPDATED, CLOSED = Change.OPENED, Change.UPDATED, Change.CLOSED
SYNCHRONIZES = "torch/distributed/distributed_c10d.py:4801 in monitored_barrier"
ENDED = "the program has ended, a non-daemon thread keeps it alive"


def test_a_stall_opens_within_two_seconds_of_the_threshold_and_closes_when_it_is_over() -> None:
    """Rank 2 comes 9 s late; the finding opens once, names it, and closes with its id."""
    job = hanging()
    assert job.run(4.5) == []
    assert changes(job.run(2)) == [OPENED]
    finding = job.only()
    assert (finding.kind, finding.suspects[0].rank) == (Kind.STALL, 2)
    assert finding.suspects[0].reason is Reason.CPU_STUCK
    assert finding.victims == (0, 1, 3)
    assert finding.groups_held_up == ("dp",)
    assert finding.collective is not None
    assert finding.collective.missing_ranks == (2,)
    assert finding.summary == (
        "Rank 2 (node1) is alive, but has not joined; holds up 3 ranks in all_reduce #1 of dp for "
        f"{finding.collective.waited_s:.1f} s"
    )
    job.run(3)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    (event,) = job.run(3)
    assert (event.change, event.finding.id) == (CLOSED, finding.id)
    assert event.finding.close_reason == "the job moved on"
    assert event.finding.closed_at is not None
    assert job.open() == []
    assert [f.id for f in job.findings()] == [finding.id]


def test_one_incident_over_two_layers_of_groups_is_one_finding() -> None:
    """Rank 3 is missing in tp; 2 therefore in dp; more groups stall later under the same id."""
    job = Job(4).group("tp", [2, 3]).group("dp", [0, 1, 2]).group("late", [0, 1])
    job.all_reduce("tp", 0).all_reduce("dp", 0).all_reduce("late", 0)
    job.run(1)
    job.join("tp", [2], 1).join("dp", [0], 1)
    job.run(4)
    job.join("late", [1], 1)
    job.run(8)
    finding = job.only()
    assert changes(job.events)[0] is OPENED
    assert OPENED not in changes(job.events)[1:]
    assert finding.collective is not None
    assert (finding.collective.group, finding.collective.seq) == ("tp", 1)
    assert finding.groups_held_up == ("tp", "dp", "late")
    assert set(named(finding)) == {3}
    assert finding.victims == (0, 1, 2)


def test_findings_that_turn_out_to_be_one_incident_become_one() -> None:
    """a waits for 1 and b for 2; then 1 and 2 turn out to wait for 3 themselves."""
    job = Job(5).group("a", [0, 1]).group("b", [2, 4]).group("c", [1, 2, 3])
    job.join("a", [0], 0).join("b", [4], 0)
    job.run(6)
    assert len(job.open()) == 2
    first = min(job.open(), key=lambda finding: (finding.opened_at, finding.id))
    job.join("c", [1, 2], 0)
    job.run(12)
    finding = job.only()
    assert set(named(finding)) == {3}
    closed = {event.finding.id: event.finding for event in job.events if event.change is CLOSED}
    assert {tuple(s.rank for s in f.suspects) for f in closed.values()} == {(1,), (2,)}
    assert closed[first.id].close_reason == (
        f"its suspects joined; what waits now is in finding {finding.id}"
    )


def test_a_suspect_is_not_replaced_by_one_look() -> None:
    """The late rank comes; for half a second its peers completed and one has not yet."""
    job = hanging(8)
    job.join("dp", [2], 1).complete("dp", [0, 1, 2], 1)
    job.run(0.5)
    job.complete("dp", [3], 1)
    job.run(3)
    assert changes(job.events) == [OPENED, CLOSED]
    assert set(named(job.events[-1].finding)) == {2}


def test_a_first_suspect_is_named_immediately() -> None:
    """All joined, so it seems to be the network; then rank 2 is reported as stopped since."""
    job = hanging().join("dp", [2], 1)
    job.run(1)
    stopped_at = job.now
    job.run(7)
    before = job.only()
    assert (before.reason, before.suspects) == (Reason.NETWORK_OR_DEVICE, ())
    job.status(2, RankState.SILENT, "process 102 is stopped (state T)", at=stopped_at)
    (event,) = job.run(0.5)
    assert (event.change, event.finding.id) == (UPDATED, before.id)
    assert event.finding.reason is None
    assert named(event.finding) == {2: Reason.UNREACHABLE}


def test_an_exit_ends_a_silence() -> None:
    """The agent of rank 2 is away; its successor finds that the rank is gone, and does not know
    what it did meanwhile."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.reporting.remove(2)
    job.attempt.connection([2], False)
    job.join("dp", [0, 1, 3], 1).run(8)
    finding = job.only()
    assert named(finding) == {2: Reason.UNREACHABLE}
    job.attempt.connection([2], True)
    job.status(2, RankState.EXITED, "gone: no exit record")
    job.run(6)
    assert (job.only().id, named(job.only())) == (finding.id, {2: Reason.EXITED})
    assert job.only().suspects[0].confidence is Confidence.MEDIUM


def test_a_stack_that_comes_later_is_in_the_same_finding() -> None:
    """The agent's stack arrives: evidence and headline name the line, and both survive looks."""
    job = hanging(6)
    frames = ("/srv/app/train.py:88 in load_batch", "/srv/app/train.py:120 in main")
    (event,) = job.engine.attach(job.only().id, Evidence(2, Activity(frames)))
    assert event.change is UPDATED
    job.run(5)
    finding = job.only()
    (suspect,) = finding.suspects
    assert suspect.stack == frames
    assert suspect.evidence == ("last joined seq 0 of dp; main thread at train.py:88 in load_batch")
    assert finding.headline == "Rank 2 (node1) is at train.py:88 load_batch"
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    (closed,) = job.run(3)
    assert closed.finding.suspects == finding.suspects


@pytest.mark.parametrize(
    ("activity", "confidence"),
    [
        (Activity(("train.py:88 in load_batch",)), Confidence.HIGH),
        (Activity(("t.py:8 in step",), "torch/cuda/streams.py:9 in wait"), Confidence.HIGH),
        (Activity(("t.py:8 in step",), "torch/futures/__init__.py:9 in wait"), Confidence.MEDIUM),
        (Activity(("train.py:88 in step",), SYNCHRONIZES), Confidence.MEDIUM),
        (Activity(("train.py:9 in <module>",), doing=ENDED), Confidence.MEDIUM),
        (Activity(note="no py-spy on this node"), Confidence.MEDIUM),
    ],
)
def test_a_stack_shows_that_the_many_are_late_and_not_the_one(
    activity: Activity, confidence: Confidence
) -> None:
    """Only rank 0 of 4 is in the op: it may have made an extra call. The stack of rank 2 shows its
    place, unless that is a call of torch.distributed, or the end of the program."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0).join("dp", [0], 1)
    job.run(6)
    finding = job.only()
    assert {s.confidence for s in finding.suspects} == {Confidence.MEDIUM}
    job.engine.attach(finding.id, Evidence(2, activity))
    job.run(3)
    of = {s.rank: s for s in job.only().suspects}
    assert (job.only().id, set(of)) == (finding.id, {1, 2, 3})
    assert (of[1].confidence, of[2].confidence) == (Confidence.MEDIUM, confidence)
    words = "only rank 0 of 4 is in it, perhaps by a call that the others do not make"
    assert words in of[1].evidence
    assert (words in of[2].evidence) == (confidence is Confidence.MEDIUM)


def test_a_stack_of_before_a_ranks_last_move_shows_nothing() -> None:
    """Rank 2 came out of an op of another group after its stack was taken."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0).join("dp", [0], 1)
    job.group("pp", [2, 3]).run(6)
    job.engine.attach(job.only().id, Evidence(2, Activity(("train.py:88 in load_batch",))))
    job.all_reduce("pp", 0).run(8)
    assert {s.rank: s.confidence for s in job.only().suspects}[2] is Confidence.MEDIUM


def test_a_reduce_scatter_of_gloo_is_no_mismatch() -> None:
    """Gloo records it as all_reduce with a smaller output; rank 3 is late for one of them."""
    op = Signature("gloo", "all_reduce", ((8,),), ((2,),), ("Float",), ("Float",))
    job = Job(4).group("dp", range(4))
    job.join("dp", range(4), 0, op).complete("dp", range(4), 0, op).join("dp", range(3), 1, op)
    job.run(6)
    assert (job.only().kind, named(job.only())) == (Kind.STALL, {3: Reason.CPU_STUCK})


def test_the_first_waiting_stack_is_the_witness() -> None:
    """Stacks of two ranks that wait arrive out of order; the finding has the lowest rank's line."""
    job = hanging(6)
    finding = job.only()
    assert finding.witness is None
    job.engine.attach(finding.id, Evidence(3, Activity(("train.py:95 in step",))))
    job.engine.attach(finding.id, Evidence(1, Activity(("train.py:90 in step",))))
    job.engine.attach(finding.id, Evidence(2, Activity(("train.py:88 in load_batch",))))
    job.run(3)
    witness = job.only().witness
    assert witness is not None
    assert (witness.rank, witness.stack) == (1, ("train.py:90 in step",))


def test_a_dump_is_named_even_after_the_finding_closed() -> None:
    """The dump took long; the job had moved on by then."""
    job = hanging(6)
    finding = job.only()
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(3)
    (event,) = job.engine.attach(finding.id, Evidence(dump="20261120-1"))
    assert event.finding.dump == "20261120-1"
    assert job.findings()[0].dump == "20261120-1"
    assert job.engine.attach("0123456789abcdef", Evidence(dump="x")) == []


def test_texts_survive_hostile_names() -> None:
    """A group whose name holds control characters, a right-to-left override and a surrogate."""
    name = "dp\x1b[31m\n\u202eevil\udcff"
    job = Job(2).group(name, [0, 1]).join(name, [0], 0, op="all\x00reduce")
    job.run(6)
    finding = job.only()
    activity = Activity(("tr\udc80ain.py:8 in f\x07",), note="odd\x1b")
    job.engine.attach(finding.id, Evidence(1, activity))
    finding = job.only()
    texts = [
        finding.headline,
        finding.effect,
        finding.summary,
        *finding.groups_held_up,
        finding.suspects[0].evidence,
    ]
    assert finding.collective is not None
    texts += [finding.collective.group, finding.collective.op, *finding.suspects[0].stack]
    assert all(text.encode() and text.isprintable() for text in texts)


def test_a_mismatch_without_all_members_opens_after_a_grace_time() -> None:
    """Ranks 0 and 1 do not agree and 2 has not joined: it opens later, but before a stall."""
    job = Job(3).group("dp", range(3)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0], 1).join("dp", [1], 1, op="broadcast")
    assert job.run(0.5) == []
    job.run(2)
    assert job.only().kind is Kind.MISMATCH
    assert {s.rank for s in job.only().suspects} == {0, 1}


def test_a_mismatch_that_ends_in_exceptions_stays_the_mismatch() -> None:
    """The ranks do not agree, then all of them raise and exit: one finding, the mismatch."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).join("dp", [2], 1, op="broadcast")
    for rank in range(4):
        job.status(rank, RankState.EXITED, "RuntimeError: op.preamble.length <= op.nbytes")
    job.run(8)
    opened = [event.finding for event in job.events if event.change is OPENED]
    assert [finding.kind for finding in opened] == [Kind.MISMATCH]
    assert named(job.findings()[0]) == {2: Reason.MISMATCH}
    assert job.findings()[0].close_reason == "the attempt ended"
