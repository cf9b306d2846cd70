"""`frd analyze --memory`: the live verdicts from files, and what is said of the files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.cli import FINDINGS_PRESENT
from frd.errors import ConfigError, TelemetryError
from frd.model import Confidence, Finding, FindingState, Kind, SeriesKind
from frd.offline.memory.analysis import MemoryAnalysis
from tests.unit.cli.shell import Shell
from tests.unit.engine.memory.test_first_rise import SCENES
from tests.unit.offline.test_recordings import scope
from tests.world.dump_files import T0, as_torch, document, entry
from tests.world.io_traces import Call, Writer, write_trace
from tests.world.memory import EPOCH, GIB, Curve, Job, Row, S, level, plus, ramp, step
from tests.world.telemetry_files import event, of_job, write

CALM = level(40)
CLIMB = plus(CALM, ramp(30, 2))
LATER = plus(CALM, ramp(33, 9))


def job(*curves: Any, until: float = 45, **of_row: Any) -> Job:
    return Job([Row(rank, curve, **of_row) for rank, curve in enumerate(curves)], until)


def analyzed(tmp_path: Path, of: Job, **options: Any) -> MemoryAnalysis:
    return frd.load_memory(of_job(of, tmp_path / "job"), **options)


def suspects(finding: Finding) -> list[int]:
    return [suspect.rank for suspect in finding.suspects]


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_judged_as_it_is_live(tmp_path: Path, name: str) -> None:
    """What the engine says of a scene while it happens, it says of files of the same samples."""
    scene, truths = SCENES[name]
    found = analyzed(tmp_path, scene)
    findings = sorted(found.findings, key=lambda finding: finding.opened_at)
    for finding, truth in zip(findings, truths, strict=True):
        named = finding.victims if truth.common else suspects(finding)
        assert tuple(sorted(named)) == truth.first
        assert truth.common or finding.victims == truth.victims
        assert {s.confidence for s in finding.suspects} <= {truth.confidence}
        assert finding.unknown == truth.unknown
        assert finding.kind is Kind.MEMORY_SPIKE


def test_clocks_of_hosts_are_not_trusted_beyond_what_is_said(tmp_path: Path) -> None:
    """Two hosts, 1.5 s between two onsets: a tie, unless the clocks are known to be better."""
    files = of_job(job(CLIMB, plus(CALM, ramp(31.5, 2)), CALM, CALM), tmp_path / "job")
    write(files[1], files[1].read_bytes().replace(b'"host": "n0"', b'"host": "n1"'))
    loose, exact = frd.load_memory(files), frd.load_memory(files, clock_uncertainty_s=0.05)
    assert sorted(suspects(loose.findings[0])) == [0, 1]
    assert {s.confidence for s in loose.findings[0].suspects} == {Confidence.MEDIUM}
    assert "2 hosts, never compared" in loose.clock_source
    assert "±1.0 s" in loose.clock_source
    assert suspects(exact.findings[0]) == [0]


def test_two_processes_on_one_rank(tmp_path: Path) -> None:
    """Both sample at the same time, and the second one's memory rises: a warning, and the rank."""
    rows = [
        Row(0, CALM),
        Row(1, level(20), source="train"),
        Row(1, plus(level(10), ramp(30, 2)), source="other"),
    ]
    found = analyzed(tmp_path, Job(rows, 45))
    assert suspects(found.findings[0]) == [1]
    assert found.jobs[0].ranks[1].processes == ("process 4711", "process 4712")
    assert any("rank 1: several processes together" in note for note in found.warnings)


@pytest.mark.parametrize(
    ("kind", "what", "words"),
    [
        (SeriesKind.HOST_USED, "host", "Rank 1 (n0): its host memory rose first"),
        (SeriesKind.TORCH_ALLOCATED, "allocator", "memory in torch's allocator rose first"),
    ],
)
def test_not_the_memory_of_a_device(
    tmp_path: Path, kind: SeriesKind, what: str, words: str
) -> None:
    """A tracker without a GPU samples the process on the host; version 4 of events may leave the
    device open, and what torch holds is enough."""
    found = analyzed(tmp_path, job(CALM, CLIMB, kind=kind))
    assert words in found.summary
    assert suspects(found.findings[0]) == [1]
    assert found.jobs[0].ranks[1].what == what


def test_a_process_that_takes_over_has_no_past(tmp_path: Path) -> None:
    """After a restart the memory of another process fills from nothing: that is no rise."""
    events = [
        event(at / 10, pid=1 + (at >= 1000), device_used_bytes=min(at % 1000, 300) * GIB // 10)
        for at in range(2000)
    ]
    found = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    assert not found.findings
    assert all(rise.onset[1] < EPOCH + 100 * S for rise in found.rises)
    assert any("another process took over" in note for note in found.warnings)


def test_a_failed_allocation(tmp_path: Path) -> None:
    """The events end with one that says so, of a rank whose memory had risen."""
    files = of_job(job(CALM, plus(CALM, ramp(30, 3)), until=44), tmp_path / "job")
    oom = event(44.5, event_type="oom", rank=1, device_id=1)
    write(files[1], files[1].read_bytes() + json.dumps(oom).encode() + b"\n")
    found = frd.load_memory(files)
    assert not found.warnings
    ran_out, foreseen = found.findings
    assert (ran_out.kind, suspects(ran_out)) == (Kind.OOM, [1])
    assert (foreseen.kind, suspects(foreseen)) == (Kind.MEMORY_SPIKE, [1])
    assert foreseen.state is FindingState.CLOSED


# -- ranks and jobs --------------------------------------------------------------------------------


def test_missing_ranks_are_listed(tmp_path: Path) -> None:
    """A world of eight, of which three sent files."""
    events = [event(at / 10, rank=rank, world_size=8) for at in range(50) for rank in (0, 3, 7)]
    found = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    assert found.jobs[0].missing_ranks == (1, 2, 4, 5, 6)
    assert found.summary.endswith("rose by more than 64.0 MiB; no samples of ranks 1-2,4-6")


def test_several_jobs_in_one_file(tmp_path: Path) -> None:
    """Each is judged by itself: a rank of one is no rank of the other."""
    one = of_job(job(CALM, CLIMB), tmp_path / "one")
    two = of_job(job(LATER, CALM), tmp_path / "two")
    text = b"".join(path.read_bytes() for path in one)
    text += b"".join(path.read_bytes() for path in two).replace(b'"llama"', b'"opus"')
    found = frd.load_memory([write(tmp_path / "both.jsonl", text)])
    assert [(f.job, suspects(f)) for f in found.findings] == [("llama", [1]), ("opus", [0])]
    assert set(found.to_json()["ranks"]) == {"llama/0", "llama/1", "opus/0", "opus/1"}
    assert any("2 jobs in these files" in note for note in found.warnings)


def test_a_rank_with_one_sample(tmp_path: Path) -> None:
    """It is there, and nothing follows from it."""
    events = [event(at / 10) for at in range(50)] + [event(2, rank=1)]
    found = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    assert found.jobs[0].missing_ranks == ()
    assert any("rank 1: fewer than two samples" in note for note in found.warnings)


def test_jobs_without_a_name_are_called_like_their_folder(tmp_path: Path) -> None:
    """`job_id` is null outside of launchers."""
    folder = tmp_path / "run 7"
    folder.mkdir()
    path = write(folder / "a.jsonl", [event(at, job_id=None) for at in range(3)])
    assert frd.load_memory([path]).jobs[0].job == "run 7"


def test_what_was_left_out_is_a_warning(tmp_path: Path) -> None:
    """Bad lines, other events, refused counters, unknown versions, files that are not there."""
    events = [event(0), event(1, device_used_bytes=-1), event(2, event_type="peak")]
    path = write(tmp_path / "a.jsonl", [*events, event(3, schema_version=9)])
    path.write_bytes(path.read_bytes() + b"oops\n")
    notes = frd.load_memory([path, tmp_path / "absent"]).warnings
    assert notes[0].startswith(f"{path}: line 5: ")
    assert "No such file" in notes[1]
    assert notes[2:] == (
        "1 events are no samples (1 peak): left out",
        "1 values refused: 1 negative",
        "schema_version 9: read as 4, the latest known here",
    )


def test_no_samples_at_all(tmp_path: Path) -> None:
    """An error that says why, where there is a reason."""
    with pytest.raises(TelemetryError, match=r"absent: no memory sample in it .*No such file"):
        frd.load_memory([tmp_path / "absent"])
    with pytest.raises(TelemetryError, match=r"a.jsonl: no memory sample in it: name"):
        frd.load_memory([write(tmp_path / "a.jsonl", b"")])


# -- the command -----------------------------------------------------------------------------------

SCREEN = """\
memory_spike · open · llama
Rank 1 (n0): its GPU memory rose first
+5.8 GiB in 2.9 s, 34.2 GiB left, exhausted in about 17 s as of 08:00:32

suspect  rank 1 on n0: memory, high confidence
         memory of device 1 of rank 1: +5.8 GiB in 2.9 s, 34.2 GiB left, exhausted in about 17 s as
         of 08:00:32
victims  2
id       047f5d1b32528293, opened 2027-01-15 08:00:33 UTC

samples    2 of 3 ranks on 1 host, 900 samples
recorded   2027-01-15 08:00:00 to 08:00:44 UTC
memory     rank 1: 40.0 GiB to 69.8 GiB, at most 69.8 GiB of 80.0 GiB
           rank 2: 40.0 GiB to 80.0 GiB, at most 80.0 GiB of 80.0 GiB
not known  ranks without samples: 0
rises      memory of rank 1 rose first: +29.8 GiB in 15 s at 08:00:30; 2.9 s before rank 2; rank 0:
           may have risen as early, or earlier (medium confidence)
           memory of rank 2 rose after that of rank 1: +40.0 GiB in 4.4 s at 08:00:33 (low
           confidence)
clocks     one host, one clock
look at    frd analyze --memory job/rank_1.jsonl job/rank_2.jsonl --json"""


def test_the_first_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    """The verdict, the memory of each rank, and what is not known, for an engineer at night."""
    monkeypatch.chdir(tmp_path)
    of_job(job(CALM, CLIMB, LATER), tmp_path / "job")
    files = ("job/rank_1.jsonl", "job/rank_2.jsonl")
    printed = shell.drawn("analyze", "--memory", *files, code=FINDINGS_PRESENT, columns=100)
    assert [line.rstrip() for line in printed.lines] == SCREEN.splitlines()


def test_json(tmp_path: Path, shell: Shell) -> None:
    """The keys of a folder's analysis, and those that only memory has."""
    files = of_job(job(CALM, CLIMB), tmp_path / "job")
    printed = shell("analyze", "--memory", *files, "--json", code=FINDINGS_PRESENT).json
    assert printed["findings"][0]["suspects"][0]["reason"] == "memory"
    assert printed["ranks"]["1"]["samples"] == 450
    assert printed["ranks"]["1"]["peak_bytes"] > 68 * GIB
    assert (printed["groups"], printed["missing_ranks"], printed["warnings"]) == ([], [], [])
    assert printed["jobs"] == [
        {"job": "llama", "world_size": 2, "ranks": [0, 1], "missing_ranks": [], "hosts": ["n0"]}
    ]


# -- what a person reads of `frd analyze --memory`, and what is said of impossible input -----------


OF_ALLOCATOR = {"allocator_allocated_bytes": None, "allocator_reserved_bytes": None}


def test_an_earlier_small_rise_is_on_the_first_screen(tmp_path: Path, shell: Shell) -> None:
    """One finding, whose panel says "rose first", and a rise of another rank before it."""
    files = of_job(job(plus(CALM, step(20, 0.3)), CLIMB, CALM, CALM), tmp_path / "job")
    printed = shell("analyze", "--memory", *files, code=FINDINGS_PRESENT)
    assert "\nbefore it, memory of rank 0 rose by 307.2 MiB" in printed.out


def test_a_common_cause_has_no_suspect(tmp_path: Path, shell: Shell) -> None:
    """All ranks climb together: the panel names nothing that "rose first"."""
    files = of_job(job(CLIMB, CLIMB, CLIMB, CLIMB), tmp_path / "job")
    out = shell("analyze", "--memory", *files, code=FINDINGS_PRESENT).out
    assert "suspect  none: no single rank is the cause" in out
    assert "none: its memory" not in out


@pytest.mark.parametrize(
    ("rises", "code", "answer"),
    [
        (CLIMB, FINDINGS_PRESENT, "opus: Rank 1 (n0): its GPU memory rose first"),
        (plus(CALM, step(20, 0.3)), 0, "no memory trouble; opus: memory of rank 1 rose first"),
    ],
    ids=["a finding", "a rise that is too small for a finding"],
)
def test_the_answer_names_the_job_of_several(
    tmp_path: Path, shell: Shell, rises: Curve, code: int, answer: str
) -> None:
    """The first line, which is also the title of a picture, names the one of two jobs."""
    one = of_job(job(CALM, CALM), tmp_path / "one")
    two = of_job(job(CALM, rises), tmp_path / "two")
    for path in two:
        write(path, path.read_bytes().replace(b'"llama"', b'"opus"'))
    assert shell("analyze", "--memory", *one, *two, code=code).out.startswith(answer)


def test_a_rank_beyond_the_world(tmp_path: Path, shell: Shell) -> None:
    """Ranks 0, 1 and 3 say that the world has three ranks: rank 2 is missing, of four."""
    events = [event(at / 10, rank=rank, world_size=3) for at in range(50) for rank in (0, 1, 3)]
    path = write(tmp_path / "a.jsonl", events)
    out = shell("analyze", "--memory", path).words
    assert "3 of 4 ranks on 1 host, 150 samples" in out
    assert "rank 3, but world_size is 3: a world of 4 is assumed" in out


def test_ranks_below_the_highest_are_missing_without_a_world_size(tmp_path: Path) -> None:
    """Files of ranks 0 and 3, and no world size: ranks 1 and 2 may have risen before."""
    rises = job(CALM, CALM, CALM, plus(CALM, step(20, 0.3)))
    files = of_job(rises, tmp_path / "job")
    for path in files:
        write(path, path.read_bytes().replace(b'"world_size": 4', b'"world_size": null'))
    found = frd.load_memory([files[0], files[3]])
    assert found.jobs[0].missing_ranks == (1, 2)
    assert [s.confidence for s in found.rises[0].suspects] == [Confidence.MEDIUM]


def test_a_recording_shorter_than_the_warm_up(tmp_path: Path) -> None:
    """Nothing is judged, and the answer does not claim more."""
    files = of_job(job(CALM, CLIMB), tmp_path / "job")
    found = frd.load_memory(files, warmup_s=100)
    assert found.summary == (
        "no memory trouble; no rank's memory rose by more than 64.0 MiB after the first 100 s"
    )
    assert any("all of it within --warmup 100: no rise is looked for" in w for w in found.warnings)


@pytest.mark.parametrize(
    "options",
    [
        {"warmup_s": -1.0},
        {"warmup_s": math.nan},
        {"clock_uncertainty_s": -1},
        {"min_rise_bytes": 0},
    ],
)
def test_impossible_options_in_python(tmp_path: Path, options: dict[str, Any]) -> None:
    """The error names the argument."""
    path = write(tmp_path / "a.jsonl", [event(0), event(1)])
    with pytest.raises(ConfigError, match=next(iter(options))):
        frd.load_memory([path], **options)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device_used_bytes": None} | OF_ALLOCATOR, "without a counter"),
        (scope("enter", 0), "of phases"),
        ({"event_type": "start"}, "no samples"),
    ],
)
def test_files_without_samples_say_what_is_in_them(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    """Events of other kinds, or without numbers: the error says so, and names the files."""
    files = [write(tmp_path / f"{name}.jsonl", [event(0, **change)]) for name in "ab"]
    with pytest.raises(TelemetryError, match=rf"a.jsonl and 1 more: .*{why}.*: name telemetry"):
        frd.load_memory(files)


# -- with a folder of dumps ------------------------------------------------------------------------


def test_healthy_dumps_and_a_finding_about_memory(tmp_path: Path, shell: Shell) -> None:
    """The object is that of the dumps; its `fault` agrees with the exit code."""
    files = of_job(job(CALM, CLIMB), tmp_path / "job")
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for rank in (0, 1):
        (dumps / f"rank_{rank}").write_bytes(as_torch(document([entry(0), entry(1)])))
    timeline, samples = tmp_path / "t.pftrace", tmp_path / "samples.jsonl"
    options = ["--json", "--timeline", str(timeline), "--output", str(samples)]
    printed = shell("analyze", dumps, "--memory", *files, *options, code=FINDINGS_PRESENT)
    found = printed.json
    assert (found["findings"], found["fault"]) == ([], True)
    assert [one["alarming"] for one in found["rises"]] == [True]
    assert found["memory"]["findings"][0]["suspects"][0]["rank"] == 1
    assert printed.err.count("written: ") == 2
    assert timeline.stat().st_size
    assert "from the dumps" in samples.read_text()
    (other,) = found["memory"]["warnings"]
    assert other.startswith("the dumps are from 2026-11-20T15:57:33.129820Z to 2026-11-20T15:57:33")
    assert other.endswith("Z: name files of one run")


def test_dumps_and_traces_of_the_time_of_the_samples(tmp_path: Path, shell: Shell) -> None:
    """Files of one run: no warning; traces of another year are one."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / "rank_0").write_bytes(as_torch(document([entry(0), entry(1)], [0])))
    samples = [event(0, timestamp_ns=T0 + at * S, world_size=1) for at in range(-300, -60)]
    command = ["analyze", str(dumps), "--memory", str(write(tmp_path / "a.jsonl", samples))]
    assert shell(*command, "--json").json["memory"]["warnings"] == []
    writer = Writer("v2.2", 100)
    calls = writer.lines([Call("read", 10, 20, file="/data/a", ret=5)])
    trace = [writer.metadata("CM", "rank", "0"), *calls]
    write_trace(tmp_path / "traces" / "t.pfw", trace)
    (other,) = shell(*command, "--json", "--traces", tmp_path / "traces").json["memory"]["warnings"]
    assert other.startswith("the traces are from 2023-11-14T22:13:20.000010Z to ")


def test_a_command_to_copy_names_files_only_if_they_are_few(tmp_path: Path, shell: Shell) -> None:
    """Of many files it has a placeholder, not a path that exists and is something else."""
    files = [write(tmp_path / f"{rank}.jsonl", [event(0, rank=rank)]) for rank in range(5)]
    assert "frd analyze --memory FILE.. --json" in shell("analyze", "--memory", *files).out


# -- recordings of several kinds of memory ---------------------------------------------------------


def of_all_kinds() -> Iterator[dict[str, Any]]:
    """Rank 0 with two devices and its host process; the host rises at 20 s, device 1 at 30 s."""
    for at in range(600):
        for device in (0, 1):
            gained = max(0, at - 300) * GIB // 50 if device else 0
            used = {"device_used_bytes": 20 * GIB + gained, "allocator_reserved_bytes": 10 * GIB}
            yield event(at / 10, device_id=device, world_size=1, **used)
        host = {"device_used_bytes": (4 + (at > 200)) * GIB}
        of_host = {"device_total_bytes": None} | OF_ALLOCATOR
        yield event(at / 10, device_id=-1, world_size=1, **host, **of_host)


def test_memories_of_a_rank_are_apart(tmp_path: Path) -> None:
    """Two rises of one rank in two memories: each has its bytes, not the difference of both. The
    numbers of the rank are those of its fullest device."""
    found = frd.load_memory(write(tmp_path / "a.jsonl", of_all_kinds()))
    sizes = [(one.series.value, round(one.bytes / GIB)) for one in found.rises]
    assert sizes == [("host_used", 1), ("device_used", 6)]
    host, device = found.rises
    assert host.text.startswith("host memory of rank 0 rose first: +1.0 GiB")
    assert device.text.startswith("memory of rank 0 rose first: +6.0 GiB")
    usage = found.jobs[0].ranks[0]
    assert (usage.what, round(usage.peak_bytes / GIB)) == ("device", 26)


def test_times_that_are_not_nanoseconds(tmp_path: Path) -> None:
    """A tracker that writes seconds: a warning that names the field."""
    events = [event(0, timestamp_ns=1_800_000_000 + at) for at in range(50)]
    found = frd.load_memory(write(tmp_path / "a.jsonl", events))
    assert any("timestamp_ns is not in nanoseconds since 1970" in note for note in found.warnings)
