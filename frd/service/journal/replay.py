"""Replays a journal: the same sessions and the same engine, at the recorded times.

A replay gives the findings of the service, as far as the journal reaches back, with what ranks have
answered. At a START record a service process restarted: like the real one, it begins with the
findings that were open. In the journal of a replica, each cell is replayed on its own, while it was
there; its findings stay as they were when it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from frd.engine.engine import Engine
from frd.engine.evidence.answers import Answer
from frd.errors import FrdError
from frd.model import AlignedNs, Finding, FindingEvent, FindingState
from frd.service.clocks.agent_clocks import decode
from frd.service.ingest.session import Session
from frd.service.ingest.shared import Shared
from frd.service.journal.payloads import (
    Dismissal,
    Settings,
    decode_finding,
    decode_pauses,
    decode_payload,
    usable,
)
from frd.store.records import OF_STREAMS, Record, RecordKind, cell_tag


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    findings: tuple[Finding, ...]
    """The last version of each finding, oldest first."""
    records: int
    first_at: AlignedNs
    """UTC, as `last_at`."""
    last_at: AlignedNs
    jobs: frozenset[str]
    """Jobs with declared ranks."""


def replay(records: Iterable[Record], warn: Callable[[str], None]) -> Replayed:
    """Apply `records`; `warn` gets a line of text for each record that cannot be applied.

    Raises:
        StoreError: whatever `records` raises, and settings that cannot be read.
    """
    players = Players(warn)
    count, first_at, last_at = 0, AlignedNs(0), AlignedNs(0)
    for record in records:
        count += 1
        engine = players.play(record).engine
        last_at = AlignedNs(record.at + engine.utc_ahead_ns)
        first_at = first_at or last_at
    players.advance(last_at)
    findings = sorted(players.findings().values(), key=lambda finding: finding.opened_at)
    return Replayed(tuple(findings), count, first_at, last_at, frozenset(players.jobs))


class Players:
    """The players of the cells of a process, by tag. A service without a cluster has one."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.jobs: set[str] = set()
        self._players: dict[int, Player] = {}
        self._cells: dict[int, int] = {}
        """Tag of the cell of each stream."""
        self._left: dict[str, Finding] = {}
        """Findings of cells that have left, by id."""

    def findings(self) -> dict[str, Finding]:
        """The last versions, by id."""
        found = dict(self._left)
        for player in self._players.values():
            found |= player.findings
        return found

    def play(self, record: Record) -> Player:
        """Returns the player of the record's cell.

        Raises:
            StoreError: see `replay`.
        """
        kind = record.kind
        if kind is RecordKind.START and not record.stream:
            for player in self._players.values():
                player.pause()
        if kind is RecordKind.OPENED:
            self._cells[record.stream] = cell_tag(record)
        tag = self._cells.get(record.stream, 0) if kind in OF_STREAMS else record.stream
        if kind is RecordKind.LEFT:
            return self._leave(tag)
        if tag not in self._players:
            self._players[tag] = Player(self._warn, self.jobs)
        player = self._players[tag]
        player.play(record)
        return player

    def advance(self, utc: AlignedNs) -> None:
        """The last record was written at this time."""
        for player in self._players.values():
            if player.is_live:
                player.advance(AlignedNs(utc - player.engine.utc_ahead_ns))

    def _leave(self, tag: int) -> Player:
        player = self._players.pop(tag, None) or Player(self._warn, self.jobs)
        self._left |= player.findings
        return player


class Player:
    """Sessions and engine of the cell that the records are of."""

    def __init__(self, warn: Callable[[str], None], jobs: set[str] | None = None) -> None:
        """`jobs` gets the jobs with declared ranks."""
        self._warn = warn
        self.findings: dict[str, Finding] = {}
        self.jobs = set() if jobs is None else jobs
        self.is_live = True
        self._shared = Shared(Engine(Settings().policy))
        self._begin(Settings(), AlignedNs(0))

    @property
    def engine(self) -> Engine:
        return self._shared.engine

    def pause(self) -> None:
        """The process has ended; the cell may begin again in the next one."""
        self.is_live = False

    def play(self, record: Record) -> None:
        """
        Raises:
            StoreError: see `replay`.
        """
        match record.kind:
            case RecordKind.MESSAGE:
                self._message(record)
            case RecordKind.TICK:
                self.advance(record.at)
            case RecordKind.OPENED | RecordKind.ALIGNED | RecordKind.CLOSED:
                self._stream(record)
            case RecordKind.SETTINGS:
                settings = decode_payload(record.payload, Settings)
                self._shared.engine.adopt(settings.policy, settings.utc_ahead_ns)
                self._shared.engine.can_ask = settings.can_ask
            case RecordKind.START:
                self._begin(decode_payload(record.payload, Settings), record.at)
            case RecordKind.DISMISSED:
                self._dismiss(decode_payload(record.payload, Dismissal), record.at)
            case RecordKind.ANSWERED:
                self._answer(record)
            case RecordKind.LEARNED:
                pauses = usable(decode_pauses, record.payload, self._warn)
                self._shared.engine.learned.recall(pauses or ())
            case RecordKind.RESTORED:
                if (finding := usable(decode_finding, record.payload, self._warn)) is not None:
                    self._restore(finding, record.at)
            case RecordKind.LEFT:
                pass
            case _:
                assert_never(record.kind)

    def _stream(self, record: Record) -> None:
        if record.kind is RecordKind.OPENED:
            self._streams[record.stream] = Session(self._shared, record.stream)
        elif record.kind is RecordKind.CLOSED:
            self._close(record.stream)
        elif (session := self._streams.get(record.stream)) is not None:
            session.align(decode(record.payload))

    def advance(self, now: AlignedNs) -> None:
        self._shared.runs.settle(now)
        for session in self._streams.values():
            with suppress(FrdError):  # the service closed it
                session.settle(now)
        self._claim()
        self._shared.flush()
        self._keep(self._shared.engine.advance(now).events)

    def _dismiss(self, dismissal: Dismissal, now: AlignedNs) -> None:
        closing = self._shared.engine.dismiss(dismissal.finding, now, dismissal.close_reason)
        self._keep(closing)
        if not closing:  # it opened before the journal begins, so its id differs
            self._warn(
                f"finding {dismissal.finding} was closed by hand, but is not open in this journal"
            )

    def _answer(self, record: Record) -> None:
        decode = partial(decode_payload, form=Answer)
        if (answer := usable(decode, record.payload, self._warn)) is not None:
            self._shared.engine.answer(answer, record.at)

    def _begin(self, settings: Settings, now: AlignedNs) -> None:
        self.is_live = True
        going_on, known = self._shared.engine.dismissed, self.findings.values()
        how = settings.policy, settings.utc_ahead_ns
        self._shared = Shared(Engine(*how, can_ask=settings.can_ask))
        self._streams: dict[int, Session] = {}
        lasting = [f for f in known if f.state is FindingState.OPEN or f.id in going_on]
        self._shared.engine.restore(lasting, now)

    def _restore(self, finding: Finding, now: AlignedNs) -> None:
        """A finding that opened before the first record that is left, or that was dismissed."""
        if finding.id not in self.findings or finding.state is FindingState.CLOSED:
            self.findings[finding.id] = finding
            self._shared.engine.restore([finding], now)

    def _message(self, record: Record) -> None:
        session = self._streams.get(record.stream)
        if session is None:
            return
        known = len(session.ranks)
        try:
            session.receive(record.payload, record.at)
        except FrdError as error:
            # The live stream had no error, so the journal lacks an earlier record.
            self._warn(f"stream {record.stream}: {error}: the rest of it is left out")
            self._close(record.stream)
        else:
            self._shared.owners.claim(session)
        self.jobs.update(rank.key.job for rank in session.ranks[known:])
        self._claim()

    def _claim(self) -> None:
        for stream in self._shared.runs.take_changed():
            if (session := self._streams.get(stream)) is not None:
                self._shared.owners.claim(session)

    def _close(self, stream: int) -> None:
        """Ranks that no other stream reports have lost their agent."""
        session = self._streams.pop(stream, None)
        if session is None:
            return
        session.disconnect(self._shared.owners.release(session))
        self._shared.runs.closed(session)

    def _keep(self, events: Iterable[FindingEvent]) -> None:
        for event in events:
            self.findings[event.finding.id] = event.finding
