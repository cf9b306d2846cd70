"""The declarations of one stream: attempts, ranks, groups, signatures and memory series.

Agents number these per stream. The columns here turn such an index into the engine's handle.
Declarations of a refused run (see `frd.service.ingest.job_runs`) are kept, and enter the engine
when the run is admitted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.errors import FrdError, WireError
from frd.model import AlignedNs, AttemptKey, GroupInfo, RankInfo, SeriesInfo, Signature
from frd.service.access.admission import Allowance
from frd.service.ingest.job_runs import Refusal, Reporter
from frd.service.ingest.revisions import ProcessRevision
from frd.service.ingest.shared import Shared
from frd.service.ingest.stream_handles import IndexColumn, StreamHandles
from frd.wire.messages import AttemptDecl, Declare, GroupDecl, RankDecl

OTHER_JOBS: Final = "the agent's token or certificate is for other jobs"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reportable:
    """Which jobs a stream may report: those that `granted` says; if it may have `one_job` only, the
    `job` that its call names."""

    granted: Callable[[str], bool] = lambda job: True
    one_job: bool = False
    job: str | None = None

    def __call__(self, declared: str) -> bool:
        return self.granted(declared) and (not self.one_job or declared == self.job)

    def check(self, declared: str) -> None:
        """
        Raises:
            WireError: the stream may not report `declared`.
        """
        if not self.granted(declared):
            raise WireError("attempts.job", "job", f"{declared!r}: {OTHER_JOBS}")
        if not self(declared):
            raise WireError(
                "attempts.job",
                "job",
                f"{declared!r}: the call names {self.job!r}: open a stream for each job",
            )


@dataclass(slots=True)
class DeclaredAttempt:
    declared: AttemptDecl
    handles: StreamHandles | None = None
    """None while its run is refused."""
    ranks: list[int] = field(default_factory=list)
    """Stream indexes."""
    groups: list[tuple[int, GroupInfo]] = field(default_factory=list)
    """Stream index and group."""
    series: list[tuple[int, SeriesInfo]] = field(default_factory=list)
    """Stream index, and series of a global rank."""
    has_dropped: bool = False
    """Rows of the attempt were dropped while it was refused."""
    no_room: str = ""
    """Which limit of the service leaves no room for it."""

    def is_of(self, key: AttemptKey, run: str) -> bool:
        return (self.declared.key, self.declared.run) == (key, run)


@dataclass(slots=True)
class DeclaredRank:
    """A rank of this stream; its position in `Declarations.ranks` is its stream index."""

    key: AttemptKey
    info: RankInfo
    attempt: DeclaredAttempt
    revision: ProcessRevision
    row: int = 0
    """In the attempt's handles."""
    is_superseded: bool = False
    """Another process has taken over the rank, or there is no room for it: reports about this one
    are dropped."""
    no_room: str = ""
    is_over: bool = False
    """Its process has ended."""

    @property
    def handles(self) -> StreamHandles | None:
        """None while reports about the rank are dropped."""
        return None if self.is_superseded else self.attempt.handles


class Declarations:
    def __init__(self, shared: Shared, reporter: Reporter) -> None:
        self._engine = shared.engine
        self._revisions = shared.revisions
        self._runs = shared.runs
        self._reporter = reporter
        self.may_report = Reportable()
        self.allowance: Allowance | None = None
        """None: what is declared has no limit, as in a replay."""
        self.session = ""
        """The session of the agent process."""
        self.session_number = -1
        self.alignment: Alignment | None = None
        """Converts node times to aligned times."""
        self.uncertainty_ns: int | None = None
        """Uncertainty of aligned times; None if unknown."""
        self.attempts: list[DeclaredAttempt] = []
        self.ranks: list[DeclaredRank] = []
        self.signatures: list[Signature] = []
        self.series: list[DeclaredAttempt] = []
        """The attempt of each memory series."""
        self.superseded: set[int] = set()
        """Stream indexes of ranks."""
        self.is_leaving = False
        """The agent was asked to stop."""
        self._lacks_room = False
        """There was no room for an attempt or a rank."""
        self.forgotten = 0
        """Attempts that the engine had forgotten when this was last looked at."""
        self.must_resync = False
        """Rows of a run that is now admitted were dropped: the agent must send them again."""
        self._entered: list[int] = []
        self._unconnected: dict[int, tuple[Attempt, list[int]]] = {}
        """Attempts, by identity, and the ranks that have entered them without a clock."""
        self._entered_at = AlignedNs(0)
        self.rank_row = IndexColumn()
        self.rank_handle = IndexColumn()
        self.group_column = IndexColumn()
        self.group_handle = IndexColumn()
        self.series_handle = IndexColumn()

    @property
    def jobs(self) -> set[str]:
        """Of the attempts that were declared."""
        return {attempt.declared.key.job for attempt in self.attempts}

    def charge(self, event: Declare, size: int) -> None:
        """A message of `size` bytes is kept while the stream lasts.

        Raises:
            WireError: the stream or its peer has declared too much.
        """
        if self.allowance is not None:
            self.allowance.take(objects_in(event, size))

    def refused(self) -> Iterator[Refusal]:
        """The ranks that still run and for which there is no room."""
        for attempt in self.attempts if self._lacks_room else ():
            ranks = (self.ranks[index] for index in attempt.ranks)
            each = Counter(attempt.no_room or one.no_room for one in ranks if not one.is_over)
            for why, count in each.items():
                if why:
                    yield Refusal(attempt.declared.key.job, count, why)

    @property
    def is_settled(self) -> bool:
        """Time alone changes nothing here."""
        is_waiting = self._lacks_room or self._unconnected
        return not is_waiting and self.forgotten == self._engine.dropped

    def settle(self, now: AlignedNs) -> bool:
        """Time has passed: what the engine has forgotten is dropped, and attempts and ranks for
        which there was no room enter it, if there is room now; True if some have.

        Raises:
            FrdError: there is room for an attempt, and not for all that it has.
        """
        if self.forgotten != self._engine.dropped:
            self.forgotten = self._engine.dropped
            for attempt in self.attempts:
                handles = attempt.handles
                if handles and self._engine.known(attempt.declared.key) is not handles.attempt:
                    attempt.handles = None
        before = len(self._entered)
        for attempt in self.attempts if self._lacks_room else ():
            if attempt.no_room:
                self._open(attempt, now)
            if attempt.no_room:
                break
            if (handles := attempt.handles) is None:
                continue
            for index in attempt.ranks:
                if self.ranks[index].no_room and not self._enter(index, handles, now):
                    break
        self._connect()
        return len(self._entered) > before

    def close(self) -> None:
        """The stream is over. Nothing else frees its declarations before the next collection of
        cycles, which may be minutes away."""
        if self.allowance is not None:
            self.allowance.give_back()
        for declared in (self.attempts, self.ranks, self.signatures, self.series):
            declared.clear()

    def take_entered(self) -> list[int]:
        """Stream indexes of the ranks that have entered the engine since the last call."""
        entered, self._entered = self._entered, []
        return entered

    def declare(self, event: Declare, now: AlignedNs) -> None:
        self.signatures.extend(declared.signature for declared in event.signatures)
        try:
            for attempt in event.attempts:
                self._declare_attempt(attempt, now)
            for rank in event.ranks:
                self._declare_rank(rank, now)
        finally:
            self._connect()
        for group in event.groups:
            self._declare_group(group)
        for series in event.series:
            self._declare_series(series.info)

    def _declare_attempt(self, declared: AttemptDecl, now: AlignedNs) -> None:
        self.may_report.check(declared.key.job)
        attempt = DeclaredAttempt(declared)
        self.attempts.append(attempt)
        if not declared.run:
            self._open(attempt, now)

    def _declare_rank(self, declared: RankDecl, now: AlignedNs) -> None:
        attempt, info = self.attempts[declared.attempt_index], declared.info
        key, run = attempt.declared.key, attempt.declared.run
        index = len(self.ranks)
        revision = self._revisions.of_process(key, info, self.session)
        self.ranks.append(DeclaredRank(key, info, attempt, revision))
        self.rank_row.append(0)
        self.rank_handle.append(info.rank)
        attempt.ranks.append(index)
        before = attempt.handles
        counts = not run or self._runs.declare(key, run, info, self._reporter, now)
        if attempt.handles is not None:
            if attempt.handles is before:  # else this has been opened again, with the rank
                self._enter(index, attempt.handles, now)
        elif counts:
            self._open(attempt, now)

    def _declare_group(self, declared: GroupDecl) -> None:
        attempt = self.attempts[declared.attempt_index]
        index = self.group_handle.count
        self.group_column.append(0)
        self.group_handle.append(0)
        if attempt.handles is not None:
            self._enter_group(attempt.handles, index, declared.info)
        attempt.groups.append((index, declared.info))

    def _declare_series(self, info: SeriesInfo) -> None:
        rank = self.ranks[info.rank]
        declared = (len(self.series), replace(info, rank=rank.info.rank))
        self.series.append(rank.attempt)
        self.series_handle.append(0)
        if rank.attempt.handles is not None:
            self._enter_series(rank.attempt.handles, *declared)
        rank.attempt.series.append(declared)

    # -- into the engine and out of it ---------------------------------------------------------

    def _open(self, declared: DeclaredAttempt, now: AlignedNs) -> None:
        """If there is room, enter the attempt into the engine, with all that it has."""
        self._connect()  # what was entered before belongs to the run before
        key, run = declared.declared.key, declared.declared.run
        try:
            attempt = self._engine.attempt(key, declared.declared.world_size, now)
        except WireError as error:
            declared.no_room, self._lacks_room = str(error), True
            return
        self.must_resync |= bool(declared.no_room) and declared.has_dropped
        declared.no_room = ""
        if run and self._runs.takes_over(key, run):
            self._engine.start_over(attempt, declared.declared.world_size, now)
        handles = declared.handles = StreamHandles(attempt)
        for index in declared.ranks:
            self._enter(index, handles, now)
        for index, group in declared.groups:
            self._enter_group(handles, index, group)
        for index, series in declared.series:
            self._enter_series(handles, index, series)

    def _enter(self, index: int, handles: StreamHandles, now: AlignedNs) -> bool:
        """False: there is no room for it."""
        rank, attempt = self.ranks[index], handles.attempt
        try:
            handle = self._engine.rank(attempt, rank.info, now)
        except WireError as error:
            if error.reason != "limit":
                raise
            rank.no_room, self._lacks_room = str(error), True
            self.supersede(index)
            return False
        self.must_resync |= bool(rank.no_room)
        rank.no_room = ""
        rank.row = handles.add_rank(rank.info)
        rank.is_superseded = False
        self.superseded.discard(index)
        self.rank_row.put(index, rank.row)
        self._unconnected.setdefault(id(attempt), (attempt, []))[1].append(handle)
        self._entered_at = now
        self._entered.append(index)
        return True

    def _connect(self) -> None:
        """The ranks that have entered the engine since the last call have an agent, and its clock:
        one call for all of them, because an agent has many."""
        entered, self._unconnected = self._unconnected, {}
        for attempt, ranks in entered.values():
            attempt.clocks.set(
                *(ranks, self.session_number, self.uncertainty_ns),
                now=self._entered_at,
                alignment=self.alignment,
            )
            attempt.connection(ranks, True)
            if self.is_leaving:
                attempt.agent_leaves(ranks)

    def _enter_group(self, handles: StreamHandles, index: int, info: GroupInfo) -> None:
        handle = handles.attempt.group(info)
        self.group_column.put(index, handles.add_group(handle))
        self.group_handle.put(index, handle)

    def _enter_series(self, handles: StreamHandles, index: int, info: SeriesInfo) -> None:
        self.series_handle.put(index, handles.attempt.memory_series(info))

    def supersede(self, index: int) -> None:
        """Another process has taken over the rank; see `DeclaredRank.is_superseded`."""
        self.ranks[index].is_superseded = True
        self.superseded.add(index)

    def admit(self, key: AttemptKey, run: str, now: AlignedNs) -> None:
        """The run is watched from now on."""
        for attempt in self.attempts:
            if attempt.is_of(key, run) and attempt.handles is None:
                try:
                    self._open(attempt, now)
                except FrdError as error:  # another stream may have sent the message
                    log.warning("stream %d: %s", self._reporter.stream, error)
                    attempt.handles = None
                self._connect()
                self.must_resync |= attempt.has_dropped

    def suspend(self, key: AttemptKey, run: str) -> None:
        """The run is no longer watched in this attempt."""
        self._connect()
        for attempt in self.attempts:
            if attempt.is_of(key, run) and attempt.handles is not None:
                if ranks := [self.ranks[index].info.rank for index in attempt.ranks]:
                    attempt.handles.attempt.connection(ranks, False)
                attempt.handles = None


def objects_in(event: Declare, size: int) -> int:
    """How much memory a message of `size` bytes takes while its stream lasts, in objects of 128
    bytes: a number or a text of a few bytes becomes an object, a member of a group 8 bytes."""
    declared = (event.attempts, event.ranks, event.groups, event.signatures, event.series)
    members = sum(len(group.info.ranks) for group in event.groups)
    makes = 8 * sum(map(len, declared)) + 64 * len(event.attempts)
    return 1 + makes + members // 16 + size // 4
