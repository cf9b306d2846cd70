"""Reads the log of a cell: from a checkpoint on, for the next owner and for `frd replay`.

Records are returned from the first complete checkpoint on. A checkpoint that only repeats what the
records before it say is left out; it is used where bundles before it are missing. So a reader sees
a log without holes: at the START record of a checkpoint, nothing read before is live.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from frd.cluster.log import Bounds, FencedLog
from frd.cluster.packing import Frame, Joiner, Mark, read_head
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import StoreError
from frd.model import AlignedNs, Finding, FindingState
from frd.service.journal import payloads
from frd.store.records import Record, RecordKind

_LAST_BUNDLES: Final = 16
"""Bundles that are read for a head that names a checkpoint; the last ones of all may be fences."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the last owner left."""

    findings: tuple[Finding, ...]
    """Open ones, and closed ones that were dismissed while their trouble lasts; oldest first."""
    closed: tuple[Finding, ...]
    """All others that were closed since the checkpoint, or that were not shared before it."""
    pauses: tuple[JobPauses, ...]
    last_at: AlignedNs
    """The latest time of a record, UTC of its owner's machine; 0: there is none."""


async def recover(
    log: FencedLog,
    warn: Callable[[str], None],
    play: Callable[[Record], None] = lambda record: None,
) -> Recovered:
    """Read the last complete checkpoint and everything after it; `play` gets each record.

    A newer release may have stored findings or pauses of a form that this one cannot decode. They
    are left out; the version of the finding before it, if there is one, counts then.

    Raises:
        StoreError: the log is damaged, or a newer frd wrote it.
        LogUnavailable: it does not answer.
    """
    bounds = await log.bounds()
    findings: dict[str, Finding] = {}
    over: dict[str, bool] = {}
    learned, ahead_ns, last_at = b"", 0, AlignedNs(0)
    async for records in read(log, await _last_checkpoint(log, bounds), bounds.last, warn):
        for record in records:
            play(record)
            if record.kind in (RecordKind.START, RecordKind.SETTINGS):
                ahead_ns = payloads.utc_ahead_ns(record.payload)
            is_start = record.kind is RecordKind.START  # of another owner's aligned time
            last_at = record.at if is_start else max(last_at, record.at)
            match record.kind:
                case RecordKind.START:
                    findings.clear()
                case RecordKind.RESTORED | RecordKind.FINDING:
                    finding = payloads.usable(payloads.decode_finding, record.payload, warn)
                    if finding is not None:
                        findings[finding.id] = finding
                        is_open = finding.state is FindingState.OPEN
                        over[finding.id] = not (is_open or payloads.is_dismissed(record.payload))
                case RecordKind.LEARNED:
                    learned = record.payload
                case _:
                    pass
    by_age = sorted(findings.values(), key=lambda finding: finding.opened_at)
    known = tuple(finding for finding in by_age if not over[finding.id])
    closed = tuple(finding for finding in by_age if over[finding.id])
    pauses = payloads.usable(payloads.decode_pauses, learned, warn) or ()
    return Recovered(known, closed, tuple(pauses), AlignedNs(last_at + ahead_ns))


async def _last_checkpoint(log: FencedLog, bounds: Bounds) -> int:
    """Number of a bundle from which on there is a complete checkpoint, if the log has one.

    The bundles of an owner that died during its first checkpoint, or soon after it, name none: the
    checkpoint of the owner before it is found then, and reading passes through the later one.
    """
    size, before = _LAST_BUNDLES, bounds.last + 1
    while before > bounds.first:
        first = max(bounds.first, before - size)
        checkpoint = 0
        async for bundle in log.read(first, before - 1):
            if 0 < (named := read_head(bundle).checkpoint) <= bundle.number:
                checkpoint = named
        if checkpoint:
            return max(checkpoint, bounds.first)
        size, before = 2 * size, first
    return bounds.first


async def read(
    log: FencedLog, first: int, last: int, warn: Callable[[str], None]
) -> AsyncIterator[list[Record]]:
    """The records in bundles `first` to `last`, some at a time; `warn` gets one line of text for
    each loss.

    Raises:
        StoreError: the log is damaged, or a newer frd wrote it.
        LogUnavailable: it does not answer.
    """
    sequence = _Sequence(warn)
    joiner = Joiner()
    is_new = is_unusable = True
    """It has at most the fences of its first owners; nothing of it was read."""
    async for bundle in log.read(first, last):
        is_new = False
        frame = joiner.add(bundle)
        if frame is not None:
            for usable in sequence.add(frame):
                is_unusable = False
                yield await asyncio.to_thread(usable.records)
    if is_unusable and not is_new:
        warn("log: it has no complete checkpoint, from which reading could begin")


def read_all(
    opened: Callable[[], AbstractAsyncContextManager[FencedLog]],
    warn: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Record]:
    """All records of a log, for a caller without an event loop. `progress` gets the number of
    bundles read, and their total.

    Raises:
        StoreError: the log is empty or damaged, or a newer frd wrote it.
        LogUnavailable: it does not answer.
    """
    with asyncio.Runner() as runner:
        pieces = _read_all(opened, warn, progress)
        try:
            while (records := runner.run(_next(pieces))) is not None:
                yield from records
        finally:
            runner.run(pieces.aclose())


async def _next(pieces: AsyncGenerator[list[Record], None]) -> list[Record] | None:
    return await anext(pieces, None)


async def _read_all(
    opened: Callable[[], AbstractAsyncContextManager[FencedLog]],
    warn: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> AsyncGenerator[list[Record], None]:
    async with opened() as log:
        bounds = await log.bounds()
        if bounds.last < bounds.first:
            raise StoreError("log: it is empty, or there is none: check cluster.name and the cell")
        done = bounds.first
        total = bounds.last - bounds.first + 1
        async for records in read(log, bounds.first, bounds.last, warn):
            yield records
            done += 1
            progress(min(done - bounds.first, total), total)
        progress(total, total)


class _Sequence:
    """Decides which frames are read: those of a complete checkpoint, and what follows it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._last: Frame | None = None
        self._checkpoint: list[Frame] = []
        """Frames of a checkpoint that is not complete."""
        self.is_whole = False
        """All that came before is known."""

    def add(self, frame: Frame) -> list[Frame]:
        """Frames whose records are to be read now."""
        last, self._last = self._last, frame
        if last is not None and frame.epoch < last.epoch:
            self._warn(
                f"log: bundle {frame.first}: of an owner that was excluded: it is left out: "
                "report this as a bug"
            )
            self._last = last
            return []
        is_new_owner = last is None or frame.epoch != last.epoch
        if not is_new_owner and last is not None and frame.first != last.last + 1 and self.is_whole:
            self._warn(f"log: records before bundle {frame.first} are missing")
            self.is_whole = False
        if is_new_owner or not frame.mark & Mark.MIDDLE or frame.mark & Mark.FIRST:
            self._checkpoint = []
        if is_new_owner:
            # A complete checkpoint begins the records of each owner.
            self.is_whole = False
        if not frame.mark & Mark.MIDDLE:
            return [frame] if self.is_whole else []
        if frame.mark & Mark.FIRST or self._checkpoint:
            self._checkpoint.append(frame)
        if not frame.mark & Mark.LAST or not self._checkpoint:
            return []
        complete, self._checkpoint = self._checkpoint, []
        if self.is_whole and not frame.mark & Mark.START:
            return []
        self.is_whole = True
        return complete
