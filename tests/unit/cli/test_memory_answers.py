"""What a person reads of `frd analyze --memory`, and what is said of impossible input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.cli import FINDINGS_PRESENT
from frd.errors import ConfigError, TelemetryError
from frd.model import Confidence
from tests.unit.cli.shell import Shell
from tests.unit.cli.test_analyze_memory import CALM, CLIMB, job
from tests.unit.offline.test_recordings import scope
from tests.world.dump_files import T0, as_torch, document, entry
from tests.world.io_traces import Call, Writer, write_trace
from tests.world.memory import GIB, Curve, S, plus, step
from tests.world.telemetry_files import event, of_job, write

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
