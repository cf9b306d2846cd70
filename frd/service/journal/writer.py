"""The record of accepted input, as a cell writes it; what it needs for a replay.

The journal on the local disk is a thread, so that a slow disk never delays the event loop.

The event loop collects records and passes them to the thread in batches, at ticks of an engine or
when a batch is large. The cells of a process share it. If the thread falls behind, messages are
dropped and counted, except those that later records depend on (streams, declarations). Only the
thread knows which streams are live *at its position in the journal*, so it makes the preamble of a
new segment.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from frd.model import AlignedNs
from frd.store.journal import Journal, JournalLimits
from frd.store.records import OF_STREAMS, Record, RecordKind, cell_tag
from frd.wire.messages import AgentEvent, Declare, Hello, ResponsePart

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_NS: Final = 200_000_000
"""Between two batches in a cluster, where many cells tick."""
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
_Batch: TypeAlias = list[tuple[Record, bool]]
"""Records; the flag is true if the record belongs to its stream's preamble."""

log = logging.getLogger(__name__)


class Log(Protocol):
    """The methods are for the event loop. Without an implementation they do nothing."""

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        """Anything but a message or a tick; see `RecordKind`."""
        return

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> None:
        """An accepted message."""
        return

    def tick(self, at: AlignedNs) -> None:
        """The engine advanced; what waits is written now."""
        return

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """The settings and limits of all later records."""
        return

    def end(self, at: AlignedNs) -> None:
        """The cell is no longer here: nothing is recorded any more."""
        return


class JournalWriter:
    """The journal of a process, and its thread; `cell` is what writes into it."""

    def __init__(
        self, folder: Path, *, settings: bytes, now: AlignedNs, limits: JournalLimits
    ) -> None:
        self._preamble = Preamble()
        """Of what the thread has written."""
        self._journal = Journal(
            folder, settings=settings, preamble=self._preamble.records, begun_at=now, limits=limits
        )
        self._adopted = settings, limits
        self._batch: _Batch = []
        self._batch_bytes = 0
        self._handed_over_at = now
        self._sent_bytes = 0
        self._written_bytes = 0
        self._overflowed = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Calls for the thread; None ends it."""
        self._thread = threading.Thread(target=self._write, name="frd-journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that are not in the journal."""
        return self._overflowed + self._journal.dropped

    @property
    def evicted(self) -> int:
        """Segments deleted to stay within the limits."""
        return self._journal.evicted

    def whole(self) -> CellJournal:
        """For a service without a cluster: its only cell begins and ends with the process."""
        return CellJournal(self, 0)

    def cell(self, number: int, settings: bytes, now: AlignedNs) -> CellJournal:
        """For a cell of a cluster, which begins now."""
        journal = CellJournal(self, number + 1)
        journal.record(RecordKind.LEFT, now)
        journal.record(RecordKind.START, now, payload=settings)
        return journal

    def put(self, record: Record, *, declares: bool = False, may_drop: bool = False) -> None:
        """`declares`: later records of the same stream depend on it."""
        waiting = self._batch_bytes + self._sent_bytes - self._written_bytes
        if may_drop and waiting > MAX_WAITING_BYTES:
            self._overflowed += 1
            return
        self._batch.append((record, declares))
        self._batch_bytes += len(record.payload)
        if self._batch_bytes > _BATCH_BYTES:
            self._hand_over(record.at)

    def flush(self, at: AlignedNs, every_ns: int) -> None:
        """Pass what waits to the thread, if that was last done so long ago."""
        if not 0 <= at - self._handed_over_at < every_ns:
            self._hand_over(at)

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """The settings and limits of the process."""
        if self._adopted != (settings, limits):
            self._adopted = settings, limits
            self._hand_over(at)
            self._work.put(partial(self._journal.adopt, settings, limits, at))

    def close(self) -> None:
        """Write all waiting records and end the thread; this may take as long as the disk does."""
        self._hand_over(self._handed_over_at)
        self._work.put(None)
        self._thread.join()

    def _hand_over(self, at: AlignedNs) -> None:
        self._handed_over_at = at
        self._work.put(partial(self._write_batch, self._batch))
        self._sent_bytes += self._batch_bytes
        self._batch, self._batch_bytes = [], 0

    # -- the thread ----------------------------------------------------------------------------

    def _write(self) -> None:
        logged = ""
        while (work := self._work.get()) is not None:
            work()
            if self._journal.error != logged:
                logged = self._journal.error
                log.warning("%s", logged or "journal: written again")
        self._journal.close()

    def _write_batch(self, batch: _Batch) -> None:
        # If a new segment begins with this batch, its preamble must not reflect the batch yet.
        self._journal.append([record for record, _ in batch])
        for record, preamble in batch:
            self._preamble.see(record, declares=preamble)
        self._written_bytes += sum(len(record.payload) for record, _ in batch)


class CellJournal(Log):
    """The part of one cell, whose records have its tag; see `RecordKind`."""

    def __init__(self, writer: JournalWriter, tag: int) -> None:
        self._writer = writer
        self._tag = tag
        self._has_ended = False

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        if self._has_ended:
            return
        opens = kind is RecordKind.OPENED
        if opens and self._tag:
            payload = b"%d" % self._tag
        of = stream if kind in OF_STREAMS else self._tag
        self._writer.put(Record(kind, at, of, payload), declares=opens)

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> None:
        """Answers to requests are left out, as a replay does not use them."""
        if self._has_ended or isinstance(event, ResponsePart):
            return
        declares = isinstance(event, Hello | Declare)
        record = Record(RecordKind.MESSAGE, at, stream, data)
        self._writer.put(record, declares=declares, may_drop=not declares)

    def tick(self, at: AlignedNs) -> None:
        self.record(RecordKind.TICK, at)
        self._writer.flush(at, _BATCH_NS if self._tag else 0)

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        self._writer.adopt(settings, limits, at)
        if self._tag:
            self.record(RecordKind.SETTINGS, at, payload=settings)

    def end(self, at: AlignedNs) -> None:
        if self._tag:
            self.record(RecordKind.LEFT, at)
        self._has_ended = True


class Preamble:
    """Sees all records of a journal in order."""

    def __init__(self) -> None:
        self._cells: dict[int, Record] = {}
        """START of each cell of a cluster, with its present settings, by tag."""
        self._learned: dict[int, Record] = {}
        """By the tag of the cell."""
        self._live: dict[int, list[Record]] = {}
        self._aligned: dict[int, Record] = {}
        """The last alignment of each stream."""

    def see(self, record: Record, *, declares: bool) -> None:
        """`declares`: later records of its stream depend on it."""
        if declares:
            self._live.setdefault(record.stream, []).append(record)
        elif record.kind is RecordKind.ALIGNED:
            self._aligned[record.stream] = record
        elif record.kind is RecordKind.LEARNED:
            self._learned[record.stream] = record
        elif record.kind is RecordKind.CLOSED:
            self._forget(record.stream)
        elif record.kind is RecordKind.LEFT:
            self._cells.pop(record.stream, None)
            self._learned.pop(record.stream, None)
            for stream, records in list(self._live.items()):
                if cell_tag(records[0]) == record.stream:
                    self._forget(stream)
        elif record.stream and record.kind in (RecordKind.START, RecordKind.SETTINGS):
            self._cells[record.stream] = Record(
                RecordKind.START, record.at, record.stream, record.payload
            )

    def records(self) -> Iterator[Record]:
        """Those of what is live, without START of the process."""
        yield from self._cells.values()
        yield from self._learned.values()
        for records in self._live.values():
            yield from records
        yield from self._aligned.values()

    def _forget(self, stream: int) -> None:
        self._live.pop(stream, None)
        self._aligned.pop(stream, None)
