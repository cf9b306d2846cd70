"""Which dumps are analyzed of the folders that people name, and what is said of the others."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.cli import FINDINGS_PRESENT, USAGE
from frd.offline.load.folder import MAX_DUMPS
from tests.unit.cli.shell import Shell
from tests.world.dump_files import T0, as_torch, document, entry

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
