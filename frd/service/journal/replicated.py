"""The log of a cell: replicated by the servers of the cluster, and fenced.

The event loop collects records; a task packs them in a worker thread and appends them, one bundle
in flight, in order. The engine never waits for that. If the log is slow, records wait in memory, up
to the budget of all logs of the process. If that is used up, each stream of a log that has more
than its share is *cut* at its next message: none of its messages is recorded or acknowledged any
more, and when the log is back, the stream ends, so that its agent sends again what is missing. So
the log has of each stream a part without holes from its beginning, and the next owner can rely on
it. The engine has applied what was left out; if this process dies before it is sent again, only
the agents know it.

The first records are a checkpoint, and others follow at intervals: all that a reader must know to
begin there (see `frd.service.journal.reading`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from frd.cluster.log import Fenced, LogLost
from frd.cluster.packing import MAX_RECORD_BYTES
from frd.model import AlignedNs, Finding
from frd.service.journal.appending import Appender
from frd.service.journal.preamble import KeptFindings, Preamble
from frd.service.journal.runs import Budget, Run, Runs
from frd.store.journal import JournalLimits
from frd.store.records import Record, RecordKind
from frd.wire.messages import AgentEvent, Declare, Hello, ResponsePart

CHECKPOINT_EVERY_NS: Final = 30_000_000_000
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
"""Payloads between two checkpoints, if they come faster; and at least four times its own size."""
_IDLE_CHECKPOINT_EVERY_NS: Final = 600_000_000_000
"""If only little is recorded."""
_TICKS_TOGETHER: Final = 40
"""Ticks that are written together if nothing else is recorded."""
_STOP_WITHIN_S: Final = 5.0
_INDISPENSABLE: Final = (
    *(RecordKind.START, RecordKind.CLOSED, RecordKind.SETTINGS),
    *(RecordKind.DISMISSED, RecordKind.FINDING),
)
"""Recorded even beyond the bound. They are few."""

logger = logging.getLogger(__name__)


class _Saving(NamedTuple):
    """A caller waits until everything up to a position is stored: its records, versions of
    findings, and what was put before them."""

    position: int
    records: Sequence[Record]
    done: asyncio.Future[None]


class ReplicatedLog:
    """A `Log` on that of `appender`. The methods are for the event loop.

    `findings` and the learned pauses, `learned` (see `payloads.encode_pauses`), are as the last
    owner left them. `budget` is that of all logs of the process. `on_fenced` is called when the log
    refuses this owner, or cannot be written because of a fault: the cell must be dropped then.
    """

    def __init__(
        self,
        appender: Appender,
        *,
        settings: bytes,
        now: AlignedNs,
        limits: JournalLimits,
        budget: Budget,
        findings: KeptFindings | None = None,
        learned: bytes = b"",
        on_fenced: Callable[[], None],
    ) -> None:
        self._appender = appender
        self._cell = appender.cell
        self._settings = settings
        self._limits = limits
        self._on_fenced = on_fenced
        self._preamble = Preamble()
        """Of all records up to `position`."""
        if learned:
            self._preamble.see(Record(RecordKind.LEARNED, now, 0, learned), declares=False)
        self._findings = findings or KeptFindings(now)
        self._cut: set[int] = set()
        self._cut_news: set[int] = set()
        """Streams of `_cut` that `take_cut` has not returned."""
        self._runs = Runs(budget)
        self.position = self._reached = self._released = 0
        self._is_withheld = False
        """The log has lost records that may have been drawn for acknowledgement."""
        self._saving: list[_Saving] = []
        self.dropped = 0
        self.fenced = False
        self._is_over = False
        """Nothing is recorded any more."""
        self._checkpoint_at = now
        self._checkpoint_bytes = 0
        """Payloads of the last checkpoint."""
        self._since_checkpoint = 0
        self._wake = asyncio.Event()
        self._put_checkpoint(now, is_start=True)
        self._task = asyncio.create_task(self._run())

    # -- frd.service.journal.log.Log -------------------------------------------------------------

    @property
    def stored(self) -> int:
        return -1 if self.fenced else self._released

    @property
    def evicted(self) -> int:
        return self._appender.deleted

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        if kind is RecordKind.CLOSED:
            self._cut.discard(stream)
            self._cut_news.discard(stream)
            if stream not in self._preamble.streams:  # it never was in the log
                return
        elif stream in self._cut:
            return
        opens = kind is RecordKind.OPENED
        if self._runs.is_full and kind not in _INDISPENSABLE:
            self.dropped += 1
            if opens:
                self._cut_off(stream)
            return
        self._put(Record(kind, at, stream, payload), declares=opens)

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> bool:
        if isinstance(event, ResponsePart):
            return True
        if self._is_over or stream in self._cut:
            self.dropped += 1
            return False
        if self._runs.is_full:
            self.dropped += 1
            if not self._cut:
                logger.warning(
                    "cell %d: log: %d bytes wait: messages are left out",
                    *(self._cell, self._runs.waiting),
                )
            self._cut_off(stream)
            return False
        record = Record(RecordKind.MESSAGE, at, stream, data)
        self._put(record, declares=isinstance(event, Hello | Declare))
        return True

    def take_cut(self) -> Collection[int]:
        if not self._is_withheld and not self._runs.is_half_empty:
            return ()
        cut, self._cut_news = self._cut_news, set()
        self._is_withheld = False
        self._released = self._reached
        return cut

    def tick(self, at: AlignedNs) -> None:
        self.record(RecordKind.TICK, at)
        if self._checkpoint_is_due(at):
            self._put_checkpoint(at, is_start=False)
        elif not 0 < self._runs.idle_ticks < _TICKS_TOGETHER:
            self._hand_over()

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        self._settings, self._limits = settings, limits
        self.record(RecordKind.SETTINGS, at, 0, settings)

    def keep_dismissed(self, ids: Collection[str], at: AlignedNs) -> None:
        for record in self._findings.keep_dismissed(ids, at):
            self.record(record.kind, at, payload=record.payload)

    async def save(self, findings: Sequence[Finding], at: AlignedNs) -> None:
        if not findings:
            return
        records = [self._findings.see(finding, at) for finding in findings]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._save(records, done)
        await done

    def shared(self, finding: Finding) -> None:
        """All replicas know that it is closed: the next owner need not share it."""
        self._findings.shared(finding)

    def abandon(self) -> None:
        if not self.fenced:
            self.fenced = True
            self._end()
            self._task.cancel()

    async def stop(self) -> None:
        """Messages that come meanwhile are not waited for: they are never acknowledged."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._save((), done)
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await done
        except Fenced:
            pass
        except TimeoutError:
            logger.warning(
                "cell %d: log: %d bytes are not stored: agents send them again",
                *(self._cell, self._runs.waiting),
            )
        self._task.cancel()
        await asyncio.wait({self._task})
        self._end()

    # -- for metrics -----------------------------------------------------------------------------

    @property
    def unacked_bytes(self) -> int:
        """Payloads that are not stored yet."""
        return self._runs.waiting

    @property
    def append_s(self) -> float:
        """The slowest recent append, one in progress included."""
        return self._appender.append_s

    # -- collecting ------------------------------------------------------------------------------

    def _put(self, record: Record, *, declares: bool = False) -> None:
        if self._is_over:
            return
        if len(record.payload) > MAX_RECORD_BYTES:
            self.dropped += 1
            return
        self._preamble.see(record, declares=declares)
        self.position += 1
        self._since_checkpoint += len(record.payload)
        if self._runs.add(record, self.position):
            self._hand_over()

    def _hand_over(self) -> None:
        self._runs.close()
        self._wake.set()

    def _cut_off(self, stream: int) -> None:
        self._cut.add(stream)
        self._cut_news.add(stream)

    def _save(self, records: Sequence[Record], done: asyncio.Future[None]) -> None:
        if self._is_over:
            done.set_exception(Fenced("log: another replica owns the cell"))
            return
        for record in records:
            self._put(record)
        self._saving.append(_Saving(self.position, records, done))
        self._hand_over()
        self._answer()

    def _checkpoint_is_due(self, at: AlignedNs) -> bool:
        if self._runs.is_full or self._runs.has_checkpoint:
            return False
        age_ns, size = at - self._checkpoint_at, self._since_checkpoint
        return (
            (age_ns >= CHECKPOINT_EVERY_NS and size >= self._checkpoint_bytes)
            or age_ns >= _IDLE_CHECKPOINT_EVERY_NS
            or size >= max(CHECKPOINT_BYTES, 4 * self._checkpoint_bytes)
        )

    def _put_checkpoint(self, at: AlignedNs, *, is_start: bool) -> None:
        """What is known of everything that was put before, and of nothing that comes later."""
        start = Record(RecordKind.START, at, 0, self._settings)
        records = [start, *self._findings.records(), *self._preamble.records()]
        size = sum(len(record.payload) for record in records)
        self.position += 1
        self._runs.add_checkpoint(records, self.position, is_start=is_start)
        self._checkpoint_at, self._checkpoint_bytes, self._since_checkpoint = at, size, 0
        self._hand_over()

    # -- writing ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                while (run := self._runs.take()) is not None:
                    try:
                        await self._write(run)
                    except LogLost as error:
                        await self._begin_again(error)
                await self._wake.wait()
                self._wake.clear()
        except Fenced as error:
            logger.warning("cell %d: %s", self._cell, error)
            self._give_up()
        except Exception:
            logger.exception("cell %d: log: internal error: the cell is given up", self._cell)
            self._give_up()

    async def _write(self, run: Run) -> None:
        """
        Raises:
            Fenced, LogLost
        """
        if run.is_checkpoint:
            await self._appender.append_checkpoint(run.records, self._limits, is_start=run.is_start)
        else:
            await self._appender.append(run.records)
        self._runs.wrote()
        self._advance(run.position)

    def _advance(self, position: int) -> None:
        self._reached = position
        if not self._is_withheld:
            self._released = position
        self._answer()

    def _answer(self) -> None:
        """Callers of `save` and `stop`."""
        saved = [saving for saving in self._saving if saving.position <= self._reached]
        self._saving = self._saving[len(saved) :]
        for saving in saved:
            if not saving.done.done():
                saving.done.set_result(None)

    async def _begin_again(self, error: LogLost) -> None:
        """The servers have lost the end of the log. Nothing that was acknowledged can be asked for
        again, but what was not can: all streams are cut, and the log begins again without them."""
        logger.error(
            "cell %d: %s: some of its log's end is lost: all agents send again", self._cell, error
        )
        self.dropped += self._runs.clear()
        for stream in self._preamble.streams:
            self._cut_off(stream)
        self._preamble.forget_streams()
        self._is_withheld = True
        self._put_checkpoint(self._checkpoint_at, is_start=True)
        saving, self._saving = self._saving, []
        for one in saving:
            self._save(one.records, one.done)
        await self._appender.take_again()

    def _give_up(self) -> None:
        self.fenced = True
        self._end()
        self._on_fenced()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._runs.end()
        saving, self._saving = self._saving, []
        for one in saving:
            if not one.done.done():
                one.done.set_exception(Fenced("log: another replica owns the cell"))
