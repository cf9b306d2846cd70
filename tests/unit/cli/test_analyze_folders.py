"""Which dumps are analyzed of the folders that people name, and what is said of the others."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.cli import FAILED, FINDINGS_PRESENT, USAGE, run
from frd.offline.load.folder import MAX_DUMPS
from frd.v1 import perfetto_pb2 as pb
from tests.unit.cli.shell import Shell
from tests.unit.offline.written_tables import rows_in
from tests.world.dump_files import T0, as_torch, document, entry
from tests.world.io_traces import T0_US, Call, Writer, training, write_trace

SECOND = 1_000_000_000


def waiting(rank: int) -> bytes:
    """Rank 1 waits in op 3 since 2 ms after `T0`; rank 0 never comes."""
    rows = [entry(0), entry(1)]
    if rank == 1:
        rows.append(entry(2, state="scheduled", retired=False, time_discovered_completed_ns=None))
    return as_torch(document(rows))


def dump(root: Path, at_s: float, job: str = "llama", attempt: int = 0, **summary: Any) -> Path:
    """As `frd dump` makes it, of ranks 0 and 1, taken `at_s` after `T0`."""
    folder, meta = root / job, root / f"{job}.meta"
    folder.mkdir(parents=True)
    meta.mkdir()
    at = T0 + round(at_s * SECOND)
    taken_at = f"2026-11-20T10:{int(at_s) // 60:02d}:{int(at_s) % 60:02d}Z"
    document = {"job": job, "attempt": attempt, "folder": job, "taken_at": taken_at} | summary
    (root / "summary.json").write_text(json.dumps(document))
    for rank in range(2):
        (folder / f"rank_{rank}").write_bytes(waiting(rank))
        who = {"rank": rank, "world_size": 2, "node": "n", "boot_id": "b", "pid": 7}
        when = {"taken_at_ns": at, "node_time_ns": at + 1_000_000, "source": "fr_trace_json"}
        (meta / f"rank_{rank}.json").write_text(json.dumps(who | when))
    return root


def test_a_young_dump_is_no_finding(tmp_path: Path, shell: Shell) -> None:
    """Dumped 0.6 s after the wait began: exit code 0, one line for people, one key for programs."""
    folder = dump(tmp_path / "h", 0.602)
    document = shell("analyze", "--json", folder).json
    assert (document["findings"], document["fault"]) == ([], False)
    screen = shell.drawn("analyze", folder)
    assert "not proven: rank 0 had kept rank 1 waiting for 0.6 s when dumped" in screen.words
    assert "take another dump in a minute" in screen.words
    assert screen.words.startswith("the dumps prove no communication fault")
    assert max(map(len, screen.lines)) <= 80


def test_the_service_says_what_a_hang_is(tmp_path: Path, shell: Shell) -> None:
    """The dump of a finding of a service that waits for 3 s is a finding here as well."""
    folder = dump(tmp_path / "h", 4, stall_after_s=3.0)
    shell("analyze", folder, code=FINDINGS_PRESENT)
    shell("analyze", folder, "--stall-after", "5", code=0)


@pytest.mark.parametrize("together", [False, True])
def test_dumps_of_one_job(tmp_path: Path, shell: Shell, together: bool) -> None:
    """Named one by one in any order, or by the folder that holds them, the last one is judged."""
    second, first = dump(tmp_path / "a", 61), dump(tmp_path / "b", 0.5)
    folders = [tmp_path] if together else [second, first]
    document = shell("analyze", "--json", *folders, code=FINDINGS_PRESENT).json
    assert [Path(one["folder"]) for one in document["dumps"]] == [first, second]
    assert document["waited"][0]["at_least_s"] == pytest.approx(61, abs=0.01)
    assert document["warnings"] == []
    words = shell("analyze", *folders, code=FINDINGS_PRESENT).words
    assert "1 dump of the same job, 60.5 s before the one" in words


def test_of_several_jobs_the_one_that_was_dumped_last(tmp_path: Path, shell: Shell) -> None:
    """A tree of dumps: jobs are not mixed, and what is left out is named, and where to look."""
    taken = dump(tmp_path / "x/2", 50)
    others = [dump(tmp_path / "x/1", 20, "bert"), dump(tmp_path / "y", 40, attempt=1)]
    document = shell("analyze", "--json", tmp_path, code=FINDINGS_PRESENT).json
    assert [one["folder"] for one in document["dumps"]] == [str(taken)]
    (warning,) = document["warnings"]
    assert "took llama attempt 0, which was dumped last" in warning
    assert all(str(other) in warning for other in others)
    lines = shell("analyze", tmp_path, code=FINDINGS_PRESENT).lines
    assert any(line.startswith("taken from") for line in lines)


def test_many_dumps_of_one_job(tmp_path: Path) -> None:
    """Only the newest are read."""
    for at in range(MAX_DUMPS + 2):
        dump(tmp_path / str(at), at)
    found = frd.load(tmp_path)
    assert len(found.dumps) == MAX_DUMPS
    assert found.dumps[-1].folder == str(tmp_path / str(MAX_DUMPS + 1))
    assert "left out all but the last" in found.warnings[0]


def test_folders_that_do_not_belong_together(tmp_path: Path, shell: Shell) -> None:
    """Two jobs, or two hosts: one line that says what to name instead."""
    one, other = dump(tmp_path / "a", 1), dump(tmp_path / "b", 2, "bert")
    error = shell("analyze", one, other, code=USAGE).error
    assert error.startswith(f"frd: error: folders: {other}: is of bert attempt 0")
    for rank in range(2):
        (tmp_path / f"host{rank}").mkdir()
        (tmp_path / f"host{rank}" / f"dump_{rank}").write_bytes(waiting(rank))
    error = shell("analyze", tmp_path / "host0", tmp_path / "host1", code=USAGE).error
    assert "has no rank in common with" in error


def test_files_of_a_dump_that_tells_nothing(tmp_path: Path, shell: Shell) -> None:
    """The time of a file bounds a wait from above; when it says nothing, that is said."""
    folder = dump(tmp_path / "h", 1) / "llama"
    (tmp_path / "h" / "summary.json").unlink()
    for rank in range(2):
        os.utime(folder / f"rank_{rank}", ns=(T0, T0 + SECOND))
    shell("analyze", folder, code=0)
    for rank in range(2):
        os.utime(folder / f"rank_{rank}", ns=(T0, T0 + 86_400 * SECOND))
    document = shell("analyze", "--json", folder, code=FINDINGS_PRESENT).json
    assert document["waited"][0]["at_least_s"] == 0
    words = shell("analyze", folder, code=FINDINGS_PRESENT).words
    assert "time they had waited when dumped: at least 0.0 s" in words
    assert "take another dump and name both folders" in words


def test_what_a_rank_left_behind_is_as_old_as_its_file(tmp_path: Path) -> None:
    """The agent found torch's own dump of rank 1: no rank was asked, so it is not of
    `node_time`."""
    root = dump(tmp_path / "h", 600)
    path = root / "llama.meta" / "rank_1.json"
    document = json.loads(path.read_text())
    document |= {"source": "file nccl_trace_rank_1", "taken_at_ns": T0 + 3 * SECOND}
    path.write_text(json.dumps(document))
    of = frd.load(root).trace.ranks[1]
    assert (of.dumped_from_ns, of.dumped_until_ns) == (0, T0 + 3 * SECOND)


def test_an_archive_in_place_of_a_folder(tmp_path: Path, shell: Shell) -> None:
    """The same findings as of the folder; in an archive that leads out, one line of error."""
    folder = dump(tmp_path / "h", 20)
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "h"))
    plain = shell("analyze", "--json", folder, code=FINDINGS_PRESENT).json
    packed = shell("analyze", "--json", archive, code=FINDINGS_PRESENT).json
    assert packed["findings"] == plain["findings"]
    assert packed["dumps"][0]["folder"].endswith("/packed.tar.gz/h")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as out:
        out.writestr("../dump_0", b"x")
    error = shell("analyze", tmp_path / "bad.zip", code=1).err
    assert error.startswith(
        f"frd: error: {tmp_path}/bad.zip: cannot be unpacked ('../dump_0': leads "
    )
    assert error.count("\n") == 1


def test_files_of_several_jobs(tmp_path: Path, shell: Shell) -> None:
    """Three jobs' files in one folder are no all-clear: one line of error says what to choose."""
    for job in "abc":
        for rank in range(2):
            (tmp_path / f"{job}_{rank}").write_bytes(waiting(rank))
    error = shell("analyze", tmp_path, code=1).err
    assert "6 files of the same ranks, with 3 names like " in error
    assert all(f"'{job}_*'" in error for job in "abc")
    assert "--prefix" in error
    shell("analyze", tmp_path, "--prefix", "b_", code=FINDINGS_PRESENT)


# -- `frd analyze --traces` as people and other programs use it ------------------------------------


SLOW = "/data/shard-2.bin"


def rank_trace(folder: Path, rank: int, calls: Sequence[Call]) -> Path:
    writer = Writer("v2.2", pid=100 + rank)
    lines = [*writer.lines(calls), writer.metadata("CM", "rank", str(rank))]
    return write_trace(folder / f"t{rank}.pfw", lines)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    for rank in range(3):
        rank_trace(folder, rank, training(rank, slow=SLOW))
    return folder


def io_of(shell: Shell, *words: str | Path, code: int = 0) -> dict[str, Any]:
    printed = shell("analyze", *words, "--json", code=code)
    assert printed.err == ""
    found: dict[str, Any] = printed.json
    return found


def test_the_first_screen_names_ranks_and_slow_files(traces: Path, shell: Shell) -> None:
    """Without dumps: times of each rank, slow files and steps, open files; exit code 0."""
    screen = shell.drawn("analyze", "--traces", traces).out
    for fact in ("unoverlapped I/O", "slowest files", SLOW, "epoch 0, step", "events of 3 traces"):
        assert fact in screen, fact
    files = screen.split("slowest files")[1].splitlines()
    assert SLOW in files[1]
    assert max(map(len, screen.splitlines())) <= 80


def test_json_has_the_promised_keys(traces: Path, shell: Shell) -> None:
    """Keys for other programs; files are sorted by the time that they took."""
    found = io_of(shell, "--traces", traces)
    assert found["findings"] == []
    io = found["io"]
    assert set(io["ranks"]) == {"0", "1", "2"}
    for rank in io["ranks"].values():
        assert rank["unoverlapped_io_s"] <= rank["io_s"]
        assert rank["evidence"] == ["logged by the program"]
    times = [file["io_s"] for file in io["files"]]
    assert times == sorted(times, reverse=True)
    assert set(io["files"][0]) == {"path", "rank", "io_s", "bytes", "ops"}
    assert io["files_read"] == [str(traces / f"t{rank}.pfw") for rank in range(3)]
    assert (io["broken_lines"], io["incomplete"], io["starved_by"]) == (0, [], [])
    assert {s["rank"] for s in io["steps"]} == {0, 1, 2}


def test_lists_that_are_cut_say_so(
    traces: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """20 steps and 4 files of each rank, of which few are listed; some files are left open."""
    assert io_of(shell, "--traces", traces)["io"]["not_listed"] == []
    monkeypatch.setattr("frd.offline.io.rank_report.MAX_STEPS", 5)
    monkeypatch.setattr("frd.offline.io.rank_report.MAX_FILES", 1)
    files, unclosed, steps = io_of(shell, "--traces", traces)["io"]["not_listed"]
    assert files.endswith(" files that took less time, of ranks 0-2")
    assert "files opened earlier and never closed, of rank" in unclosed
    assert steps == "45 steps with less unoverlapped I/O, of ranks 0-2"
    assert f"not listed  {steps}" in shell("analyze", "--traces", traces).out


def test_traces_takes_all_paths_up_to_the_next_option(traces: Path, shell: Shell) -> None:
    """``--traces A B --json``, and each with its own option."""
    files = [traces / f"t{rank}.pfw" for rank in range(2)]
    together = io_of(shell, "--traces", *files)
    assert together == io_of(shell, "--traces", files[0], "--traces", files[1])
    assert len(together["io"]["files_read"]) == 2


def test_a_call_in_progress_starves_the_first_cause(
    hanging: Path, tmp_path: Path, shell: Shell
) -> None:
    """Rank 2 was in read() when it was last seen, and the call returned later: seen."""
    calls = [Call("open64", 100, 5, file=SLOW), Call("read", 1_500, 40_000_000, file=SLOW, ret=9)]
    rank_trace(tmp_path / "traces", 2, calls)
    found = io_of(shell, hanging, "--traces", tmp_path / "traces", code=FINDINGS_PRESENT)
    (starved,) = found["io"]["starved_by"]
    assert (starved["rank"], starved["path"], starved["certainty"]) == (2, SLOW, "seen")
    assert "was in read of it for 40 s" in starved["text"]
    assert found["summary"].endswith(f"; rank 2 is starved by {SLOW}")
    (suspect,) = found["findings"][0]["suspects"]
    assert suspect["rank"] == 2
    assert starved["text"] in suspect["evidence"]
    words = ("analyze", hanging, "--traces", tmp_path / "traces")
    screen = shell(*words, code=FINDINGS_PRESENT)
    assert f"starved by {SLOW}" in screen.words
    for printed in (screen, shell(*words, "--entries", code=FINDINGS_PRESENT)):
        assert printed.out.count("pid 102 was in read of it") == 1


def test_a_file_left_open_is_a_likely_cause_and_no_blocked_read(
    hanging: Path, tmp_path: Path, shell: Shell
) -> None:
    """The last line is an open; a blocked call has no line in a trace, so none is claimed."""
    rank_trace(tmp_path / "traces", 2, [Call("open64", 2_500, 5, file=SLOW)])
    found = io_of(shell, hanging, "--traces", tmp_path / "traces", code=FINDINGS_PRESENT)
    (starved,) = found["io"]["starved_by"]
    assert (starved["path"], starved["certainty"]) == (SLOW, "likely")
    assert "the last call of pid 102 that ended is open64 of it" in starved["text"]
    assert "not finalized" in starved["text"]
    assert "read" not in starved["text"]
    assert found["summary"].endswith(f"; rank 2 is probably starved by {SLOW}")


@pytest.mark.parametrize("ending", ["sqlite", "parquet", "csv", "json"])
def test_spans_are_written(traces: Path, tmp_path: Path, ending: str, shell: Shell) -> None:
    """The same spans in every format, with ranks, paths and aligned times."""
    path = tmp_path / f"spans.{ending}"
    shell("analyze", "--traces", traces, "--output", path, "--json")
    rows = rows_in(path, "spans")
    assert ending != "sqlite" or len(rows_in(path, "io_ranks")) == 3
    calls = sum(len(training(rank, slow=SLOW)) for rank in range(3))
    assert len(rows) == calls
    reads = [row for row in rows if row["name"] == "read" and row["file"] == SLOW]
    assert reads
    assert {row["rank"] for row in rows} == {0, 1, 2}
    assert min(row["start_ns"] for row in rows) >= T0_US * 1_000


@pytest.mark.parametrize("ending", ["", "sqlite", "parquet", "csv", "json", "pftrace"])
def test_names_that_are_no_text_break_no_output(
    tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A trace whose name is no UTF-8, which names no host; names of files, hosts and calls with
    half of a surrogate pair."""
    calls = [Call("open64", 1, 5, file="/d/\udc80", ret=3), Call("\udc81", 9, 5, "compute")]
    known = Writer("v2.2", 7, host="n\udc82")
    write_trace(tmp_path / "a.pfw", [*known.lines(calls), known.metadata("CM", "rank", "0")])
    line = Writer("v2.2", 8).call(1, Call("read", 1, 5, args={"hhash": ""}))
    write_trace(tmp_path / os.fsdecode(b"t\x80.pfw"), [line, "broken"])
    file = tmp_path / f"out.{ending}"
    options = {"": [], "pftrace": [f"--timeline={file}"]}.get(ending, ["-o", str(file)])
    assert run(["analyze", "--traces", str(tmp_path), *options]) == 0
    capfd.readouterr()
    assert run(["analyze", "--traces", str(tmp_path), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["io"]
    assert found["unclosed"][0]["path"] == "/d/\\udc80"
    assert "\\udc80.pfw" in found["files_read"][1]


def test_spans_are_tracks_below_their_rank(hanging: Path, traces: Path, tmp_path: Path) -> None:
    """A track of I/O for each process, below the rank that the dumps have, or a new one."""
    for number, dumped in enumerate(([str(hanging)], [])):
        path = tmp_path / f"{number}.pftrace"
        run(["analyze", *dumped, "--traces", str(traces), "--timeline", str(path), "--json"])
        trace = pb.Trace.FromString(path.read_bytes())
        tracks = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
        names = {track.uuid: track.name for track in tracks}
        parents = {track.name: names.get(track.parent_uuid, "") for track in tracks}
        assert parents["I/O pid 102"].startswith("rank 2")
        begun = [p for p in trace.packet if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN]
        assert len(begun) > sum(len(training(rank, slow=SLOW)) for rank in range(3)) / 2


def test_dumps_among_the_traces_are_an_error(hanging: Path, traces: Path, shell: Shell) -> None:
    """``--traces TR DIR`` takes DIR for traces: the error says where DIR belongs; also if a dump
    is named itself."""
    for dumped in (hanging, next(path for path in sorted(hanging.iterdir()) if path.is_file())):
        said = shell("analyze", "--traces", traces, dumped, code=FAILED).err
        assert f"{dumped}: has Flight Recorder dumps, no traces: name it before --traces" in said


def test_a_scheduler_without_dask_says_what_to_install(
    traces: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named before anything is read."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    scheduler = ("--scheduler", "tcp://127.0.0.1:1")
    error = shell("analyze", "--traces", traces, *scheduler, code=USAGE).err
    assert "pip install dask distributed" in error


def test_impossible_times_break_no_output(tmp_path: Path, shell: Shell) -> None:
    """Times and durations near the limits of 64 bits, in every kind of call and of output."""
    writer = Writer("v2.2", 7)
    calls = [
        Call("open64", 1, 5, file="/d"),
        Call("read", 1, 5, file="/d", ret=9),
        Call("forward", 1, 5, "compute", args={"step": 1, "epoch": 1 << 62}),
    ]
    lines = [writer.call(number, call) for number, call in enumerate(calls)]
    for number, extreme in enumerate((str((1 << 63) - 1), "-" + str((1 << 63) - 1), "0")):
        changed = [line.replace(str(T0_US + 1), extreme) for line in lines]
        changed += [line.replace('"dur":5', f'"dur":{(1 << 63) - 2}') for line in lines]
        path = write_trace(tmp_path / f"{number}.pfw", changed)
        shell("analyze", "--traces", path)
        shell("analyze", "--traces", path, "--json")
        outputs = [f"--output={tmp_path / f'{number}.csv'}", f"--timeline={tmp_path / str(number)}"]
        shell("analyze", "--traces", path, *outputs)


def test_a_timeline_says_what_it_leaves_out(
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: Shell,
) -> None:
    """More spans than a timeline may have: a line that names the ranks and where all spans are."""
    monkeypatch.setattr("frd.offline.output.timeline.MAX_SPANS", 50)
    said = shell("analyze", "--traces", traces, f"--timeline={tmp_path / 't.pftrace'}").err
    assert "not drawn: the " in said
    assert "shortest spans of ranks 0-2: a timeline has at most the 50 longest of each" in said
