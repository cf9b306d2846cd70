"""One rank process under watch: reads its counters, requests dumps, detects its end.

Pure parts take all decisions (`poll_schedule`: when to request a dump; `transitions`: what is new;
`rank_progress`: how far the rank has come). This is the shell that feeds them and passes their
results to the outbox and the current state. Death and silence are different: a dead process refuses
connections or is missing in /proc, a silent process exists and does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from frd.errors import DumpError, ServiceUnavailable
from frd.forms import exit_text
from frd.model import (
    EntryColumns,
    ExitInfo,
    NodeRawNs,
    RankPhases,
    RankState,
    RankStatus,
    Stage,
)
from frd_agent import tap
from frd_agent.addresses.read import Addresses, Log
from frd_agent.counters import Counters
from frd_agent.memory.target import Target
from frd_agent.node_time import NodeTime
from frd_agent.proc import Vital
from frd_agent.ranks.exits import state_after
from frd_agent.ranks.poll_schedule import PollPolicy, PollSchedule, Why
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import StackReader
from frd_agent.ranks.tap_files import CountersFile, PhaseFile, PhaseReader, TapFile, TapIdentity
from frd_agent.ranks.token_files import STILL_S
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.published_dumps import DumpsFile, PublishedDumps, ServerAndDumps
from frd_agent.recorder.rank_progress import final_progress, live_progress, raw_counters
from frd_agent.recorder.recorders import Heartbeat, KeptDump, Recorders, WorkerServer
from frd_agent.recorder.room import Room
from frd_agent.recorder.rows import columns
from frd_agent.recorder.worker_server import Busy, HandlerFailed, Handlers, Silent, Withheld
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.reports import Reports

MAX_RANKS: Final = 512
"""Living ranks of a run directory that are watched. A node has fewer: at most one for each core."""
_DUMP_TIMEOUT_S: Final = 3.0
_STOPPED_AGE_S: Final = 1.5
"""A stopped process whose counters are younger than this may be running again already."""
_MOVING_AGE_S: Final = 1.0
"""Whether one with younger counters is stopped can wait for the next poll."""
_UNREAD_S: Final = 10.0
"""Collectives are unread after so long."""
_MOVING_S: Final = 10.0
"""A rank that has made progress within this time is training."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RankContext:
    """The objects that all ranks of one agent share."""

    dictionary: Dictionary
    reports: Callable[[int], Reports]
    """Where the ranks of an attempt report, by its number."""
    stats: Counters
    time: NodeTime
    policy: PollPolicy
    dumping: asyncio.Semaphore
    """So that the ranks of a node are not all polled at the same time."""
    refreshing: set[Rank] = field(default_factory=set)
    """Those that are read for no reason but time: what they report waits for the last of them,
    until the agent's next turn at most."""
    addresses: Addresses = field(default_factory=Addresses)


class Rank:
    """A rank process. `number` is the dictionary's; a process that sets up all its groups again
    becomes another rank of another attempt, with another number."""

    def __init__(
        self, file: TapFile, identity: TapIdentity, shared: RankContext, process: RankProcess
    ):
        self.file = file
        self.identity = identity
        self.exit_recorded_at_ns: NodeRawNs | None = None
        """When the tap wrote the exit record of `identity`."""
        self.gone_at_ns: NodeRawNs | None = None
        self.files_removed = False
        self.older: dict[Path, TapFile] = {}
        """Earlier identities of its process, which are removed with its own."""
        self.counters = CountersFile(file.shm_path, shared.time.one_to_raw)
        self._phases = PhaseReader(
            file.path.with_suffix(PhaseFile.SUFFIX), shared.time.one_to_raw, shared.stats
        )
        self._former: list[tuple[Reports, int]] = []
        """Its number in the previous attempt, if any, and where it reported then."""
        self._shared = shared
        self.process = process
        shortage = Room(lambda: process.readable).shortage
        make = partial(Handlers, timeout_s=_DUMP_TIMEOUT_S, shortage=shortage, owner=file.owner)
        handlers = make(process.socket) if process.socket else None
        self._has_socket = handlers is not None
        dumps = file.path.with_suffix(DumpsFile.SUFFIX)
        self._dumps = PublishedDumps(dumps, shared.time.one_to_raw) if identity.dumps else None
        source: WorkerServer | None = handlers or self._dumps
        if handlers and self._dumps:
            source = ServerAndDumps(handlers, self._dumps)
        self.recorders = Recorders(source, shared.time)
        self._schedule = PollSchedule(shared.policy)
        self._task: asyncio.Task[None] | None = None
        self._progress_inputs = (0, 0, 0)
        """Versions; the progress is computed again when one changes."""
        self._is_exact = False
        self._silent = False
        self._note = ""
        self._withheld = ""
        """Why its recorder is not read at present."""
        self._problem = ""
        """Of the last reading."""
        self._failure = ""
        """Why recorders, or some of them, could not be read when they were last due."""
        self._unread = ""
        self._readable_s = float("-inf")
        """When nothing was in the way of reading all recorders."""
        self._lost = 0
        self._complained = False
        self.stage: Stage | None = None
        """Where it is while its counters rest, as the looks of its tap show it."""
        self.read_stack = StackReader(process, handlers, file.shm_path).read
        self._learn_exit()
        self._begin_attempt()

    # -- identity ------------------------------------------------------------------------------

    def __str__(self) -> str:
        return str(self.identity)

    def _begin_attempt(self) -> None:
        shared, identity = self._shared, self.identity
        self._attempt = shared.dictionary.attempt(
            identity.attempt, identity.world_size, identity.run
        )
        address, stderr = shared.addresses.of(self.process, identity)
        self.key, self.info = identity.attempt, replace(identity.info, address=address)
        """As it is declared."""
        self.log = Log(self.process, stderr, shared.addresses.configured(identity))
        self.number = shared.dictionary.rank(self._attempt, self.info)
        self.reports = shared.reports(self._attempt)
        self.naming = Naming(shared.dictionary, self._attempt)
        self._state, self._since_ns = RankState.LIVE, shared.time.until(identity.started_at_ns)
        self._lost = 0
        self.recorders.hooked = identity.recorders
        self.recorders.begin_attempt(self.naming)
        self._learn_groups()

    def _learn_exit(self) -> None:
        record = self.identity.ended
        to_raw = self._shared.time.one_to_raw
        self.exit_recorded_at_ns = None if record is None else to_raw(record.at_ns) or None

    def _learn_groups(self) -> None:
        self.naming.replace(self.identity.groups)
        for group in self.naming.all_groups():
            self.reports.current.expect(self.number, group)
        present = {group.name for group in self.identity.groups}
        self.recorders.close(lambda name: name not in present)

    def renew(self, file: TapFile, identity: TapIdentity, now_ns: NodeRawNs) -> None:
        """The tap has written another identity."""
        was = self.identity
        self.file, self.identity = file, identity
        self._learn_exit()
        if (was.attempt, was.rank) == (identity.attempt, identity.rank):
            self.recorders.hooked = identity.recorders
            self._learn_groups()
            return
        self._report(RankState.FINISHED, now_ns, f"went on as {self}")
        self.forget_former()
        self._former.append((self.reports, self.number))
        self._begin_attempt()

    def forget_former(self) -> None:
        for reports, number in self._former:
            reports.forget(number)
        self._former.clear()

    def target(self, now_s: float) -> Target:
        """The rank as the memory samplers see it."""
        return Target(
            number=self.number,
            attempt=self._attempt,
            pid=self.process.readable,
            said_pid=self.identity.pid,
            devices=self.identity.devices,
            shm_path=self.file.shm_path,
            moving=self._schedule.rested_s(now_s) < _MOVING_S,
        )

    # -- a poll --------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        return self.gone_at_ns is not None

    def poll(self, now_s: float, now_ns: NodeRawNs) -> bool:
        """Read the counters, and request a dump of the recorders when one is due.

        False if the process is gone: the caller reads its identity once more and calls `end`.
        """
        suspicious = self._schedule.is_stale or self.identity.exit is not None
        if self.process.is_hidden:
            self.counters.read()
        is_over = self.identity.exit is not None or self.counters.age_s > STILL_S
        is_moving = self._schedule.age_s < _MOVING_AGE_S
        vital = self.process.look(suspicious=suspicious, is_over=is_over, is_moving=is_moving)
        self.counters.read()
        self._update_phases()  # after the counters: at their time these phases were known
        if vital is Vital.GONE:
            return False
        self._update_schedule(now_s)
        self._report_liveness(vital, now_s, now_ns)
        why = self._schedule.due(now_s, time.time())
        if self._dumps is not None:
            if self._dumps.is_due(again=why is Why.RETRY):
                why = why or Why.STILL
            elif not self._has_socket:
                why = None
        if why is not None and self._task is None and (self._has_socket or self._dumps):
            self._shared.stats.dumps[why.value] += 1
            self._schedule.asked(now_s)
            self._task = asyncio.create_task(self._poll_recorders(why))
        return True

    def _update_schedule(self, now_s: float) -> None:
        self._schedule.needs_gil = self.recorders.needs_gil
        self._schedule.gil_ring = self.identity.ring
        status, age_s, every_s = self.counters.status, self.counters.age_s, self.counters.every_s
        self._schedule.see(status, age_s, exact=self._update_progress(), now=now_s, every_s=every_s)

    def _update_progress(self) -> bool:
        """Update the rank's current state; False if its counters are incomplete."""
        counters = self.counters
        published = counters.latest.published_mono_ns, counters.published_at_ns
        inputs = self.recorders.revision, *published
        if inputs != self._progress_inputs:
            trackers = self.recorders.trackers
            progress = live_progress(trackers, counters.status, counters.published_at_ns)
            self.reports.current.set_progress(self.number, progress)
            self._progress_inputs, self._is_exact = inputs, progress.exact
        return self._is_exact

    def _update_phases(self) -> None:
        self._phases.read()
        if self._phases.spans is not None:
            self.reports.current.set_phases(RankPhases(self.number, self._phases.spans))

    def _update_last_progress(self) -> None:
        """The tap writes the counters after its exit record. If they do not show how far the rank
        came, only the state before its end is known. Both are microseconds apart, and each is
        converted with its own reading of the clocks, so their order is that of their stamps."""
        record, counters = self.identity.exit, self.counters
        if record is None or counters.latest.published_at_ns < record.at_ns:
            self._update_progress()
            return
        published_at_ns = counters.published_at_ns
        known_until = max(published_at_ns, self.exit_recorded_at_ns or published_at_ns)
        progress = final_progress(self.recorders.trackers, counters.status, known_until)
        if progress is not None:
            self.reports.current.set_progress(self.number, progress)

    def _look_for_unread(self, now_s: float) -> str:
        """Why collectives of it cannot be read, and what helps: what its torch does not record, as
        soon as that is known; all else may be over in some seconds."""
        identity = self.identity
        if identity.unread:
            return identity.unread
        why = self._failure
        if identity.off and not self.counters.status:
            why = identity.off_text
        if not (self._has_socket or self._dumps):
            why = why or identity.socket_error or "it has no socket"
        if not why or self._readable_s < 0:
            self._readable_s = now_s
        return why if now_s - self._readable_s >= _UNREAD_S else ""

    def _report_liveness(self, vital: Vital, now_s: float, now_ns: NodeRawNs) -> None:
        """Report whether the rank is live or silent, as text for users."""
        is_stale, since_ns = self._schedule.is_stale, self.counters.published_at_ns or now_ns
        if vital is Vital.STOPPED and self._schedule.age_s > _STOPPED_AGE_S:
            self._report(RankState.SILENT, since_ns, self.process.describe())
        elif is_stale and (self._silent or not self._has_socket):
            asked = "its socket does not answer" if self._silent else "it has no socket"
            self._report(RankState.SILENT, since_ns, f"{self.process.describe()}; {asked}")
        else:
            self._unread = self._look_for_unread(now_s)
            self._report(RankState.LIVE, now_ns, self._note_of(is_stale))

    def _note_of(self, is_stale: bool) -> str:
        """What users should know of its recorders."""
        if not self._has_socket:
            read = "read only at rest" if self._dumps else "out of reach"
            return f"recorder {read}: {self.identity.socket_error}"
        if self._withheld or (is_stale and self._note):
            return self._withheld or self._note
        if self._unread:
            return f"recorder not read: {self._unread}"
        if self._dumps and self.identity.uses_generic:
            version = self.identity.torch_version
            return f"recorder read only at rest: torch {version} needs Python for it, 2.10 does not"
        return ""

    def _report(
        self, state: RankState, since_ns: NodeRawNs, detail: str, how: ExitInfo | None = None
    ) -> None:
        if state is not self._state:
            self._state, self._since_ns = state, since_ns
            is_well = state in (RankState.LIVE, RankState.FINISHED)
            level = logging.INFO if is_well else logging.WARNING
            words = [detail] if how else [state.value, detail]
            log.log(
                level if self.process.was_alive else logging.DEBUG,  # an earlier agent has said it
                "%s: %s", self, ": ".join(filter(None, words)) or state.value,
            )  # fmt: skip
        gap = self._lost + self.reports.outbox.dropped.get(self.number, 0)
        now_ns = self._shared.time.now()
        stage = None if how else self.stage
        unread = self._unread if state is RankState.LIVE else ""
        status = RankStatus(
            *(self.number, self._state, self._since_ns, detail, gap, how, now_ns, stage, unread)
        )
        self.reports.current.set_status(status)

    def end(self, now_ns: NodeRawNs) -> None:
        """The process is gone: report its last counters and its end."""
        self._update_last_progress()
        self._update_phases()
        self.gone_at_ns = now_ns
        record, recorded_at_ns = self.identity.ended, self.exit_recorded_at_ns
        if record is None and (printed := self.identity.printed) is not None:  # then it was killed
            printed_at_ns = self._shared.time.one_to_raw(printed.at_ns)
            is_recent = now_ns - (printed_at_ns or 0) <= tap.INTERRUPT_S * 1e9  # else survived
            if printed_at_ns and (is_recent or not printed.interrupted):
                record, recorded_at_ns = printed, printed_at_ns
        how, at_ns = self.process.ended(record, recorded_at_ns, now_ns)
        self._report(state_after(how), at_ns, exit_text(how), how)
        self.close()
        self.reports.wake()

    def hand_over(self, rank: object, now_ns: NodeRawNs) -> None:
        """Its process has begun again as `rank`: by an exec, after which nothing of it is left."""
        self._report(RankState.FINISHED, now_ns, f"went on as {rank}")
        self.gone_at_ns = now_ns
        self.close()
        self.reports.wake()

    def close(self) -> None:
        self.counters.close()
        if self._task is not None:
            self._task.cancel()

    # -- the recorders -------------------------------------------------------------------------

    async def _poll_recorders(self, why: Why) -> None:
        refreshing = self._shared.refreshing
        if why is Why.REFRESH:
            refreshing.add(self)
        hold_in_s = self._schedule.hold_in_s(time.monotonic(), time.time())
        may_hold = hold_in_s is not None
        try:
            if self.recorders.needs_gil and hold_in_s:  # all ranks of the job together
                await asyncio.sleep(hold_in_s)
                await self.ask(_DUMP_TIMEOUT_S, may_hold=True)
            else:
                async with self._shared.dumping:
                    await self.ask(_DUMP_TIMEOUT_S, may_hold=may_hold)
            self._failure = self._problem
        except Withheld as error:
            self._failure = error.why
        except ServiceUnavailable:
            pass  # gone or silent: the next poll reports it
        except HandlerFailed as error:
            self._failure = self._plain(str(error))
            self._complain(str(error))
        except Exception:
            if not self._complained:
                log.exception("%s: its recorder could not be read", self)
            self._complained = True
        finally:
            self._task = None
            refreshing.discard(self)
        self._update_schedule(time.monotonic())
        if why is not Why.REFRESH or not refreshing:
            self.reports.wake()

    async def ask(self, timeout_s: float, *, may_hold: bool | None = None) -> list[KeptDump]:
        """Read all recorders of the rank now; returns the dumps as received. `may_hold`: see
        `Recorders.read`; None if a person asks.

        Raises:
            ServiceUnavailable: the rank is gone (`Refused`), silent (`Silent`) or, for a moment,
                `Busy`, or it might not survive a connection (`Withheld`).
            HandlerFailed: it has no recorder, or reports an error.
            DumpError: it has ended.
        """
        if self.is_gone:
            raise DumpError(f"{self}: gone, and it left no dump")
        if not self._has_socket and self._dumps is None:
            raise HandlerFailed(f"{self}: no socket: {self.identity.socket_error}")
        now_s = time.monotonic()
        try:
            reading = await self.recorders.read(
                timeout_s,
                Heartbeat(self.counters.published_at_ns, self._schedule.is_stale),
                lambda rows: self.reports.outbox.record(columns(self.number, 0, rows)),
                may_hold=self._schedule.may_be_held(now_s) if may_hold is None else may_hold,
            )
        except Silent:
            self._silent = True
            raise
        except Withheld as error:
            self._withheld = f"its recorder is not read: {error.why}"
            self._complain(str(error))
            raise
        self._silent, self._withheld = False, ""
        self._problem = "".join(map(self._plain, reading.problems[:1]))
        if self._schedule.is_stale:
            self._note = (
                f"its tap's heartbeat is {self._schedule.age_s:.0f} s old: the GIL may be held"
            )
        self._lost += reading.lost
        self._shared.stats.dropped_rows["overrun"] += reading.lost
        self._shared.stats.dropped_rows["interpreter"] += reading.skipped
        raw = raw_counters(self.recorders.trackers)
        self._schedule.dumped(raw, reading.entries, held_at=now_s if reading.held else None)
        if reading.unread:
            self._schedule.retry()
        self.reports.current.set_channels(self.recorders.channels(self.number))
        for problem in reading.problems:
            self._complain(problem)
        if reading.is_busy:
            raise Busy(f"{self}: its interpreter is busy: ask again")
        return list(reading.dumps.values())

    def _plain(self, problem: str) -> str:
        """The same text for ranks with the same problem."""
        return problem.removeprefix(f"{self.process.socket}: ")

    def _complain(self, message: str) -> None:
        """Once per rank; for a rank that cannot be read, `as_of` does not advance."""
        if not self._complained:
            self._complained = True
            log.warning("%s: %s", self, message)

    def kept(self) -> list[KeptDump]:
        """The last dumps."""
        return self.recorders.kept()

    def in_flight(self) -> EntryColumns | None:
        rows = self.recorders.in_flight()
        return columns(self.number, 0, rows) if rows else None
