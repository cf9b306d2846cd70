"""The log on the local disk: a thread, so that a slow disk never delays the event loop.

The event loop collects records and passes them to the thread in batches, at every tick of the
engine or when a batch is large. If the thread falls behind, messages are dropped and counted,
except those that later records depend on (streams, declarations). Only the thread knows which
streams are live *at its position in the journal*, so it makes the preamble of a new segment.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from frd.model import AlignedNs
from frd.service.journal.log import Log
from frd.service.journal.preamble import Preamble
from frd.store.journal import Journal, JournalLimits
from frd.store.records import Record, RecordKind
from frd.wire.messages import AgentEvent, Declare, Hello, ResponsePart

_BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
_Batch: TypeAlias = list[tuple[Record, bool]]
"""Records; the flag is true if the record belongs to its stream's preamble."""


log = logging.getLogger(__name__)


class JournalWriter(Log):
    """The methods are for the event loop. No other process has this log, and findings are kept by
    the findings database: a service that restarts begins with what is open, and a replay finds its
    own."""

    position = 0
    fenced = False

    def __init__(
        self, folder: Path, *, settings: bytes, now: AlignedNs, limits: JournalLimits
    ) -> None:
        self._preamble = Preamble()
        """Of what the thread has written."""
        self._journal = Journal(
            folder, settings=settings, preamble=self._preamble.records, begun_at=now, limits=limits
        )
        self._batch: _Batch = []
        self._batch_bytes = 0
        self._sent_bytes = 0
        self._written_bytes = 0
        self._overflowed = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Calls for the thread; None ends it."""
        self._thread = threading.Thread(target=self._write, name="frd-journal", daemon=True)
        self._thread.start()

    @property
    def stored(self) -> int:
        return self.position

    @property
    def dropped(self) -> int:
        """Records that are not in the journal."""
        return self._overflowed + self._journal.dropped

    @property
    def evicted(self) -> int:
        """Segments deleted to stay within the limits."""
        return self._journal.evicted

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        """Anything but a message or a tick; see `RecordKind`."""
        self._put(Record(kind, at, stream, payload), preamble=kind is RecordKind.OPENED)

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> bool:
        """Answers to requests are left out, as a replay does not use them. What is dropped may be
        acknowledged too: see `frd.service.journal.log`."""
        if isinstance(event, ResponsePart):
            return True
        declares = isinstance(event, Hello | Declare)
        waiting = self._batch_bytes + self._sent_bytes - self._written_bytes
        if waiting > MAX_WAITING_BYTES and not declares:
            self._overflowed += 1
            return True
        self._put(Record(RecordKind.MESSAGE, at, stream, data), preamble=declares)
        return True

    def tick(self, at: AlignedNs) -> None:
        """The engine advanced; pass the batch to the thread."""
        self.record(RecordKind.TICK, at)
        self._hand_over()

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """The settings and limits of all later records."""
        self._hand_over()
        self._work.put(partial(self._journal.adopt, settings, limits, at))

    async def stop(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Write all waiting records and end the thread; this may take as long as the disk does."""
        self._hand_over()
        self._work.put(None)
        self._thread.join()

    def _put(self, record: Record, *, preamble: bool = False) -> None:
        self.position += 1
        self._batch.append((record, preamble))
        self._batch_bytes += len(record.payload)
        if self._batch_bytes > _BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
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
