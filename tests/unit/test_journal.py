"""The journal: bounded, replayable from any surviving segment, harmless when the disk is not."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.journal import Journal, JournalLimits, read, segments
from frd.store.records import HEAD, Record, RecordKind, unbundled

NOW = AlignedNs(1_800_000_000_000_000_000)
SETTINGS = b'{"policy": {}}'
HELLO = Record(RecordKind.MESSAGE, NOW, 7, b"hello")


def nothing() -> Iterable[Record]:
    return ()


def journal(
    folder: Path,
    *,
    preamble: Callable[[], Iterable[Record]] = nothing,
    segment_bytes: int = 1000,
    total_bytes: int = 10_000,
    max_age_s: float = 0.0,
) -> Journal:
    return Journal(
        folder,
        settings=SETTINGS,
        preamble=preamble,
        now=NOW,
        limits=JournalLimits(segment_bytes, total_bytes, max_age_s),
    )


def message(number: int, size: int = 100) -> Record:
    return Record(RecordKind.MESSAGE, AlignedNs(NOW + number), 7, bytes([number % 256]) * size)


def write(target: Journal, records: Iterable[Record]) -> None:
    for record in records:
        target.append(record.kind, record.at, record.stream, record.payload)


def replayed(path: Path) -> tuple[list[Record], list[str]]:
    warnings: list[str] = []
    return list(read(path, warnings.append)), warnings


def test_a_bundle_takes_less_room_and_comes_back(tmp_path: Path) -> None:
    """Records that say much the same are few bytes on the disk, and themselves when read."""
    target = journal(tmp_path, segment_bytes=10_000)
    sent = [message(n, size=500) for n in range(10)]
    target.append_bundle(sent)
    target.append_bundle([])
    target.close()
    (path,) = segments(tmp_path)
    assert path.stat().st_size < 500
    assert replayed(path) == ([Record(RecordKind.START, NOW, 0, SETTINGS), *sent], [])


@pytest.mark.parametrize(
    "whole", [bytes(64 << 20), HEAD.pack(7, RecordKind.MESSAGE, 0, 0), b"\1" * 5], ids=len
)
def test_a_bundle_of_somebody_elses_is_refused(whole: bytes) -> None:
    """It unfolds to more than any bundle may, or ends within a record."""
    with pytest.raises(StoreError, match="here: a bundle that does not unpack"):
        unbundled(zlib.compress(whole), "here")


def test_what_is_no_bundle_and_what_is_newer_is_told_apart() -> None:
    """Bytes that zlib cannot read are damage; a kind of record that is not known yet is not."""
    with pytest.raises(StoreError, match="here: a bundle that does not unpack"):
        unbundled(b"no zlib at all", "here")
    with pytest.raises(StoreError, match=r"here: .* a newer frd wrote it"):
        unbundled(zlib.compress(HEAD.pack(0, 0x3F, 0, 0)), "here")


def test_more_between_two_ticks_than_one_write_takes(tmp_path: Path) -> None:
    """Thousands of small records, and a few of which each fills a write: all come back."""
    target = journal(tmp_path, segment_bytes=2_000_000, total_bytes=4_000_000)
    sent = [message(n, size=1) for n in range(3_000)] + [message(n, size=300_000) for n in range(3)]
    write(target, sent)
    target.close()
    assert target.dropped == 0
    records, warnings = replayed(tmp_path)
    assert (records[1:], warnings) == (sent, [])


def test_a_write_that_the_system_cuts_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes only some bytes of what it is given: the rest follows, in order."""
    target = journal(tmp_path, segment_bytes=10_000)
    sent = [message(n) for n in range(10)]
    write(target, sent)
    writev, write_some = os.writev, os.write
    monkeypatch.setattr(os, "writev", lambda fd, data: writev(fd, [b"".join(data)[:7]]))
    monkeypatch.setattr(os, "write", lambda fd, data: write_some(fd, data[:100]))
    target.close()
    records, warnings = replayed(tmp_path)
    assert (records[1:], warnings) == (sent, [])


def test_records_come_back_in_order(tmp_path: Path) -> None:
    """What was appended over several segments is read back once, without the preambles between."""
    target = journal(tmp_path, preamble=lambda: [HELLO])
    sent = [message(n) for n in range(30)]
    write(target, sent)
    target.tick(NOW)
    target.close()
    assert len(segments(tmp_path)) > 2
    records, warnings = replayed(tmp_path)
    assert records[0] == Record(RecordKind.START, NOW, 0, SETTINGS)
    assert records[1] == HELLO
    assert records[2:-1] == sent
    assert records[-1].kind is RecordKind.TICK
    assert warnings == []


def test_one_segment_replays_alone(tmp_path: Path) -> None:
    """A segment read without its elders begins with a START and what the live streams declared."""
    target = journal(tmp_path, preamble=lambda: [HELLO])
    write(target, (message(n) for n in range(30)))
    target.close()
    records, warnings = replayed(segments(tmp_path)[2])
    assert [r.kind for r in records[:2]] == [RecordKind.START, RecordKind.MESSAGE]
    assert records[1] == HELLO
    assert warnings == []


def test_oldest_segments_go_first(tmp_path: Path) -> None:
    """The folder stays within its bound for ever and the newest records are the ones kept."""
    target = journal(tmp_path, preamble=lambda: [HELLO])
    for number in range(500):
        write(target, [message(number)])
        target.tick(AlignedNs(NOW + number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    target.close()
    assert target.evicted > 5
    assert target.dropped == 0
    records, _ = replayed(tmp_path)
    assert records[0].kind is RecordKind.START
    kept = [r for r in records if r.kind is RecordKind.MESSAGE and r.payload != b"hello"]
    assert kept == [message(n) for n in range(500 - len(kept), 500)]


def test_what_is_old_goes_though_there_is_room(tmp_path: Path) -> None:
    """A quiet service for ten minutes, a journal of one: its oldest record is little older."""
    second, age_s, target = 1_000_000_000, 60, journal(tmp_path, max_age_s=60.0)
    for number in range(600):
        at = AlignedNs(NOW + number * second)
        target.append(RecordKind.MESSAGE, at, 7, b"rare")
        target.tick(at)
    target.close()
    records, _ = replayed(tmp_path)
    oldest = min(record.at for record in records)
    assert age_s * second <= at - oldest <= (age_s + age_s / 8 + 2) * second
    assert target.evicted > 50


def test_settings_that_change_are_recorded(tmp_path: Path) -> None:
    """What follows was decided by others: a record says so, and later segments begin with them."""
    target = journal(tmp_path)
    write(target, [message(1)])
    target.adopt(b"others", JournalLimits(1000, 5_000), AlignedNs(NOW + 2))
    write(target, [message(number) for number in range(3, 100)])
    target.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5_000
    records, _ = replayed(tmp_path)
    assert (records[0].kind, records[0].payload) == (RecordKind.START, b"others")

    kept = journal(tmp_path / "kept", segment_bytes=100_000, total_bytes=1_000_000)
    write(kept, [message(1)])
    kept.adopt(b"others", JournalLimits(), AlignedNs(NOW + 2))
    write(kept, [message(3)])
    kept.close()
    kinds = [RecordKind.START, RecordKind.MESSAGE, RecordKind.SETTINGS, RecordKind.MESSAGE]
    records, _ = replayed(tmp_path / "kept")
    assert [record.kind for record in records] == kinds
    assert records[2].payload == b"others"


def test_next_process_continues_beside_a_torn_tail(tmp_path: Path) -> None:
    """After a crash the torn record is reported, and the next process's records follow a START."""
    first = journal(tmp_path)
    write(first, [message(1)])
    first.close()
    (torn,) = segments(tmp_path)
    torn.write_bytes(torn.read_bytes()[:-3])
    second = journal(tmp_path, preamble=lambda: [HELLO])
    write(second, [message(2)])
    second.close()
    records, warnings = replayed(tmp_path)
    assert [r.kind for r in records[:2]] == [RecordKind.START, RecordKind.START]
    assert records[2:] == [HELLO, message(2)]
    assert len(warnings) == 1
    assert str(torn) in warnings[0]


def test_missing_segment_is_said(tmp_path: Path) -> None:
    """A hole in the numbers is reported, and reading goes on from the next preamble."""
    target = journal(tmp_path, preamble=lambda: [HELLO])
    write(target, (message(n) for n in range(30)))
    target.close()
    gone = segments(tmp_path)[1]
    gone.unlink()
    records, warnings = replayed(tmp_path)
    assert [r.kind for r in records].count(RecordKind.START) == 2
    assert len(warnings) == 1
    assert "missing" in warnings[0]


def test_damage_is_an_error_after_a_clean_prefix(tmp_path: Path) -> None:
    """A flipped byte in the middle gives the records before it, then an error with the offset."""
    target = journal(tmp_path, segment_bytes=100_000)
    write(target, (message(n) for n in range(10)))
    target.close()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    got: list[Record] = []

    def read_all() -> None:
        for record in read(path, pytest.fail):
            got.append(record)  # noqa: PERF402 (the records before the error count)

    with pytest.raises(StoreError, match=r"record at byte \d+ is damaged"):
        read_all()
    assert got[1:] == [message(n) for n in range(len(got) - 1)]
    assert len(got) > 3


def test_what_is_no_journal(tmp_path: Path) -> None:
    """An absent path, an empty folder and a foreign file are three clear errors."""
    with pytest.raises(StoreError, match="No such file"):
        replayed(tmp_path / "absent")
    with pytest.raises(StoreError, match="no segments"):
        replayed(tmp_path)
    (tmp_path / "00000001.frdj").write_bytes(b"something else")
    with pytest.raises(StoreError, match="not a journal segment"):
        replayed(tmp_path)


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A journal below a file fails at start with the path and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"journal: .*file/journal: .*--data-dir"):
        journal(tmp_path / "file" / "journal")


def test_full_disk_drops_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full records are dropped and counted; a later segment shows the hole."""
    target = journal(tmp_path, preamble=lambda: [HELLO])
    write(target, [message(1)])
    target.tick(NOW)
    real = os.writev
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(os, "writev", lambda _fd, data: real(full, data))
    write(target, [message(2)])
    target.tick(NOW)
    assert os.strerror(errno.ENOSPC) in target.error
    assert target.dropped == 2
    write(target, [message(3)])
    assert target.dropped == 3
    monkeypatch.undo()
    os.close(full)
    later = Record(RecordKind.MESSAGE, AlignedNs(NOW + 60_000_000_000), 7, b"later")
    write(target, [later])
    assert target.error == ""
    target.close()
    records, warnings = replayed(tmp_path)
    assert [r.payload for r in records if r.kind is RecordKind.MESSAGE] == [
        b"hello",
        message(1).payload,
        b"hello",
        b"later",
    ]
    assert len(warnings) == 1


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pending when the service ends cannot be written: it is counted, and said why."""
    target = journal(tmp_path)
    write(target, [message(1), message(2)])
    real = os.writev
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(os, "writev", lambda _fd, data: real(full.fileno(), data))
        target.close()
    assert os.strerror(errno.ENOSPC) in target.error
    assert target.dropped == 2
    assert replayed(tmp_path) == ([Record(RecordKind.START, NOW, 0, SETTINGS)], [])


def test_preamble_too_large_for_the_bound(tmp_path: Path) -> None:
    """Declarations that would fill the journal switch it off with a reason, not ingest."""
    declared: list[Record] = []
    target = journal(tmp_path, preamble=lambda: declared)
    declared.append(message(1, size=3000))
    write(target, (message(n) for n in range(20)))
    assert "raise the bound" in target.error
    assert target.dropped > 0
    target.close()
    assert all(path.stat().st_size for path in segments(tmp_path)), "half of it is worth nothing"


def test_record_greater_than_the_bound(tmp_path: Path) -> None:
    """A record that cannot fit is dropped and counted; the folder stays within its bound."""
    target = journal(tmp_path)
    write(target, [message(1, size=20_000)])
    assert target.dropped == 1
    assert "raise the bound" in target.error
    target.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
