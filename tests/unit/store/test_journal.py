"""The journal: bounded, replayable from any surviving segment, harmless when the disk is not."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frd.errors import StoreError
from frd.model import YEAR_2200_NS, AlignedNs
from frd.store.journal import Journal, JournalLimits, read, segments
from frd.store.records import Record, RecordKind, checksum
from tests.journals import execute, size
from tests.world.small_disk import fill, small_disk

NOW = AlignedNs(1_800_000_000_000_000_000)
SETTINGS = b'{"policy": {}}'
START = Record(RecordKind.START, NOW, 0, SETTINGS)
HELLO = Record(RecordKind.MESSAGE, NOW, 7, b"hello")
MIB = 1024 * 1024


def nothing() -> Iterable[Record]:
    return ()


def journal(
    folder: Path,
    *,
    preamble: Callable[[], Iterable[Record]] = nothing,
    segment_bytes: int = 1000,
    total_bytes: int = MIB,
    max_age_s: float = 0.0,
) -> Journal:
    return Journal(
        folder,
        settings=SETTINGS,
        preamble=preamble,
        begun_at=NOW,
        limits=JournalLimits(segment_bytes, total_bytes, max_age_s),
    )


def noise(number: int, size: int) -> bytes:
    """Bytes that do not compress, the same for each `number`."""
    out = bytearray()
    value = number + 1
    while len(out) < size:
        value = value * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        out += (value >> 32).to_bytes(4, "little")
    return bytes(out[:size])


def message(number: int, size: int = 100) -> Record:
    return Record(RecordKind.MESSAGE, AlignedNs(NOW + number), 7, noise(number, size))


def write(target: Journal, records: Iterable[Record]) -> None:
    for record in records:
        target.append([record])


def written(folder: Path, records: Iterable[Record], **options: Any) -> Journal:
    """A journal of `records`, closed."""
    target = journal(folder, **options)
    write(target, records)
    target.close()
    return target


def replayed(path: Path) -> tuple[list[Record], list[str]]:
    warnings: list[str] = []
    return list(read(path, warnings.append)), warnings


def test_records_of_all_sizes(tmp_path: Path) -> None:
    """Thousands of small records and a few large ones in one batch are all read back."""
    target = journal(tmp_path, segment_bytes=2 * MIB, total_bytes=32 * MIB)
    small = [message(n, size=1) for n in range(3_000)]
    sent = [*small, *(message(n, size=MIB + n) for n in range(6)), *small]
    target.append(sent)
    target.close()
    assert target.dropped == 0
    records, warnings = replayed(tmp_path)
    assert (records[1:], warnings) == (sent, [])


def test_a_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    """A reader sees all batches before the writer closes, and delays neither writing nor
    deleting."""
    target = journal(tmp_path, preamble=lambda: [HELLO], segment_bytes=MIB, total_bytes=9 * MIB)
    write(target, (message(n, 5_000) for n in range(40)))
    reading = read(tmp_path, pytest.fail)
    first = [next(reading) for _ in range(3)]
    assert first == [START, HELLO, message(0, 5_000)]
    write(target, (message(n, 5_000) for n in range(40, 60)))
    assert target.dropped == 0
    assert [r for r in reading if r != HELLO] == [message(n, 5_000) for n in range(1, 60)]
    target.close()


def test_segments_deleted_during_a_read(tmp_path: Path) -> None:
    """The writer deletes segments before the reader reaches them: a warning, then the next
    preamble."""
    written(tmp_path, (message(n) for n in range(30)), preamble=lambda: [HELLO])
    warnings: list[str] = []
    reading = read(tmp_path, warnings.append)
    next(reading)
    segments(tmp_path)[1].unlink()
    assert [record.kind for record in reading].count(RecordKind.START) == 1
    (warning,) = warnings
    assert "missing" in warning


def test_oldest_segments_go_first(tmp_path: Path) -> None:
    """The folder stays within its bound, and the newest records are kept."""
    target = journal(tmp_path, preamble=lambda: [HELLO], segment_bytes=100_000)
    for number in range(200):
        target.append([message(number, size=10_000)])
        assert size(tmp_path) <= MIB
    target.close()
    assert target.evicted > 5
    assert target.dropped == 0
    records, _ = replayed(tmp_path)
    assert records[0].kind is RecordKind.START
    kept = [r for r in records if r.kind is RecordKind.MESSAGE and r.payload != b"hello"]
    assert kept == [message(n, size=10_000) for n in range(200 - len(kept), 200)]
    assert sum(len(record.payload) for record in kept) > MIB / 4


def test_old_records_are_deleted(tmp_path: Path) -> None:
    """Two minutes of rare records in a journal of one minute: its oldest record is little older."""
    second, age_s, target = 1_000_000_000, 60, journal(tmp_path, max_age_s=60.0)
    for number in range(120):
        at = AlignedNs(NOW + number * second)
        target.append([Record(RecordKind.MESSAGE, at, 7, b"rare")])
    target.close()
    records, _ = replayed(tmp_path)
    oldest = min(record.at for record in records)
    assert age_s * second <= at - oldest <= (age_s + age_s / 8 + 2) * second
    assert target.evicted > 5


def test_settings_that_change_are_recorded(tmp_path: Path) -> None:
    """A record says that other settings apply from here on, and later segments begin with them."""
    target = journal(tmp_path, segment_bytes=50_000)
    write(target, [message(1)])
    target.adopt(b"others", JournalLimits(50_000, MIB // 4), AlignedNs(NOW + 2))
    write(target, [message(number, size=10_000) for number in range(3, 48)])
    target.close()
    records, _ = replayed(tmp_path)
    assert (records[0].kind, records[0].payload) == (RecordKind.START, b"others")

    kept = journal(tmp_path / "kept", segment_bytes=100_000)
    write(kept, [message(1)])
    kept.adopt(b"others", JournalLimits(), AlignedNs(NOW + 2))
    write(kept, [message(3)])
    kept.close()
    kinds = [RecordKind.START, RecordKind.MESSAGE, RecordKind.SETTINGS, RecordKind.MESSAGE]
    records, _ = replayed(tmp_path / "kept")
    assert [record.kind for record in records] == kinds
    assert records[2].payload == b"others"


def test_a_lower_bound_deletes_immediately(tmp_path: Path) -> None:
    """The bound is lowered: old segments are deleted with the next batch."""
    target = journal(tmp_path, segment_bytes=400_000, total_bytes=8 * MIB)
    write(target, [message(number, size=20_000) for number in range(220)])
    assert size(tmp_path) > 4 * MIB
    target.adopt(SETTINGS, JournalLimits(400_000, 2 * MIB), AlignedNs(NOW + 220))
    assert size(tmp_path) <= 2 * MIB
    target.close()
    assert target.dropped == 0


def test_a_power_loss_tears_the_log(tmp_path: Path) -> None:
    """The end of the write-ahead log is lost: the records before it are read, and those of the
    next process follow a START."""
    first = journal(tmp_path)
    write(first, [message(1), message(2)])
    (path,) = segments(tmp_path)
    log = path.with_name(f"{path.name}-wal")
    files = {file: file.read_bytes() for file in (path, log)}
    first.close()
    path.write_bytes(files[path])
    log.write_bytes(files[log][:-3])
    written(tmp_path, [message(3)], preamble=lambda: [HELLO])
    assert replayed(tmp_path) == ([START, message(1), START, HELLO, message(3)], [])


@pytest.mark.parametrize("content", [b"", None])
def test_a_segment_that_was_only_begun(tmp_path: Path, content: bytes | None) -> None:
    """A crash before the first row was written: a warning, and other segments are read."""
    journal(tmp_path).close()
    empty = tmp_path / "00000002.sqlite3"
    if content is None:
        with closing(sqlite3.connect(empty)) as db:
            db.execute("PRAGMA journal_mode = WAL")
    else:
        empty.write_bytes(content)
    written(tmp_path, [message(1)])
    records, warnings = replayed(tmp_path)
    assert records == [START, START, message(1)]
    assert warnings == [f"journal: {empty}: the segment is empty"]


def test_a_killed_writer_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    """The process is killed right after it has appended: every record is read."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.store.test_journal import journal, message, write\n"
        "write(journal(Path(sys.argv[1])), [message(n) for n in range(50)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, check=False)
    assert killed.returncode == -9
    assert replayed(tmp_path) == ([START, *(message(n) for n in range(50))], [])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE batches SET body = zeroblob(length(body))", "wrong checksum"),
        ("UPDATE batches SET preamble = 1", "wrong checksum"),
        ("UPDATE batches SET last_ns = 0", "wrong checksum"),
        ("DELETE FROM batches", "it is missing"),
    ],
)
def test_damage_is_an_error_after_a_clean_prefix(tmp_path: Path, change: str, what: str) -> None:
    """A damaged row: the records before it, then an error that names it."""
    written(tmp_path, (message(n) for n in range(10)), segment_bytes=100_000)
    (path,) = segments(tmp_path)
    execute(path, f"{change} WHERE id = 6")
    got: list[Record] = []

    def read_all() -> None:
        for record in read(tmp_path, pytest.fail):
            got.append(record)  # noqa: PERF402 (the records before the error count)

    with pytest.raises(StoreError, match=f"row 6 is damaged: {what}"):
        read_all()
    assert got == [START, *(message(n) for n in range(4))]


def forge(segment: Path, body: bytes) -> None:
    """The last row, with a checksum that fits."""
    row = execute(segment, "SELECT id, preamble, first_ns, last_ns, compressed FROM batches")[-1]
    crc = checksum(row, body)
    execute(segment, "UPDATE batches SET crc = ?, body = ? WHERE id = ?", crc, body, row[0])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"no zlib at all", "damaged"),
        (zlib.compress(bytes(80 << 20)), "over 67108864 bytes"),
        (zlib.compress(b"\xc1"), "damaged"),
        (zlib.compress(msgspec.msgpack.encode([(3, 1, 1)])), "damaged"),
        (zlib.compress(msgspec.msgpack.encode([(63, 1, 1, b"")])), "a newer frd wrote it"),
    ],
    ids=["no zlib", "a bomb", "no msgpack", "too short", "newer"],
)
def test_a_foreign_row_is_refused(tmp_path: Path, body: bytes, what: str) -> None:
    """A row that cannot be decoded, is too large when decompressed, or is of a newer frd."""
    written(tmp_path, [message(1)])
    forge(segments(tmp_path)[0], body)
    with pytest.raises(StoreError, match=f"row 2.*{what}"):
        replayed(tmp_path)


def test_a_damaged_schema_is_an_error(tmp_path: Path) -> None:
    """SQLite quotes the damaged schema in its message, which is then not UTF-8."""
    journal(tmp_path).close()
    (path,) = segments(tmp_path)
    content = bytearray(path.read_bytes())
    content[16383] ^= 0x80  # the last byte of the first page: the end of CREATE TABLE
    path.write_bytes(content)
    with pytest.raises(StoreError, match="name a journal folder"):
        list(read(tmp_path, lambda _: None))


def test_what_is_no_journal(tmp_path: Path) -> None:
    """An absent path, an empty folder and foreign files are clear errors; a folder
    below a file is one of the writer, which drops its records."""
    with pytest.raises(StoreError, match="No such file"):
        replayed(tmp_path / "absent")
    with pytest.raises(StoreError, match="no segments"):
        replayed(tmp_path)
    (tmp_path / "00000001.sqlite3").write_bytes(b"something else" * 100)
    with pytest.raises(StoreError, match="not a database: name a journal folder"):
        replayed(tmp_path)
    execute(tmp_path / "other.sqlite3", "CREATE TABLE other (id)")
    with pytest.raises(StoreError, match="not a journal segment"):
        replayed(tmp_path / "other.sqlite3")
    journal(tmp_path / "new").close()
    execute(tmp_path / "new" / "00000001.sqlite3", "PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="a newer frd wrote it"):
        replayed(tmp_path / "new")
    target = journal(tmp_path / "other.sqlite3" / "journal")
    target.append([message(1)])
    assert re.match(r"journal: .*sqlite3/journal: .*--data-dir", target.error)
    assert target.dropped == 1


@pytest.mark.parametrize(
    "change",
    [
        ("ALTER TABLE batches RENAME TO b", "CREATE VIEW batches AS SELECT * FROM b"),
        ("DROP TABLE batches", "CREATE VIEW batches AS SELECT 1, 0, 0, 0, 0, 0, x''"),
        ("CREATE TRIGGER t AFTER INSERT ON batches BEGIN SELECT 1; END",),
        ("ALTER TABLE batches ADD COLUMN more AS (hex(zeroblob(1 << 30)))",),
        ("DROP TABLE batches", "CREATE VIRTUAL TABLE batches USING fts5(body)"),
    ],
)
def test_only_the_table_is_read(tmp_path: Path, change: tuple[str, ...]) -> None:
    """A database with a view, a trigger, a computed column or a virtual table in place of the
    table, or in addition to it, was made by another program: nothing of it is evaluated."""
    journal(tmp_path).close()
    (path,) = segments(tmp_path)
    for statement in change:
        execute(path, statement)
    with pytest.raises(StoreError, match="not a journal segment"):
        replayed(tmp_path)


@pytest.mark.parametrize("at", [-1, 2**63, YEAR_2200_NS])
def test_a_hostile_time_is_damage(tmp_path: Path, at: int) -> None:
    """A record of a time that no clock shows is refused, with the row."""
    journal(tmp_path).close()
    forge(segments(tmp_path)[0], zlib.compress(msgspec.msgpack.encode([(5, at, 0, b"")])))
    with pytest.raises(StoreError, match="row 1 is damaged"):
        replayed(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def test_full_disk_drops_and_recovers(disk: Path) -> None:
    """While the disk is full records are dropped and counted; a later preamble shows the gap."""
    target = journal(disk, preamble=lambda: [HELLO], total_bytes=8 * MIB, segment_bytes=MIB)
    write(target, [message(1)])
    filler = fill(disk)
    target.append([message(2, 10_000), message(2, 10_000)])
    assert "free some space" in target.error
    assert target.dropped == 2
    write(target, [message(3)])
    assert target.dropped == 3, "not yet tried again"
    open_files = len(os.listdir("/proc/self/fd"))
    for second in (20, 40):
        at = AlignedNs(NOW + second * 1_000_000_000)
        write(target, [Record(RecordKind.MESSAGE, at, 7, b"lost")])
        assert "free some space" in target.error
    assert target.dropped == 5
    assert len(segments(disk)) == 1, "a part of a preamble stays"
    assert len(os.listdir("/proc/self/fd")) == open_files
    filler.unlink()
    later = Record(RecordKind.MESSAGE, AlignedNs(NOW + 60_000_000_000), 7, b"later")
    write(target, [later])
    assert target.error == ""
    target.close()
    records, warnings = replayed(disk)
    assert [r.payload for r in records if r.kind is RecordKind.MESSAGE] == [
        b"hello",
        message(1).payload,
        b"hello",
        b"later",
    ]
    assert len(warnings) == 1


def test_a_disk_that_is_full_at_the_start(disk: Path) -> None:
    """There is not even a folder: records are dropped; ten seconds after there is room, the folder
    and the first segment are made, with the preamble."""
    (disk / "file").write_text("")
    filler = fill(disk)
    target = journal(disk / "file" / "journal", preamble=lambda: [HELLO])
    write(target, [message(1)])
    assert (target.dropped, target.error != "") == (1, True)
    target.close()
    target = journal(disk / "journal", preamble=lambda: [HELLO])
    write(target, [message(1)])
    assert "free some space" in target.error
    assert target.dropped == 1
    filler.unlink()
    (disk / "journal").rmdir()
    write(target, [message(2)])
    assert target.dropped == 2, "not yet tried again"
    write(target, [Record(RecordKind.MESSAGE, AlignedNs(NOW + 20_000_000_000), 7, b"later")])
    assert target.error == ""
    target.close()
    records, _ = replayed(disk / "journal")
    assert [r.payload for r in records if r.kind is RecordKind.MESSAGE] == [b"hello", b"later"]


def test_a_segment_replaces_no_other_file(tmp_path: Path) -> None:
    """A file with the name of the next segment stays, and the journal continues after it."""
    target = journal(tmp_path)
    other = tmp_path / "00000002.sqlite3"
    other.write_bytes(b"kept")
    write(target, map(message, range(20)))
    assert "File exists" in target.error
    assert other.read_bytes() == b"kept"
    target.append([Record(RecordKind.TICK, AlignedNs(NOW + 60_000_000_000), 0, b"")])
    target.close()
    assert not target.error
    assert segments(tmp_path)[-1].name > other.name


def test_preamble_too_large_for_the_bound(tmp_path: Path) -> None:
    """Declarations that exceed the journal's bound stop the journal with a reason, not ingest."""
    declared: list[Record] = []
    target = journal(tmp_path, preamble=lambda: declared)
    declared.append(message(1, size=MIB // 3))
    write(target, (message(n) for n in range(20)))
    assert "raise the bound" in target.error
    assert target.dropped > 0
    target.close()
    records, warnings = replayed(tmp_path)
    assert declared[0] not in records
    assert warnings == []


def test_record_greater_than_the_bound(tmp_path: Path) -> None:
    """A record that cannot fit is dropped and counted; earlier records stay."""
    target = journal(tmp_path, segment_bytes=MIB)
    write(target, [message(1), message(2, size=2 * MIB)])
    assert target.dropped == 1
    assert target.evicted == 0
    assert "raise the bound" in target.error
    target.close()
    assert size(tmp_path) <= MIB
    assert replayed(tmp_path)[0] == [START, message(1)]
