"""Waits that no recorder shows: into the engine, into the journal, and out of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from frd.model import AlignedNs, AttemptKey, Confidence, NodeNs, UnrecordedWait, WaitSource
from frd.service.findings.unrecorded import Unrecorded
from frd.service.journal.payloads import Waited, decode_payload, encode_payload
from frd.service.journal.replay import replay
from frd.store.journal import read
from frd.store.records import Record, RecordKind
from tests.unit.service.journal.test_replay import SECOND, START, incident, recorded
from tests.world.evaluated import Evaluated


def wait(rank: int, since: int, as_of: int) -> UnrecordedWait:
    where = "train.py:8 in exchange"
    return UnrecordedWait(rank, WaitSource.STACK, "recv", NodeNs(since), NodeNs(as_of), (), where)


def test_a_wait_goes_to_the_engine_and_into_the_journal(tmp_path: Path) -> None:
    """One of a known rank; those of an unknown rank or attempt are left out."""
    bench = Evaluated(tmp_path)
    job = bench.job
    with contextlib.closing(bench):
        unrecorded = Unrecorded(job.engine, bench.recorder, lambda: job.now)
        seen = wait(2, job.now - SECOND, job.now)
        unrecorded.observe_aligned(job.key, seen)
        unrecorded.observe_aligned(job.key, wait(9, job.now, job.now))
        unrecorded.observe(AttemptKey("other", 0), seen)
        assert job.attempt.snapshot(job.now).unrecorded == {2: (seen,)}
    records = list(read(tmp_path / "journal", pytest.fail))
    (record,) = [r for r in records if r.kind is RecordKind.WAITED]
    waited = decode_payload(record.payload, Waited)
    assert (waited.key, waited.wait.op, waited.wait.rank) == (job.key, "recv", 2)


def test_a_replay_learns_of_it(tmp_path: Path) -> None:
    """Rank 2 is in recv while the others wait for it: the replay says so, and is less sure."""
    at = START + 3 * SECOND
    seen = encode_payload(Waited("train", 0, wait(2, START + SECOND, at)))
    records = list(incident())
    cut = next(n for n, r in enumerate(records) if r.at >= at)
    records.insert(cut, Record(RecordKind.WAITED, AlignedNs(at), 0, seen))
    result = replay(read(recorded(tmp_path, records), pytest.fail), pytest.fail)
    [suspect] = result.findings[0].suspects
    assert suspect.confidence is Confidence.MEDIUM
    assert "waits in recv (train.py:8 in exchange)" in suspect.evidence
