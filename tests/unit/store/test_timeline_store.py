"""Timelines on disk: the newest ones, within a bound; losing them costs a picture only."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.timelines import TimelineStore


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
