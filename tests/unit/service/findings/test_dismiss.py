"""A finding closed by hand: gone for people and alerts, not forgotten by the engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from frd.engine.findings.attachments import Evidence
from frd.model import AlignedNs, Change, FindingState, Kind, RankState
from frd.service.journal.payloads import Dismissal, decode_payload, encode_payload
from frd.service.journal.replay import replay
from frd.store.journal import read
from frd.store.records import Record, RecordKind
from tests.unit.service.journal.test_replay import SECOND, START, incident, recorded
from tests.world.evaluated import Evaluated
from tests.world.job import Job, hanging


def test_the_same_incident_does_not_come_back() -> None:
    """Dismissed while it lasts: no event for a minute, nor at its end; a new hang opens one."""
    job = hanging(7)
    found = job.only()
    (event,) = job.engine.dismiss(found.id, job.now, "closed by hand: a known pause")
    assert event.change is Change.CLOSED
    assert (event.finding.state, event.finding.closed_at) == (FindingState.CLOSED, job.now)
    assert event.finding.close_reason == "closed by hand: a known pause"
    assert job.open() == []
    assert job.run(60) == []
    assert [(f.id, f.state) for f in job.findings()] == [(found.id, FindingState.CLOSED)]
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    assert job.run(10) == []
    job.join("dp", [0, 1, 3], 2)
    job.run(7)
    assert job.only().id != found.id


def test_a_new_owner_knows_what_was_dismissed() -> None:
    """Dismissed while it lasts; another process goes on with the job, and the hang lasts for
    another minute: nothing opens. The job moves on and hangs again: a finding opens."""
    job = hanging(7)
    found = job.only()
    (event,) = job.engine.dismiss(found.id, job.now, "closed by hand: a known pause")
    job.restart_service()
    job.engine.restore([event.finding], job.now)
    job.reconnect(range(4))
    assert job.run(60) == []
    assert job.engine.dismissed == {found.id}
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    assert job.run(10) == []
    assert job.engine.dismissed == frozenset()
    job.join("dp", [0, 1, 3], 2)
    job.run(7)
    assert job.only().id != found.id


def test_only_an_open_finding_can_be_closed() -> None:
    """A second time, or with an unknown id, nothing happens."""
    job = hanging(7)
    found = job.only()
    assert job.engine.dismiss("nothing", job.now, "x") == []
    assert len(job.engine.dismiss(found.id, job.now, "x")) == 1
    assert job.engine.dismiss(found.id, job.now, "y") == []


def test_other_findings_of_the_job_go_on() -> None:
    """Two separate hangs: closing one by hand leaves the other open and changing."""
    job = Job(4).group("a", [0, 1]).group("b", [2, 3])
    job.all_reduce("a", 0).all_reduce("b", 0).run(1)
    job.join("a", [0], 1).join("b", [2], 1)
    job.run(8)
    one, other = job.open()
    job.engine.dismiss(one.id, job.now, "x")
    assert [f.id for f in job.open()] == [other.id]
    job.join("b", [3], 1).complete("b", [2, 3], 1)
    assert [(e.finding.id, e.change) for e in job.run(10)] == [(other.id, Change.CLOSED)]


def test_evidence_that_comes_later_is_kept_with_the_closed_finding() -> None:
    """A finding is closed while its dump is taken: it names the dump nevertheless."""
    job = hanging(7)
    found = job.only()
    job.engine.dismiss(found.id, job.now, "x")
    job.engine.attach(found.id, Evidence(dump="d-1"))
    assert [f.dump for f in job.findings()] == ["d-1"]


def test_a_lost_rank_can_be_dismissed() -> None:
    """A killed rank, closed by hand: its peers' wait for it is the same incident."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(2)
    job.status(2, RankState.EXITED, "signal 9").join("dp", [0, 1, 3], 1)
    job.run(20)
    (found,) = [f for f in job.open() if f.kind is Kind.RANK_LOST]
    job.engine.dismiss(found.id, job.now, "x")
    assert [e.change for e in job.run(30) if e.change is Change.OPENED] == []


async def test_it_is_stored_and_in_the_journal(tmp_path: Path) -> None:
    """The caller gets the closed finding once it is published and stored."""
    bench = Evaluated(tmp_path)
    with contextlib.closing(bench):
        bench.hang()
        await bench.evaluator.evaluate()
        (opened,) = bench.published
        dismissals = (Dismissal(opened.finding.id, "a known pause"), Dismissal("nothing", "x"))
        asking, unknown = (asyncio.create_task(bench.evaluator.dismiss(d)) for d in dismissals)
        await asyncio.sleep(0)
        bench.pass_s(1)
        await bench.evaluator.evaluate()
        closed = await asking
        assert closed is not None
        assert closed.close_reason == "closed by hand: a known pause"
        assert bench.evaluator.state.open_findings() == []
        assert bench.store.get(closed.id) == closed
        assert await unknown is None
    records = list(read(tmp_path / "journal", pytest.fail))
    (record,) = [r for r in records if r.kind is RecordKind.DISMISSED]
    assert decode_payload(record.payload, Dismissal).because == "a known pause"


def test_a_replay_closes_it_too(tmp_path: Path) -> None:
    """Closed by hand in second 7 of 20: the replay has one finding, closed then for that reason."""
    (opened,) = replay(recorded_until(tmp_path / "a", 8), pytest.fail).findings
    at = AlignedNs(START + 7 * SECOND)
    dismissal = encode_payload(Dismissal(opened.id, "known"))
    records = list(incident(20))
    cut = next(n for n, r in enumerate(records) if r.at > at)
    records.insert(cut, Record(RecordKind.DISMISSED, at, 0, dismissal))
    result = replay(read(recorded(tmp_path / "b", records), pytest.fail), pytest.fail)
    (found,) = result.findings
    reason = "closed by hand: known"
    assert (found.id, found.closed_at, found.close_reason) == (opened.id, at, reason)


def test_a_replay_that_does_not_know_the_finding_says_so(tmp_path: Path) -> None:
    """The journal reaches back less far than the finding: a warning names it."""
    strange = Record(
        RecordKind.DISMISSED, AlignedNs(START + SECOND), 0, encode_payload(Dismissal("ab12", "x"))
    )
    warnings: list[str] = []
    replay(read(recorded(tmp_path, [strange]), pytest.fail), warnings.append)
    assert warnings == ["finding ab12 was closed by hand, but is not open in this journal"]


def recorded_until(folder: Path, second: int) -> list[Record]:
    return list(read(recorded(folder, list(incident(second))), pytest.fail))
