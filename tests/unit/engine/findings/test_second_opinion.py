"""What NCCL says, as a part of a finding."""

from __future__ import annotations

from dataclasses import replace

from frd.engine.findings.attachments import Evidence
from frd.forms import finding_from_json, finding_json
from frd.model import Activity, Change, Finding, Reason
from tests.world.job import Job

SAID = ("NCCL RAS: rank 3 has launched 31 AllReduce in communicator ab (4 ranks), the others 32",)


def stuck() -> Job:
    """All ranks have joined, and none completes."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.join("dp", range(4), 1)
    job.run(30)
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
    assert known(later, finding.id).second_opinion == SAID
    job.complete("dp", range(4), 1)
    job.run(5)
    assert job.findings()[0].second_opinion == SAID


def known(job: Job, finding_id: str) -> Finding:
    return next(one for one in job.findings() if one.id == finding_id)


def test_words_are_bounded_and_printable() -> None:
    """Whatever an agent sends."""
    job = stuck()
    hostile = ("NCCL RAS: \x1b[2J" + "x" * 1000,) * 100
    (event,) = job.engine.attach(job.only().id, Evidence(second_opinion=hostile))
    assert len(event.finding.second_opinion) == 16
    assert all(one.isprintable() and len(one) <= 300 for one in event.finding.second_opinion)
