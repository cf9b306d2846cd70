"""The recorders of one rank: finds them and reads them through the rank's worker server.

A rank may have several recorders (NCCL's and Gloo's are separate), each with its own ring buffer,
all behind one socket. `transitions` makes rows of each dump. The last dump of each recorder is
kept, because the ring buffers are gone when the rank dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, TypeAlias

from frd.errors import DumpError
from frd.flight.decode import parse_answer
from frd.flight.entry import Dump
from frd.model import ChannelColumns, NodeNs, NodeRawNs
from frd_agent import tap
from frd_agent.node_time import NodeTime
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.published_dumps import PublishedDumps, ServerAndDumps
from frd_agent.recorder.rows import Row, channel_columns
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.recorder.worker_server import Busy, First, HandlerFailed, Handlers, NothingNew


@dataclass(frozen=True, slots=True)
class _Handler:
    """The handler of one kind of recorder that a rank may offer."""

    name: str
    params: Mapping[str, str]
    number: int | None
    """As `RecorderTracker.number`."""
    first: str = ""
    """A handler that is called before, if the rank has it."""
    glance: str = ""
    """A handler that answers with only what is in flight, and without the interpreter, which the
    other one needs."""

    @property
    def needs_gil(self) -> bool:
        return self.name == tap.TRACE


_RECORDERS: Final = (
    _Handler("fr_trace_json", {}, tap.GENERIC),
    _Handler("dump_nccl_trace_json", {}, tap.NCCL, tap.IGNORE_CAPTURES),
)
_HOLD_S: Final = 3.0
"""How long rows wait for the membership of their group."""
_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Largest last dump of a recorder that is kept for the time after the rank's end."""


WorkerServer: TypeAlias = Handlers | PublishedDumps | ServerAndDumps
"""What answers for a rank."""


@dataclass(frozen=True, slots=True)
class KeptDump:
    """The last dump of a recorder, or of a file, as bytes."""

    source: str
    taken_at_ns: NodeNs
    """By the wall clock as it was then, for people."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the tap's publications show of the rank's GIL, which they need."""

    at_ns: NodeRawNs
    """Of the last publication; 0 if there was none."""
    is_stale: bool


@dataclass(frozen=True, slots=True)
class _Fresh:
    tracker: RecorderTracker
    dump: Dump
    taken_at_ns: NodeRawNs
    in_flight: bool = False
    """It has only what is in flight."""


@dataclass(slots=True)
class Reading:
    """One reading of all recorders of a rank, and its result."""

    handlers: WorkerServer
    timeout_s: float
    """For each answer."""
    heartbeat: Heartbeat
    dumps: dict[RecorderTracker, KeptDump] = field(default_factory=dict)
    fresh: list[_Fresh] = field(default_factory=list)
    """Not applied yet."""
    lost: int = 0
    skipped: int = 0
    """Entries that were overwritten before the interpreter was asked for them."""
    held: bool = False
    """All that needs the interpreter has been read."""
    unread: bool = False
    """Some entries could not be read yet: read again soon."""
    is_busy: bool = False
    """A recorder was not read, because the rank's interpreter did not answer in time."""
    problems: list[str] = field(default_factory=list)
    entries: int = 0
    """In the largest recorder."""

    def refuse(self, handler: _Handler) -> None:
        """The interpreter does not answer in time."""
        self.held = False
        if not handler.glance:
            self.unread = self.is_busy = True


class Recorders:
    def __init__(self, handlers: WorkerServer | None, time: NodeTime) -> None:
        """`handlers` is None if the rank has none: then nothing is ever read."""
        self._handlers = handlers
        self.hooked: Sequence[str] = ()
        """Backends whose ops are recorded by a hook, as the tap numbers them."""
        self._hooked_read = 0
        self._naming: Naming
        """Of the present attempt."""
        self._time = time
        self.trackers: dict[RecorderTracker, _Handler] = {}
        """Known after the first reading."""
        self.revision = 0
        """Changes whenever a tracker changes."""
        self._kept: dict[RecorderTracker, KeptDump] = {}
        self._held_since_s: dict[RecorderTracker, float] = {}
        """Since when the rows of a tracker wait for the membership of a group."""
        self._unanswered_ns = NodeRawNs(-1)
        """When a handler that needs the GIL was last called in vain. A thread of the rank's server
        waits for the GIL since, and the server has only a few more."""
        self._reading = asyncio.Lock()
        """An older dump must not be read after a newer one."""

    async def read(
        self,
        timeout_s: float,
        heartbeat: Heartbeat,
        record: Callable[[list[Row]], None],
        *,
        may_hold: bool = True,
    ) -> Reading:
        """`may_hold`: the interpreter may be held as long as a dump of all entries takes.

        A recorder of NCCL is dumped only if a handler that needs the GIL has prepared the thread
        (see `frd_agent.tap`), or if the tap shows nothing for so long that the GIL must be held.

        Raises:
        ServiceUnavailable: the rank is gone (`Refused`), silent (`Silent`), or was not asked
            (`Withheld`).
        HandlerFailed: it has no recorder, or reports an error.
        """
        if (handlers := self._handlers) is None:
            raise HandlerFailed("it has no handlers")
        async with self._reading, handlers.connected():
            known = {tracker.number for tracker in self.trackers}
            if not known or self._hooked_read < len(self.hooked):
                self.trackers |= {
                    RecorderTracker(handler.number, self._time.to_raw): handler
                    for handler in self._offered(await handlers.names())
                    if handler.number not in known
                }
                self._hooked_read = len(self.hooked)
                if not self.trackers:
                    raise HandlerFailed("no recorder among its handlers: is it an old torch?")
            reading = Reading(handlers, timeout_s, heartbeat, held=may_hold)
            naming = self._naming
            try:
                for tracker in list(self.trackers):
                    await self._read_recorder(tracker, reading)
            finally:
                # While a recorder is awaited, a stream may open and report what is in flight: what
                # is known must never be ahead of the rows. Another attempt may begin as well.
                reading.unread |= naming is not self._naming
                if naming is self._naming:
                    record(self._apply(reading))
            return reading

    def _offered(self, names: tuple[str, ...]) -> list[_Handler]:
        handlers = [handler for handler in _RECORDERS if handler.name in names]
        for number, backend in enumerate(self.hooked, tap.HOOKED):
            handlers.append(
                _Handler(
                    *(tap.TRACE, {"backend": backend}, number),
                    *(tap.IGNORE_CAPTURES, "fr_trace_json" if "fr_trace_json" in names else ""),
                )
            )
        return [
            handler if handler.first in names else replace(handler, first="")
            for handler in handlers
        ]

    async def _read_recorder(self, tracker: RecorderTracker, reading: Reading) -> None:
        handler, may_hold = self.trackers[tracker], reading.held
        glance = None
        if handler.glance:
            glancing = replace(handler, name=handler.glance, first="")
            glance = await self._dump(tracker, glancing, reading)
        if glance is not None and any(entry.retired for entry in glance.dump.entries):
            reading.fresh.append(glance)  # ops that are marked when issued are all in it
            return
        whole = None
        if may_hold or not handler.needs_gil:
            whole = await self._dump(tracker, handler, reading)
        if whole is not None:
            reading.fresh.append(whole)
        elif glance is not None:
            reading.held = False
            reading.fresh.append(replace(glance, in_flight=True))

    async def _dump(
        self, tracker: RecorderTracker, handler: _Handler, reading: Reading
    ) -> _Fresh | None:
        """None if there is none now; `reading` says why."""
        asked_at, heartbeat = self._time.look(), reading.heartbeat
        first = None
        if handler.first:
            if heartbeat.at_ns > self._unanswered_ns and not (
                handler.needs_gil and heartbeat.is_stale
            ):
                required = handler.needs_gil or not heartbeat.is_stale
                first = First(handler.first, required=required)
            elif handler.needs_gil or not heartbeat.is_stale:
                reading.refuse(handler)
                return None
        try:
            data = await reading.handlers.ask(
                handler.name, timeout_s=reading.timeout_s, first=first, **handler.params
            )
            taken_at = reading.handlers.taken_at(asked_at)
            known = None if handler.glance else tracker.known
            dump = parse_answer(data, source=handler.name, known=known)
        except Busy:
            reading.refuse(handler)
            return None
        except NothingNew:
            if (last := self._kept.get(tracker)) is not None:
                reading.dumps[tracker] = last
            return None
        except HandlerFailed as error:
            # Listed, but it refuses these parameters. One that was read would be read as a new one.
            if error.status in (400, 404) and not tracker.capacity:
                del self.trackers[tracker]
                self.revision += 1
            reading.problems.append(str(error))
            return None
        except DumpError as error:
            reading.problems.append(str(error))
            return None
        finally:
            if first is not None and not first.answered:
                self._unanswered_ns = max(asked_at.raw_ns, heartbeat.at_ns)
        kept = KeptDump(handler.name, taken_at.real_ns, data)
        reading.dumps[tracker] = kept
        is_glance = handler.name == handler.glance and not any(e.retired for e in dump.entries)
        if len(data) <= _KEPT_BYTES and not (is_glance and tracker in self._kept):
            self._kept[tracker] = kept
        return _Fresh(tracker, dump, taken_at.raw_ns)

    def _apply(self, reading: Reading) -> list[Row]:
        """The new rows."""
        rows: list[Row] = []
        for fresh in reading.fresh:
            tracker, dump, taken_at_ns = fresh.tracker, fresh.dump, fresh.taken_at_ns
            if fresh.in_flight:
                self.revision += 1
                tracker.peek(dump, taken_at_ns)
            elif self._can_name(tracker, dump, taken_at_ns, self._naming):
                self.revision += 1
                diff = tracker.apply(dump, taken_at_ns, self._naming)
                rows += diff.rows
                if self.trackers[tracker].glance:
                    reading.skipped += diff.lost
                else:
                    reading.lost += diff.lost
                reading.unread |= not tracker.is_whole
            else:
                reading.unread = True
            reading.entries = max(reading.entries, tracker.capacity)
        return rows

    def _can_name(
        self, tracker: RecorderTracker, dump: Dump, taken_at_ns: NodeRawNs, naming: Naming
    ) -> bool:
        """The tap publishes new groups within a second, so waiting a little is worth it."""
        new = tracker.new_groups(dump, taken_at_ns)
        naming.learn(dump.groups.values())
        if not any(again or name not in naming.groups for name, again in new.items()):
            self._held_since_s.pop(tracker, None)
            return True
        now_s = self._time.now() / 1e9
        return now_s - self._held_since_s.setdefault(tracker, now_s) > _HOLD_S

    @property
    def needs_gil(self) -> bool:
        """All entries of a recorder can be read by the rank's interpreter only."""
        return any(handler.needs_gil for handler in self.trackers.values())

    # -- without a request ---------------------------------------------------------------------

    def begin_attempt(self, naming: Naming) -> None:
        self._naming = naming
        self.revision += 1
        for tracker in self.trackers:
            tracker.begin_attempt()

    def close(self, gone: Callable[[str], bool]) -> None:
        self.revision += 1
        for tracker in self.trackers:
            tracker.close(gone)

    def in_flight(self) -> list[Row]:
        return [row for tracker in self.trackers for row in tracker.open.rows()]

    def channels(self, number: int) -> ChannelColumns:
        """Sends and receives in flight."""
        entries = chain.from_iterable(tracker.open.items for tracker in self.trackers)
        as_of = filter(None, (tracker.taken_at_ns for tracker in self.trackers))
        as_of_ns = min(as_of, default=0)
        return channel_columns(number, entries, as_of_ns)

    def kept(self) -> list[KeptDump]:
        return list(self._kept.values())
