"""A database that is used when it can be: damage is moved aside, and a full disk is waited for."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.store.database import Database
from tests.world.small_disk import fill, small_disk

SCHEMA = "CREATE TABLE things (id INTEGER PRIMARY KEY, body BLOB NOT NULL);"


def opened(path: Path, *, is_cache: bool = False) -> closing[Database]:
    return closing(Database(path, "things", SCHEMA, is_cache=is_cache))


def save(db: Database, number: int, size: int = 10) -> None:
    with db.transaction() as writer:
        writer.execute("INSERT OR REPLACE INTO things VALUES (?, zeroblob(?))", (number, size))


def ids(db: Database) -> list[int]:
    return [number for (number,) in db.rows("SELECT id FROM things WHERE body IS NOT NULL")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a database with forty rows, on more than ten pages."""
    path = tmp_path / "things.sqlite3"
    with opened(path) as db:
        for number in range(40):
            save(db, number, 1_000)
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database, but more than a hundred bytes of text" * 500)


def a_folder(path: Path) -> None:
    path.unlink()
    (path / "things").mkdir(parents=True)


def without_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE things")


def another_table(path: Path) -> None:
    without_a_table(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE things (name TEXT)")


def another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 0")


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def cut_short(path: Path) -> None:
    os.truncate(path, 60)


def not_to_be_written(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[18] = 9  # of a file format that SQLite only reads
    path.write_bytes(content)


def a_schema_of_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4095] ^= 0x80  # the end of CREATE TABLE
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        *(garbage, a_folder, without_a_table, another_table, another_version, cut_off, cut_short),
        *(not_to_be_written, a_schema_of_bytes),
    ],
)
@pytest.mark.parametrize("is_cache", [False, True])
def test_a_damaged_file_is_moved_aside(
    path: Path, damage: Callable[[Path], None], is_cache: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it shows when the file is opened or when it is read, then there is a new file, the
    damaged one is kept as it was, and the log has a line."""
    damage(path)
    before = None if path.is_dir() else path.read_bytes()
    with opened(path, is_cache=is_cache) as db:
        with suppress(StoreError):
            ids(db)
        with suppress(StoreError):
            save(db, 1)
        save(db, 1)
        assert ids(db) == [1]
        assert db.damaged == 1
    aside = path.with_name("things.sqlite3.damaged")
    assert before is None or aside.read_bytes()[100:] == before[100:]  # SQLite counts changes
    (line,) = [record.getMessage() for record in caplog.records if "damaged" in record.message]
    assert line == f"things: {path}: damaged: moved to {aside}"


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_file_is_begun(path: Path, content: bytes) -> None:
    """A crash may leave a file without content."""
    path.write_bytes(content)
    with opened(path) as db:
        save(db, 1)
        assert ids(db) == [1]


@pytest.mark.parametrize("seed", range(60))
def test_bytes_anywhere(path: Path, seed: int) -> None:
    """A block of the file is overwritten while it is in use or before, its log included: each use
    either works or fails clearly, and the third time rows are written and read."""
    dice = random.Random(seed)
    with opened(path) as db:
        save(db, 1, 5_000)
        victim = path.with_name(path.name + dice.choice(["", "", "-wal"]))
        if dice.random() < 0.5:
            db.close()
        size = victim.stat().st_size if victim.exists() else 0
        if size:
            with victim.open("r+b") as file:
                file.seek(104 + dice.randrange(size))  # behind the header with its version
                file.write(dice.randbytes(dice.choice([1, 16, 512, 5_000])))
    with opened(path) as db:
        for number in range(3):
            with suppress(StoreError):
                ids(db)
            with suppress(StoreError):
                save(db, 100 + number, 2_000)
        save(db, 200)
        assert 200 in ids(db)


def test_one_damaged_cache_is_kept(path: Path) -> None:
    """The second one takes the place of the first, whatever that is."""
    for damage in (garbage, a_folder, garbage):
        damage(path)
        with opened(path, is_cache=True) as db:
            save(db, 1)
            assert db.damaged == 1
    assert {one.name for one in path.parent.iterdir()} == {path.name, f"{path.name}.damaged"}


def test_no_other_damaged_file_is_deleted(path: Path) -> None:
    """Findings were moved aside before: nothing is stored, with a line about both files, until the
    first one is moved away."""
    aside = path.with_name(f"{path.name}.damaged")
    aside.write_text("what was there")
    garbage(path)
    with opened(path) as db:
        with pytest.raises(StoreError, match=rf"move it away \(not to {aside}: it exists\)"):
            save(db, 1)
        assert aside.read_text() == "what was there"
        aside.unlink()
        with suppress(StoreError):
            save(db, 1)
        save(db, 1)
        assert aside.read_bytes().startswith(b"not a database")


# -- the disk ------------------------------------------------------------------------------------


def test_a_disk_that_is_full_from_the_beginning(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no row, and one line in the log; with room again, the schema and rows are written
    without another word."""
    filler = fill(disk)
    with opened(disk / "things") as db:
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "full: free some space: nothing is stored until then" in caplog.text
        for _ in range(2):
            assert ids(db) == []
            with pytest.raises(StoreError, match="free some space"):
                save(db, 1)
        filler.unlink()
        save(db, 1)
        assert ids(db) == [1]
        assert db.damaged == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_full_disk_is_read(disk: Path, is_killed: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The last process ended, or was killed, before the disk was full: the next one reads all
    rows, says that it writes none, and writes when there is room."""
    path = disk / "things"
    with opened(path) as db:
        save(db, 1)
        kept = {one: one.read_bytes() for one in disk.iterdir()}
    if is_killed:
        for one, content in kept.items():
            one.write_bytes(content)
    filler = fill(disk)
    with opened(path) as db:
        assert "nothing is stored until then" in caplog.text
        for _ in range(2):
            assert ids(db) == [1]
            with pytest.raises(StoreError, match="free some space"):
                save(db, 2, 100_000)
        filler.unlink()
        save(db, 2, 100_000)
        assert ids(db) == [1, 2]
        with closing(sqlite3.connect(path)) as other:  # it is shared as before
            assert other.execute("SELECT count(*) FROM things").fetchone() == (2,)
        assert db.damaged == 0


@pytest.mark.parametrize("is_cache", [False, True])
def test_a_read_only_disk_is_no_damage(disk: Path, is_cache: bool) -> None:
    """An error of the disk has made it read-only: nothing is moved, and nothing is written until
    it is writable."""
    path = disk / "things"
    with opened(path, is_cache=is_cache) as db:
        save(db, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with opened(path, is_cache=is_cache) as db:
        for _ in range(2):
            with pytest.raises(StoreError):
                save(db, 2)
            assert ids(db) == [1]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        save(db, 2)
        assert ids(db) == [1, 2]
        assert db.damaged == 0
    assert not path.with_name("things.damaged").exists()
