"""Every rise of a recording: the first rank, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.model import Confidence
from frd.offline.memory.analysis import RecordedRise
from frd.offline.phases.answer import Certainty
from tests.unit.offline.test_recordings import scope
from tests.world.memory import EPOCH, GIB, MIB, Curve, S, Sampler, level, noise, plus, ramp, step
from tests.world.recordings import CALM, FLAT, NONE, RECORDINGS, one_of, recording
from tests.world.telemetry_files import event, of_job, write


def suspects(rise: RecordedRise) -> set[int]:
    return {one.rank for one in rise.suspects}


def files_of(folder: Path, *curves: Curve, until: float, **samplers: Any) -> list[Path]:
    """What trackers of the ranks wrote."""
    job = recording(*curves, until=until, answer=NONE, **samplers).job
    return of_job(job, folder / "job")


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_answered(tmp_path: Path, name: str) -> None:
    """The rank that rose first is named, no other, and with high confidence only where it may."""
    job, truth = RECORDINGS[name].job, RECORDINGS[name].answer
    rises = frd.load_memory(of_job(job, tmp_path / "job")).rises
    assert bool(rises) == truth.rises
    first = next((rise for rise in rises if rise.suspects), None)
    assert (suspects(first) if first else set()) == set(truth.first)
    is_high = first is not None and first.suspects[0].confidence is Confidence.HIGH
    assert is_high == truth.is_high
    assert (first is not None and first.fell_back) == truth.fell_back
    starts = first is not None and rises[0].common_cause
    assert starts == truth.starts
    if truth.common:
        assert rises[0].common_cause
    if truth.is_open:
        assert not rises[0].common_cause


@pytest.mark.parametrize(
    "name",
    [
        "a start-up ramp, and a spike at 5 s",
        "ranks start one after the other, and a spike at 5 s",
        "all ranks together, then one alone",
    ],
)
def test_a_jump_after_a_rise_that_stopped_does_not_alarm(tmp_path: Path, name: str) -> None:
    """It has no pace at which memory would run out."""
    analysis = frd.load_memory(of_job(RECORDINGS[name].job, tmp_path / "job"))
    assert len(analysis.rises) > 1
    assert not analysis.fault


@pytest.mark.parametrize("slope", [0.03, 9])
def test_an_onset_is_within_its_interval(tmp_path: Path, slope: float) -> None:
    """A ramp begins between two samples: the interval has its beginning, and is narrow."""
    curves = one_of(FLAT, r1=ramp(10.03, slope))
    (rise,) = frd.load_memory(files_of(tmp_path, *curves, until=20)).rises
    earliest, latest = ((at - EPOCH) / S for at in rise.onset)
    assert earliest <= 10.03 <= latest < earliest + 1


def test_an_onset_below_a_level_that_was_left(tmp_path: Path) -> None:
    """All ranks evaluate until 4.5 s, then rank 1 climbs through that level: it began below it."""
    evaluates = [plus(CALM, step(2.5, 1.2, end=4.5))] * 4
    curves = one_of(evaluates, r1=ramp(4.9, 1))
    rises = frd.load_memory(files_of(tmp_path, *curves, until=10)).rises
    (rise,) = [one for one in rises if one.suspects]
    earliest, latest = ((at - EPOCH) / S for at in rise.onset)
    assert earliest <= 4.9 <= latest


def test_a_late_starter_that_jumps(tmp_path: Path) -> None:
    """All ranks fill a cache, rank 0 is sampled half a second later, and jumps before the others
    have ended: only its start belongs to the start of the job."""
    fill = [plus(CALM, ramp(0, 0.3, 3))] * 4
    curves = one_of(fill, r0=step(8, 8))
    files = files_of(tmp_path, *curves, until=13, r0=Sampler(start=1.5))
    rises = frd.load_memory(files).rises
    assert [(one.common_cause, suspects(one)) for one in rises] == [(True, set()), (False, {0})]


def test_a_rank_without_samples_may_have_risen_first(tmp_path: Path) -> None:
    """Rank 0 has a single sample, and rank 1 rises: the confidence is not high."""
    events = [event(0, rank=0, device_used_bytes=GIB)]
    events += [
        event(at / 10, rank=1, device_id=1, device_used_bytes=(1 + 4 * (at >= 45)) * GIB)
        for at in range(80)
    ]
    (rise,) = frd.load_memory([write(tmp_path / "a.jsonl", events)]).rises
    assert [one.confidence for one in rise.suspects] == [Confidence.MEDIUM]
    assert rise.unknown == (0,)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("rise", [step, lambda at, gib: ramp(at, gib / 5, gib)])
@pytest.mark.parametrize("mib", [0, 8])
def test_a_rise_that_is_far_larger_is_not_common(
    tmp_path: Path, ranks: int, rise: Callable[[float, float], Curve], mib: float
) -> None:
    """Rank 1 gains 40 GiB when all others gain 1 GiB: it is a suspect, and they rise together. Of
    two ranks whose noise hides when the slow one began, both may be first."""
    curves = [
        plus(level(5), noise(mib, rank), rise(10, 40 if rank == 1 else 1)) for rank in range(ranks)
    ]
    rises = frd.load_memory(files_of(tmp_path, *curves, until=20)).rises
    (first,) = [one for one in rises if one.suspects]
    assert [(one.rank, one.confidence) for one in first.suspects] == [(1, Confidence.MEDIUM)]
    (others,) = [one for one in rises if not one.suspects]
    assert others.common_cause
    assert set(others.ranks) == set(range(ranks)) - {1}
    assert ("far less than that of rank 1" in others.text) == (ranks == 2)


def test_rises_that_differ_a_little_are_common(tmp_path: Path) -> None:
    """Together, one of four gains 4 GiB and the others 1 GiB, as a first rank of a pipeline may."""
    curves = [plus(CALM, step(10, 1 + 3 * (rank == 0))) for rank in range(4)]
    (rise,) = frd.load_memory(files_of(tmp_path, *curves, until=20)).rises
    assert rise.common_cause


@pytest.mark.parametrize("slope", [0.02, 0.1, 1])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_steady_rise_before_jumps(tmp_path: Path, ranks: int, slope: float) -> None:
    """Rank 1 begins to rise steadily, and three seconds later all others jump by 4 GiB."""
    curves = [plus(CALM, ramp(10, slope) if rank == 1 else step(13, 4)) for rank in range(ranks)]
    rises = frd.load_memory(files_of(tmp_path, *curves, until=20)).rises
    assert suspects(rises[0]) == {1}


@pytest.mark.parametrize("samples", [3, 4, 6])
def test_a_recording_that_ends_early(tmp_path: Path, samples: int) -> None:
    """Rank 2 begins to rise at the second sample, and the others at the third."""
    events = [
        event(
            at / 10,
            rank=rank,
            device_id=rank,
            device_used_bytes=(20 + max(0, at - (rank != 2))) * GIB,
        )
        for rank in range(4)
        for at in range(samples)
    ]
    analysis = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    first, others = sorted(analysis.rises, key=lambda one: not one.suspects)
    assert [(one.rank, one.confidence) for one in first.suspects] == [(2, Confidence.LOW)]
    assert (others.ranks, others.suspects, others.common_cause) == ((0, 1, 3), (), False)
    assert "rose first, as far as the recording shows" in analysis.summary


def test_figures_of_a_rise(tmp_path: Path) -> None:
    """Half a GiB in one step, a second before the peer: bytes, times, the lead and the words."""
    rec = RECORDINGS["half a GiB, a second before its peer"]
    analysis = frd.load_memory(of_job(rec.job, tmp_path / "job"))
    first, second = analysis.rises
    assert (first.bytes, first.peak_bytes) == (GIB // 2, 20 * GIB + GIB // 2)
    assert (first.next_rank, first.alarming, first.fell_back) == (1, False, False)
    assert 0.8e9 < first.lead_ns < 1e9
    assert first.took_s < 0.11
    assert suspects(second) == {1}
    assert analysis.summary == (
        "no memory trouble; memory of rank 0 rose first: +512.0 MiB in 0.1 s at 08:00:02; "
        "0.9 s before rank 1"
    )
    assert not analysis.fault


def test_the_least_rise(tmp_path: Path) -> None:
    """A step of 200 MiB is a rise by default, and not where more is asked for."""
    files = files_of(tmp_path, *one_of(FLAT, r2=step(5, 0.2)), until=10)
    assert [suspects(rise) for rise in frd.load_memory(files).rises] == [{2}]
    none = frd.load_memory(files, min_rise_bytes=300 * MIB)
    assert none.summary == "no memory trouble; no rank's memory rose by more than 300.0 MiB"


def test_a_warm_up_that_is_said(tmp_path: Path) -> None:
    """A step of rank 0 at 3 s, another of rank 2 at 12 s: with a warm-up of 5 s only the second."""
    curves = one_of(FLAT, r0=step(3, 2), r2=step(12, 2))
    files = files_of(tmp_path, *curves, until=18)
    assert [suspects(rise) for rise in frd.load_memory(files).rises] == [{0}, {2}]
    assert [suspects(rise) for rise in frd.load_memory(files, warmup_s=5).rises] == [{2}]


def test_an_alarming_rise_is_a_finding(tmp_path: Path) -> None:
    """A climb that will exhaust the device alarms; the small step before it does not."""
    curves = one_of(FLAT, r0=step(8, 0.3), r3=ramp(15, 4))
    analysis = frd.load_memory(files_of(tmp_path, *curves, until=28))
    assert [(suspects(rise), rise.alarming) for rise in analysis.rises] == [
        ({0}, False),
        ({3}, True),
    ]
    (finding,) = analysis.findings
    assert finding.suspects[0].rank == 3


def test_phases_of_rises(tmp_path: Path) -> None:
    """Rank 1 rises within eval: the rise says so, and the table has the bytes of that phase."""
    files = files_of(tmp_path, *one_of(FLAT, r1=ramp(5.2, 1, 2)), until=10)
    marks = [
        scope("enter", 0.0, path="train", rank=1, device_id=1),
        scope("exit", 5.0, path="train", rank=1, device_id=1),
        scope("enter", 5.05, path="eval", rank=1, device_id=1),
    ]
    analysis = frd.load_memory([*files, write(tmp_path / "phases.jsonl", marks)])
    (rise,) = analysis.rises
    assert (rise.phase.certainty, rise.phase.path) == (Certainty.UNIQUE, ("eval",))
    assert "in phase eval" in rise.text
    gain = analysis.phase_gains[0]
    assert (gain.path, gain.bytes_gained, gain.most_rank) == (("eval",), 2 * GIB, 1)


def test_json_of_a_rise(tmp_path: Path) -> None:
    """The keys that are promised, and times as text."""
    files = files_of(tmp_path, *one_of(FLAT, r2=step(5, 1)), until=9)
    (rise,) = frd.load_memory(files).to_json()["rises"]
    assert rise["suspects"] == [{"rank": 2, "confidence": "high"}]
    assert rise["onset"]["earliest"].startswith("2027-01-15T08:00:04.9")
    assert rise["onset"]["latest"].startswith("2027-01-15T08:00:05.0")
    assert (rise["bytes"], rise["peak_bytes"], rise["fell_back"]) == (GIB, 21 * GIB, False)
    assert (rise["alarming"], rise["common_cause"]) == (False, False)
    assert rise["phase"]["certainty"] == "none"
    assert rise["text"].startswith("memory of rank 2 rose first: +1.0 GiB")


def test_a_clock_that_runs_back(tmp_path: Path) -> None:
    """Rank 0's clock is set back by 3 s while its memory is higher: sorted, its samples alternate.
    The file and the line are a warning, and nothing is certain of that job."""
    events = [event(at / 10, rank=1, pid=2) for at in range(200)]
    for at in range(200):
        when = at / 10 - (3 if at >= 120 else 0)
        events.append(event(when, device_used_bytes=(20 + 30 * (at >= 110)) * GIB))
    analysis = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    warning = f"{tmp_path / 'a.jsonl'}: line 321: the clock runs back by 2.9 s: no onset there is "
    assert any(note.startswith(warning) for note in analysis.warnings)
    sure = [one.confidence for rise in analysis.rises for one in rise.suspects]
    sure += [one.confidence for finding in analysis.findings for one in finding.suspects]
    assert sure
    assert Confidence.HIGH not in sure
