"""What suspects wait for and what NCCL says, as a part of their finding."""

from __future__ import annotations

from dataclasses import replace

from frd.engine.findings.attachments import Evidence
from frd.forms import finding_from_json, finding_json
from frd.model import (
    Activity,
    AlignedNs,
    Certainty,
    Change,
    ExitInfo,
    ExitKind,
    Holder,
    RankState,
    Reason,
    WaitKind,
    WaitsFor,
)
from tests.world.job import Job

S = 1_000_000_000
READ = WaitsFor(
    WaitKind.FILE_READ,
    Certainty.SEEN,
    "/data/shard-17.tar",
    mount="/data",
    fs="nfs4 server:/export",
    pid=25037,
    process="pt_data_worker",
    topic="data",
    says="its loader worker (pid 25037) has been in read() of /data/shard-17.tar "
    "(nfs4 server:/export on /data)",
    rest="3 other workers are idle",
)
TEXT = (
    "rank 2 waits for data: its loader worker (pid 25037) has been in read() of "
    "/data/shard-17.tar (nfs4 server:/export on /data) for 41 s; 3 other workers are idle"
)


def hanging(without: int = 1) -> Job:
    """The first three ranks wait for the last ones."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.join("dp", range(4 - without), 1)
    job.run(6)
    return job


def seen(found: WaitsFor, job: Job, since_s: float) -> WaitsFor:
    since = AlignedNs(int(job.now - since_s * S))
    return replace(found, since_at=since, seen_at=job.now)


def shown(job: Job, rank: int) -> WaitsFor:
    (found,) = (s.waits_for for s in job.only().suspects if s.rank == rank)
    assert found is not None
    return found


def test_it_is_a_key_of_the_suspect_and_the_headline() -> None:
    """A loader worker of rank 3 is in a read; as JSON the finding has it, and survives a store."""
    job = hanging()
    read = seen(READ, job, 41)
    (event,) = job.engine.attach(job.only().id, Evidence(3, waits_for=read))
    assert event.change is Change.UPDATED
    text = TEXT.replace("rank 2", "rank 3")
    said = event.finding.headline, event.finding.summary.partition(" s; ")[2]
    assert said == (
        "Rank 3 (node1): its loader worker is stuck in read(/data/shard-17.tar)",
        "rank 3 waits for data for 41 s (pid 25037, nfs4 server:/export on /data); "
        "3 other workers are idle",
    )
    document = finding_json(event.finding)
    (suspect,) = document["suspects"]
    assert suspect["waits_for"] == {
        "kind": "file_read",
        "certainty": "seen",
        "what": "/data/shard-17.tar",
        "mount": "/data",
        "fs": "nfs4 server:/export",
        "pid": 25037,
        "process": "pt_data_worker",
        "since": "2023-11-14T22:12:45.000000Z",
        "seen": "2023-11-14T22:13:26.000000Z",
        "text": text,
        "topic": READ.topic,
        "says": READ.says,
        "rest": READ.rest,
    }
    assert finding_from_json(document) == event.finding


def test_the_passing_of_time_is_no_news() -> None:
    """The same wait, seen again each second: no event, but a new text. Another file is an event."""
    job = hanging()
    finding = job.only().id
    job.engine.attach(finding, Evidence(3, waits_for=seen(READ, job, 3)))
    job.run(2)
    assert job.engine.attach(finding, Evidence(3, waits_for=seen(READ, job, 5))) == []
    assert " for 5.0 s; 3" in shown(job, 3).text
    other = replace(seen(READ, job, 3), what="/data/shard-18.tar")
    assert len(job.engine.attach(finding, Evidence(3, waits_for=other))) == 1


def test_what_was_not_seen_does_not_grow() -> None:
    """The agent does not answer any more: the text keeps the duration that was seen."""
    job = hanging()
    job.engine.attach(job.only().id, Evidence(3, waits_for=seen(READ, job, 3)))
    job.run(30)
    assert " for 3.0 s; 3" in shown(job, 3).text
    assert " for 3.0 s (pid 25037" in job.only().summary


def test_the_surest_of_several_ends_the_summary() -> None:
    """Rank 2 probably waits for a lock, of rank 3 it is seen: both have it, the summary names 3."""
    job = hanging(without=2)
    lock = WaitsFor(
        WaitKind.LOCK_SHARED,
        Certainty.LIKELY,
        holder=Holder(7, 1),
        topic="a lock",
        says="its main thread has been in futex()",
    )
    job.engine.attach(job.only().id, Evidence(2, waits_for=seen(lock, job, 3)))
    assert shown(job, 2).text == (
        "rank 2 probably waits for a lock: its main thread has been in futex() for 3.0 s"
    )
    headline = (
        "Rank 2 (node1): its main thread is probably stuck in futex(), rank 3 (node1) is alive"
    )
    assert job.only().headline.startswith(headline)
    assert job.only().summary.endswith("rank 2 probably waits for a lock for 3.0 s")
    job.engine.attach(job.only().id, Evidence(3, waits_for=seen(READ, job, 3)))
    assert "rank 3 waits for data for 3.0 s (" in job.only().summary


def test_a_wait_that_is_over() -> None:
    """The rank no longer waits for anything that is known: nothing is claimed in words."""
    job = hanging()
    finding = job.only().id
    job.engine.attach(finding, Evidence(3, waits_for=seen(READ, job, 3)))
    nothing = WaitsFor(WaitKind.UNKNOWN, Certainty.UNKNOWN, seen_at=job.now)
    (event,) = job.engine.attach(finding, Evidence(3, waits_for=nothing))
    assert shown(job, 3).text == ""
    assert event.finding.headline == "Rank 3 (node1) is alive, but has not joined"


STACK = Activity(("train.py:8 in wait_for_file",), doing="waits for a file")


def test_what_arrives_after_the_end_changes_nothing() -> None:
    """A rank is interrupted: a stack, a wait and words that were asked for before, and are taken
    while the others end, replace nothing and make no witness; the dump is taken."""
    job = hanging()
    finding = job.only().id
    job.engine.attach(finding, Evidence(3, STACK, waits_for=seen(READ, job, 3)))
    job.status(0, RankState.EXITED, how=ExitInfo(ExitKind.INTERRUPT))
    job.run(2)
    before = job.only()
    assert before.ended_by
    ending = Activity(("runner.py:90 in __exit__",), doing="in destroy_process_group")
    later = replace(READ, kind=WaitKind.LOCK_INNER, what="another thread")
    for rank in range(4):
        job.engine.attach(finding, Evidence(rank, ending, waits_for=seen(later, job, 1)))
    (event,) = job.engine.attach(finding, Evidence(dump="d-1"))
    assert event.finding.suspects == before.suspects
    assert (event.finding.witness, event.finding.dump) == (None, "d-1")
    job.run(30)
    assert job.only().suspects == before.suspects


def test_a_stack_that_comes_when_the_wait_is_over() -> None:
    """The rank has come, and the finding is closed: its stack is of what it did afterwards."""
    job = hanging()
    finding = job.only().id
    job.engine.attach(finding, Evidence(3, STACK))
    job.join("dp", [3], 1).complete("dp", range(4), 1)
    job.run(10)
    job.engine.attach(finding, Evidence(3, Activity(("train.py:20 in next_step",))))
    (closed,) = job.findings()
    assert closed.suspects[0].stack == STACK.stack


def test_an_answer_without_a_stack_replaces_none() -> None:
    """The second answer says only that the process is busy, or that its program has ended."""
    job = hanging()
    finding = job.only().id
    job.engine.attach(finding, Evidence(3, STACK))
    job.engine.attach(finding, Evidence(3, Activity(doing="the program has ended")))
    assert (job.only().suspects[0].stack, job.only().suspects[0].doing) == (
        STACK.stack,
        STACK.doing,
    )


# -- what NCCL says --------------------------------------------------------------------------------


SAID = ("NCCL RAS: rank 3 has launched 31 AllReduce in communicator ab (4 ranks), the others 32",)


def stuck() -> Job:
    """All ranks have joined, and none completes."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.join("dp", range(4), 1)
    job.run(12)
    return job


def test_it_is_a_key_of_the_finding_and_changes_nothing_else() -> None:
    """As JSON the finding has it, it survives a store, and the same words again are no event."""
    job = stuck()
    before = job.only()
    assert "second_opinion" not in finding_json(before)
    (event,) = job.engine.attach(before.id, Evidence(second_opinion=SAID))
    assert (event.change, event.finding) == (Change.UPDATED, replace(before, second_opinion=SAID))
    document = finding_json(event.finding)
    assert document["second_opinion"] == list(SAID)
    assert document["summary"] == before.summary
    assert finding_from_json(document) == event.finding
    assert job.engine.attach(before.id, Evidence(second_opinion=SAID)) == []


def test_it_stays() -> None:
    """Other evidence, later looks, another owner of the finding and its end leave it there."""
    job = stuck()
    job.engine.attach(job.only().id, Evidence(second_opinion=SAID))
    job.engine.attach(job.only().id, Evidence(0, Activity(("train.py:9 in step",))))
    job.run(5)
    finding = job.only()
    assert (finding.second_opinion, finding.reason) == (SAID, Reason.NETWORK_OR_DEVICE)
    assert finding.witness is not None
    later = stuck()
    later.engine.restore([finding], later.now)
    later.run(1)
    assert SAID in [one.second_opinion for one in later.findings() if one.id == finding.id]
    job.complete("dp", range(4), 1)
    job.run(5)
    assert job.findings()[0].second_opinion == SAID


def test_words_are_bounded_and_printable() -> None:
    """Whatever an agent sends."""
    job = stuck()
    hostile = ("NCCL RAS: \x1b[2J" + "x" * 1000,) * 100
    (event,) = job.engine.attach(job.only().id, Evidence(second_opinion=hostile))
    assert len(event.finding.second_opinion) == 16
    assert all(one.isprintable() and len(one) <= 300 for one in event.finding.second_opinion)
