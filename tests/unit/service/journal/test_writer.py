"""The journal's writer: whole at close, bounded, and replayable from any of its segments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frd.model import AlignedNs, MemoryColumns, NodeNs, NodeRawNs, WatermarkColumns
from frd.service.journal import writer
from frd.service.journal.writer import JournalWriter
from frd.store.journal import JournalLimits, read, segments
from frd.store.records import Record, RecordKind
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, Declare, Goodbye, Hello, Statuses, Watermarks

HELLO = Hello(PROTOCOL, "0", "n", "b", "s", NodeNs(1), NodeRawNs(1))


def start(folder: Path, **limits: int) -> JournalWriter:
    return JournalWriter(folder, settings=b"{}", now=AlignedNs(1), limits=JournalLimits(**limits))


def records(path: Path) -> list[Record]:
    warnings: list[str] = []
    found = list(read(path, warnings.append))
    assert warnings == []
    return found


def test_small_messages_are_bundled(tmp_path: Path) -> None:
    """Messages that agents send each second are compressed, and come back as received."""
    samples = MemoryColumns(
        series=np.arange(8, dtype=np.uint32),
        capacity=np.full(8, 80 << 30, np.int64),
        begin_ns=np.arange(10, dtype=np.int64) * 100_000_000,
        end_ns=np.arange(10, dtype=np.int64) * 100_000_000 + 1,
        values=np.full((8, 10), 30 << 30, np.int64),
    )
    data = encode_agent(samples)
    recorder = start(tmp_path)
    journal = recorder.whole()
    journal.record(RecordKind.OPENED, AlignedNs(2), 7)
    for at in range(1000):
        journal.message(7, AlignedNs(at), data, samples)
    journal.tick(AlignedNs(1000))
    recorder.close()
    assert [r.payload for r in records(tmp_path) if r.kind is RecordKind.MESSAGE] == [data] * 1000
    assert segments(tmp_path)[0].stat().st_size < 400 * len(data)


def test_the_order_of_a_batch_stays(tmp_path: Path) -> None:
    """Small messages of two streams around a large one, an alignment, a declaration and an end."""
    recorder = start(tmp_path)
    journal = recorder.whole()
    journal.record(RecordKind.OPENED, AlignedNs(2), 1)
    journal.message(1, AlignedNs(3), b"small", Statuses(()))
    journal.record(RecordKind.ALIGNED, AlignedNs(4), 1, b"alignment")
    journal.message(1, AlignedNs(5), b"small", Statuses(()))
    journal.message(2, AlignedNs(6), b"large" * 10_000, Statuses(()))
    journal.message(2, AlignedNs(7), b"small", Statuses(()))
    journal.message(1, AlignedNs(8), b"declare", Declare())
    journal.message(1, AlignedNs(9), b"small", Statuses(()))
    journal.record(RecordKind.CLOSED, AlignedNs(10), 2)
    journal.message(1, AlignedNs(11), b"small", Statuses(()))
    journal.tick(AlignedNs(12))
    recorder.close()
    assert [record.at for record in records(tmp_path)[1:]] == list(range(2, 13))


def test_each_segment_begins_with_the_live_streams(tmp_path: Path) -> None:
    """The journal fills several segments; each alone has the declarations of the live streams, and
    the learned pauses."""
    recorder = start(tmp_path, segment_bytes=40_000, total_bytes=1_000_000)
    journal = recorder.whole()
    for stream in (1, 2):
        journal.record(RecordKind.OPENED, AlignedNs(2), stream)
        journal.message(stream, AlignedNs(3), b"hello %d" % stream, HELLO)
        journal.message(stream, AlignedNs(3), b"declare %d" % stream, Declare())
        journal.record(RecordKind.ALIGNED, AlignedNs(3), stream, b"at first")
        journal.record(RecordKind.ALIGNED, AlignedNs(4), stream, b"later")
    journal.record(RecordKind.LEARNED, AlignedNs(4), payload=b"a pause")
    journal.record(RecordKind.LEARNED, AlignedNs(4), payload=b"two pauses")
    journal.record(RecordKind.CLOSED, AlignedNs(4), 1)
    for at in range(5, 25):
        journal.message(2, AlignedNs(at), bytes(17_000), Statuses(()))
        journal.tick(AlignedNs(at))
    journal.tick(AlignedNs(200))
    recorder.close()
    whole = records(tmp_path)
    assert sum(r.payload == b"declare 2" for r in whole) == 1
    assert sum(r.payload == bytes(17_000) for r in whole) == 20
    last = segments(tmp_path)[-1]
    assert [(r.kind, r.stream, r.payload) for r in records(last)][1:6] == [
        (RecordKind.LEARNED, 0, b"two pauses"),
        (RecordKind.OPENED, 2, b""),
        (RecordKind.MESSAGE, 2, b"hello 2"),
        (RecordKind.MESSAGE, 2, b"declare 2"),
        (RecordKind.ALIGNED, 2, b"later"),
    ]


def test_each_segment_begins_with_the_cells_that_are_here(tmp_path: Path) -> None:
    """Of three cells one goes to another replica: the last segment begins with the other two, as
    they are now, and nothing is recorded of the one that has left."""
    recorder = start(tmp_path, segment_bytes=40_000, total_bytes=1_000_000)
    cells = [recorder.cell(number, b"{}", AlignedNs(2)) for number in (0, 7, 9)]
    for stream, cell in enumerate(cells, 1):
        cell.record(RecordKind.OPENED, AlignedNs(3), stream)
        cell.record(RecordKind.LEARNED, AlignedNs(3), payload=b"a pause")
    cells[1].end(AlignedNs(4))
    cells[1].record(RecordKind.CLOSED, AlignedNs(5), 2)
    cells[2].adopt(b'{"version": "2"}', JournalLimits(segment_bytes=40_000), AlignedNs(5))
    for at in range(6, 26):
        cells[0].message(1, AlignedNs(at * 10**9), bytes(17_000), Statuses(()))
        cells[0].tick(AlignedNs(at * 10**9))
    recorder.close()
    assert [r.stream for r in records(tmp_path) if r.kind is RecordKind.LEFT] == [1, 8, 10, 8]
    assert not [r for r in records(tmp_path) if r.kind is RecordKind.CLOSED]
    last = records(segments(tmp_path)[-1])
    assert [(r.kind, r.stream, r.payload) for r in last][1:7] == [
        (RecordKind.START, 1, b"{}"),
        (RecordKind.START, 10, b'{"version": "2"}'),
        (RecordKind.LEARNED, 1, b"a pause"),
        (RecordKind.LEARNED, 10, b"a pause"),
        (RecordKind.OPENED, 1, b"1"),
        (RecordKind.OPENED, 3, b"10"),
    ]


def test_a_slow_disk_drops_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much is waiting: messages are dropped and counted, except those that later ones need."""
    monkeypatch.setattr(writer, "MAX_WAITING_BYTES", -1)
    none = np.zeros(0, np.int64)
    index = np.zeros(0, np.uint32)
    columns = WatermarkColumns(index, index, none, none, none, none, index, none)
    recorder = start(tmp_path)
    journal = recorder.whole()
    journal.message(1, AlignedNs(2), b"watermarks", Watermarks(0, columns, NodeNs(1), NodeRawNs(1)))
    journal.message(1, AlignedNs(3), b"declare", Declare())
    journal.message(1, AlignedNs(4), b"goodbye", Goodbye(""))
    journal.record(RecordKind.CLOSED, AlignedNs(5), 1)
    recorder.close()
    assert recorder.dropped == 2
    assert [(r.kind, r.payload) for r in records(tmp_path)[1:]] == [
        (RecordKind.MESSAGE, b"declare"),
        (RecordKind.CLOSED, b""),
    ]
