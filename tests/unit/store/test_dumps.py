"""Dump folders: whole or absent, bounded, safe from the names that users give to jobs."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
import tarfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs, AttemptKey
from frd.store.dumps import DumpStore, safe_name
from frd.store.timelines import TimelineStore
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


# -- timelines on disk: the newest ones, within a bound; losing them costs a picture only ----------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimelineStore]:
    made = TimelineStore(tmp_path / "timelines.sqlite3")
    yield made
    made.close()


def save(store: TimelineStore, *numbers: int, size: int = 10) -> None:
    """Timelines of findings that opened at these times."""
    for number in numbers:
        store.save(f"f{number}", AlignedNs(number), b"x" * size)


def kept(store: TimelineStore, *numbers: int) -> list[int]:
    return [number for number in numbers if store.get(f"f{number}") is not None]


def test_the_newest_body_is_kept(store: TimelineStore) -> None:
    """Saved, read, and replaced by a later one; an unknown id has none."""
    assert store.get("ab12") is None
    store.save("ab12", AlignedNs(5), b"one\0\xff")
    store.save("cd34", AlignedNs(6), b"")
    assert store.get("ab12") == b"one\0\xff"
    store.save("ab12", AlignedNs(5), b"two")
    assert (store.get("ab12"), store.get("cd34"), store.get("AB12")) == (b"two", b"", None)


@pytest.mark.parametrize("finding_id", ["\udcff", "a\ud800b", "", "a\0b", "' OR 1=1 --"])
def test_ids_that_no_finding_has(store: TimelineStore, finding_id: str) -> None:
    """An id comes from the address of a request: whatever it is, nothing has it."""
    save(store, 1)
    assert store.get(finding_id) is None


def test_timelines_outlive_the_service(tmp_path: Path) -> None:
    """The next service opens the same file."""
    for number in (1, 2):
        store = TimelineStore(tmp_path / "timelines.sqlite3")
        save(store, number)
        store.close()
    store = TimelineStore(tmp_path / "timelines.sqlite3")
    assert kept(store, 1, 2, 3) == [1, 2]
    store.close()


def test_the_oldest_findings_go_first(tmp_path: Path) -> None:
    """Three fit: a fourth one takes the place of the finding that opened first, not of the one that
    was stored first; one that is older than all is not kept."""
    store = TimelineStore(tmp_path / "timelines.sqlite3", max_count=3)
    save(store, 5, 2, 9)
    save(store, 7)
    assert kept(store, 2, 5, 7, 9) == [5, 7, 9]
    save(store, 1)
    assert kept(store, 1, 5, 7, 9) == [5, 7, 9]
    save(store, 5, 5)
    assert kept(store, 5, 7, 9) == [5, 7, 9]
    store.close()


def test_large_timelines_push_out_more(tmp_path: Path) -> None:
    """A hundred bytes fit: four small ones, or a large one and a small one. One that is larger than
    all of it has no room."""
    store = TimelineStore(tmp_path / "timelines.sqlite3", max_bytes=100)
    save(store, 1, 2, 3, 4, size=25)
    assert kept(store, 1, 2, 3, 4) == [1, 2, 3, 4]
    save(store, 5, size=70)
    assert kept(store, 1, 2, 3, 4, 5) == [4, 5]
    save(store, 6, size=101)
    assert kept(store, 4, 5, 6) == []
    store.close()


def test_only_the_service_may_read_it(tmp_path: Path) -> None:
    """Names of jobs and hosts are in it: no other user may read the file, nor those next to it."""
    store = TimelineStore(tmp_path / "timelines.sqlite3")
    save(store, 1)
    files = sorted(tmp_path.iterdir())
    assert files[0].name == "timelines.sqlite3"
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    store.close()


def test_threads_share_it(store: TimelineStore) -> None:
    """Requests read while the service stores."""
    threads = [
        threading.Thread(target=save, args=(store, *range(first, first + 50)))
        for first in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for _ in range(100):
        store.get("f1")
    for thread in threads:
        thread.join()
    assert len(kept(store, *range(300))) == 150


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Each use is an error that names the file, until the folder is there."""
    path = tmp_path / "none" / "timelines.sqlite3"
    store = TimelineStore(path)
    with pytest.raises(StoreError, match=f"^timelines: {path}: .*: check that its folder"):
        save(store, 1)
    assert kept(store, 1) == []
    path.parent.mkdir()
    save(store, 1)
    assert kept(store, 1) == [1]
    store.close()
