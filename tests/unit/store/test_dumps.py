"""Dump folders: whole or absent, bounded, safe from the names that users give to jobs."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs, AttemptKey
from frd.store.dumps import DumpStore, safe_name
from frd.wire.messages import Part

NOW = AlignedNs(1_800_000_000_000_000_000)
SECOND = 1_000_000_000


def dump_store(folder: Path, *, max_count: int = 10, max_bytes: int = 100_000) -> DumpStore:
    return DumpStore(folder, max_count=max_count, max_bytes=max_bytes)


def taken(store: DumpStore, *, job: str = "train", at: int = 0, size: int = 10) -> str:
    writer = store.create(AttemptKey(job, 2), AlignedNs(NOW + at * SECOND))
    writer.add(3, Part.DUMP, b"x" * size, last=True)
    return writer.finish({"answered": [3], "failed": {}})


def unpacked(stream: Iterable[bytes] | None) -> dict[str, bytes]:
    assert stream is not None
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        return {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()}


def test_parts_become_files(tmp_path: Path) -> None:
    """Pieces of several ranks' parts become the files of a dump folder, and its tar equals it."""
    store = dump_store(tmp_path)
    writer = store.create(AttemptKey("train", 2), NOW)
    writer.add(0, Part.DUMP, b"pick", last=False)
    writer.add(1, Part.STACK, "stück".encode(), last=True)
    writer.add(0, Part.DUMP, b"le", last=True)
    writer.add(0, Part.IDENTITY, b"{}", last=True)
    writer.add(1, Part.DUMP, b"half of it", last=False)
    assert store.ids() == []
    dump_id = writer.finish({"answered": [0], "failed": {"1": "gone"}})
    assert re.fullmatch(r"[0-9a-z-]+", dump_id)
    assert store.ids() == [dump_id]

    files = unpacked(store.tar(dump_id))
    assert next(iter(files)) == "summary.json"
    summary = json.loads(files.pop("summary.json"))
    assert summary == {
        "id": dump_id,
        "job": "train",
        "attempt": 2,
        "folder": "train",
        "taken_at": "2027-01-15T08:00:00.000000Z",
        "answered": [0],
        "failed": {"1": "gone"},
    }
    assert files == {
        "train/rank_0": b"pickle",
        "train.meta/rank_0.json": b"{}",
        "train.meta/rank_1.stack.txt": "stück".encode(),
    }
    on_disk = {
        str(path.relative_to(tmp_path / dump_id)): path.read_bytes()
        for folder in ("train", "train.meta")
        for path in (tmp_path / dump_id / folder).iterdir()
    }
    assert on_disk == files


@pytest.mark.parametrize(
    "job",
    ["..", ".", "/etc", "a/../b", "a\\b", "", ".hidden", "a\udcffb", "x" * 300, "né w", "a\0b"],
)
def test_odd_job_names_stay_inside(tmp_path: Path, job: str) -> None:
    """A job name that is no plain file name cannot leave the folder; summary.json has the name."""
    store = dump_store(tmp_path / "dumps")
    files = unpacked(store.tar(taken(store, job=job)))
    summary = json.loads(files.pop("summary.json"))
    assert summary["job"] == job
    (name,) = files
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/rank_3", name)
    assert summary["folder"] == name.partition("/")[0]
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]


def test_different_names_stay_different() -> None:
    """Plain names are kept, and two odd ones that look alike do not share a folder."""
    assert safe_name("llama-7b_run.3") == "llama-7b_run.3"
    assert len({safe_name(job) for job in ["a/b", "a b", "a_b", "a//b"]}) == 4


def test_oldest_go_first_by_count(tmp_path: Path) -> None:
    """Beyond the bound on dumps the oldest disappear, also for a store opened later."""
    store = dump_store(tmp_path, max_count=3)
    ids = [taken(store, at=n) for n in range(5)]
    assert store.ids() == ids[2:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ids[2:]
    assert store.evicted == 2
    assert dump_store(tmp_path, max_count=2).ids() == ids[3:]


def test_an_abandoned_dump_takes_no_room(tmp_path: Path) -> None:
    """A dump that has nearly filled the bound is abandoned: others fit as before."""
    store = dump_store(tmp_path, max_bytes=5_000)
    writer = store.create(AttemptKey("train", 0), NOW)
    writer.add(0, Part.DUMP, b"x" * 4_000, last=False)
    writer.abandon()
    ids = [taken(store, at=n, size=1_500) for n in range(2)]
    assert store.ids() == ids


def test_oldest_go_first_by_bytes(tmp_path: Path) -> None:
    """Beyond the bound on bytes the oldest disappear while a new dump is still being filled."""
    store = dump_store(tmp_path, max_bytes=5_000)
    ids = [taken(store, at=n, size=2_000) for n in range(2)]
    writer = store.create(AttemptKey("train", 0), AlignedNs(NOW + 9 * SECOND))
    writer.add(0, Part.DUMP, b"x" * 1_000, last=False)
    assert store.ids() == ids[1:]
    writer.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ids[1:]


def test_dump_greater_than_the_bound(tmp_path: Path) -> None:
    """A dump that cannot fit is refused with a reason and leaves no trace."""
    store = dump_store(tmp_path, max_bytes=1_000)
    writer = store.create(AttemptKey("train", 0), NOW)
    with pytest.raises(StoreError, match="exceeds the bound of 1000 bytes"):
        writer.add(0, Part.DUMP, b"x" * 1_001, last=True)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
    taken(store)
    assert len(store.ids()) == 1


def test_unfinished_dump_of_a_killed_process(tmp_path: Path) -> None:
    """An unfinished dump of a killed process is removed at the next start."""
    dump_store(tmp_path).create(AttemptKey("train", 0), NOW).add(0, Part.DUMP, b"half", last=True)
    assert len(list(tmp_path.iterdir())) == 1
    assert dump_store(tmp_path).ids() == []
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """A dump below a file is a clear error with the path; a folder that vanished is made again."""
    (tmp_path / "file").write_text("")
    store = dump_store(tmp_path / "file" / "dumps")
    with pytest.raises(StoreError, match=r"dumps: .*file/dumps: .*--data-dir"):
        store.create(AttemptKey("train", 0), NOW)
    store = dump_store(tmp_path / "dumps")
    first = taken(store)
    shutil.rmtree(tmp_path / "dumps")
    assert taken(store) != first


def test_lower_bounds_hold_immediately(tmp_path: Path) -> None:
    """The bounds are lowered: the oldest dumps are evicted immediately."""
    store = dump_store(tmp_path)
    ids = [taken(store, at=n, size=2_000) for n in range(4)]
    store.bound(max_count=3, max_bytes=100_000)
    assert store.ids() == ids[1:]
    store.bound(max_count=3, max_bytes=5_000)
    assert store.ids() == ids[2:]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file and a folder of a user are neither counted nor evicted."""
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "My Folder").mkdir()
    store = dump_store(tmp_path, max_count=1)
    kept = [taken(store, at=n) for n in range(2)][-1]
    assert store.ids() == [kept]
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "My Folder", kept}


@pytest.mark.parametrize("bounds", [{"max_count": 3}, {"max_bytes": 3_000}], ids=["count", "bytes"])
def test_jobs_share_the_store(tmp_path: Path, bounds: dict[str, int]) -> None:
    """Job a has one dump after the other: those of b stay, also in the next process."""
    store = dump_store(tmp_path, **bounds)
    of_b = taken(store, job="b", size=600)
    for at in range(1, 4):
        taken(store, job="a", at=at, size=600)
    store = dump_store(tmp_path, **bounds)
    last = [taken(store, job="a", at=at, size=600) for at in range(4, 8)][-1]
    assert store.ids()[0] == of_b
    assert store.ids()[-1] == last


def test_a_dump_evicted_before_it_is_read(tmp_path: Path) -> None:
    """It is evicted between the request and its first chunk: an error, not a short tar."""
    store = dump_store(tmp_path, max_count=1)
    first = taken(store)
    stream = store.tar(first)
    assert stream is not None
    taken(store, at=1)
    with pytest.raises(StoreError, match=f"{first}: was just evicted"):
        next(stream)


def test_a_dump_stays_until_its_last_reader_is_done(tmp_path: Path) -> None:
    """Two readers of one dump get all of it while newer dumps come: it is evicted when both of them
    have finished."""
    store = dump_store(tmp_path, max_count=1)
    first = taken(store, size=5_000)
    streams = [store.tar(first), store.tar(first)]
    beginnings = [next(stream) for stream in streams if stream is not None]
    assert len(unpacked([beginnings[0], *(streams[0] or ())])) == 2
    second = taken(store, at=1)
    assert first in store.ids()
    assert len(unpacked([beginnings[1], *(streams[1] or ())])["train/rank_3"]) == 5_000
    third = taken(store, at=2)
    assert store.ids() == [third]
    assert store.tar(second) is None


def test_a_part_that_cannot_be_written(tmp_path: Path) -> None:
    """The disk is full: an error, the bytes are free again, and the complete parts are a dump."""
    store = dump_store(tmp_path, max_count=2, max_bytes=3_000)
    writer = store.create(AttemptKey("train", 0), NOW)
    (unfinished,) = tmp_path.iterdir()
    (unfinished / "train" / "rank_1").symlink_to("/dev/full")
    with pytest.raises(StoreError, match="No space left on device: free some space"):
        writer.add(1, Part.DUMP, b"x" * 2_000, last=True)
    writer.add(0, Part.DUMP, b"x" * 2_000, last=True)
    assert set(unpacked(store.tar(writer.finish({})))) == {"summary.json", "train/rank_0"}


def test_a_summary_that_cannot_be_written(tmp_path: Path) -> None:
    """The disk is full at the end: no dump, no files, and room for another one."""
    store = dump_store(tmp_path, max_bytes=3_000)
    writer = store.create(AttemptKey("train", 0), NOW)
    (unfinished,) = tmp_path.iterdir()
    (unfinished / "summary.json").symlink_to("/dev/full")
    writer.add(0, Part.DUMP, b"x" * 2_000, last=True)
    with pytest.raises(StoreError, match="No space left on device: free some space"):
        writer.finish({})
    assert list(tmp_path.iterdir()) == []
    dump_id = taken(store, size=2_500)
    assert store.ids() == [dump_id]
