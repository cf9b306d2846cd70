"""What people say of findings: who acknowledged one, whose it is, notes, and silences.

The engine knows nothing of it, and a replay does without it: it is added to findings when they are
published and stored. The stored finding takes it through a restart and to the next owner of its
cell. The owner of a cell applies all changes of its findings, one after the other: no note of two
people is lost.

Silences say until when messages and alerts about a finding, a job or a node rest. People set them,
also before anything opens. All of them together are one small value under one key, of the findings
database or of the cluster's registry, where every replica reads it again and again. It is changed
by compare-and-set, so that of two people, on two replicas, each gets what they asked for. There is
one silence of each finding, job and node: the later request replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec

from frd.cluster.registry import Conflict, Entry, Keys, RegistryUnavailable
from frd.engine.findings.text import clean
from frd.engine.views import StatusView
from frd.errors import FrdError, ServiceUnavailable
from frd.forms import encodable, utc_text
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Note
from frd.store.findings import FindingStore

MAX_NOTES: Final = 32
_MOST: Final = 10_000
"""Findings of which marks are held in memory, without those that the engine holds, too."""
_MARKS: Final = ("acknowledged_by", "acknowledged_at", "assigned_to", "notes")
_SAID: Final = (*_MARKS, "silenced_until_at", "silenced_by")
"""The fields of a finding that people write."""
_marks_of, _said_of = attrgetter(*_MARKS), attrgetter(*_SAID)
Mark: TypeAlias = Callable[[Finding], Finding]
"""What a person says; it raises `Refused` if others have said otherwise."""
MAX_SILENCES: Final = 256
READ_EVERY_S: Final = 1.0
_KEY: Final = "silences"
_TRIES: Final = 10

log = logging.getLogger(__name__)


def acknowledge(by: str, at: AlignedNs) -> Mark:
    def mark(finding: Finding) -> Finding:
        if finding.acknowledged_at is None:
            return replace(finding, acknowledged_by=by, acknowledged_at=at)
        if finding.acknowledged_by != by:
            who = f"by {finding.acknowledged_by} at {utc_text(finding.acknowledged_at)}"
            raise Refused(
                f"finding: {finding.id}: acknowledged already: {who}: ask them, or undo it first"
            )
        return finding

    return mark


def undo_acknowledge(finding: Finding) -> Finding:
    return replace(finding, acknowledged_by="", acknowledged_at=None)


def assign(to: str) -> Mark:
    return lambda finding: replace(finding, assigned_to=to)


def add_note(note: Note) -> Mark:
    def mark(finding: Finding) -> Finding:
        if len(finding.notes) >= MAX_NOTES:
            raise Refused(
                f"finding: {finding.id}: {MAX_NOTES} notes already: write the rest elsewhere"
            )
        return replace(finding, notes=(*finding.notes, note))

    return mark


class People:
    """What has been said of the findings of one cell."""

    def __init__(self, silences: Silences) -> None:
        self._silences = silences
        self._marked: dict[str, Finding] = {}
        """By id, those of which a person has said something: only these fields count."""
        self._shown: Mapping[str, Finding] = {}
        """Open findings as they were last published, by id."""

    def take_up(self, findings: Sequence[Finding]) -> None:
        """Go on with findings of an earlier process, or owner."""
        self._shown = {finding.id: finding for finding in findings}
        self._marked |= self._shown

    def change(self, finding: Finding, mark: Mark) -> None:
        """
        Raises:
            Refused: see `Mark`.
        """
        self._marked[finding.id] = mark(self._marked.get(finding.id, finding))

    def said(self, finding: Finding, now: AlignedNs) -> Finding:
        """`finding` with what has been said of it, at `now` (UTC)."""
        marks = _marks_of(self._marked.get(finding.id, finding))
        said = (*marks, *self._silences.of(finding, now))
        if said == _said_of(finding):
            return finding
        return replace(finding, **dict(zip(_SAID, said, strict=True)))

    def view(self, view: StatusView, now: AlignedNs) -> StatusView:
        """As `said`, of all findings of the engine."""
        findings = [self.said(finding, now) for finding in view.findings]
        going_on = [self.said(finding, now) for finding in view.going_on]
        if len(self._marked) > _MOST:
            held = {finding.id for finding in (*findings, *going_on)}
            self._marked = {id_: one for id_, one in self._marked.items() if id_ in held}
        return replace(view, findings=findings, going_on=going_on)

    def news(self, view: StatusView, events: Sequence[FindingEvent]) -> list[FindingEvent]:
        """Open findings of which something else is said than when they were last published, also
        because a silence has ended, and which have no event."""
        known = {event.finding.id for event in events}
        return [
            FindingEvent(Change.UPDATED, finding)
            for finding in view.findings
            if finding.state is FindingState.OPEN
            and finding.id not in known
            and _said_of(self._shown.get(finding.id, finding)) != _said_of(finding)
        ]

    def published(self, view: StatusView) -> None:
        self._shown = {one.id: one for one in view.findings if one.state is FindingState.OPEN}


class Refused(FrdError):
    """What people may not say of a finding, because of what others have said, or of a limit."""


class Scope(StrEnum):
    FINDING = "finding"
    JOB = "job"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Silence:
    of: Scope
    name: str
    """Id of the finding, or name of the job or node, without lone surrogates."""
    until_at: AlignedNs
    """UTC."""
    by: str
    because: str = ""

    @property
    def id(self) -> str:
        return sha256(f"{self.of}:{self.name}".encode()).hexdigest()[:12]


Known: TypeAlias = dict[tuple[Scope, str], Silence]
_FORM: Final = msgspec.json.Decoder(list[Silence])


class Silences:
    """For one event loop. Empty until `keep_in`, or `read`."""

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys
        self._entry = Entry(b"[]", 0)
        """Of which `_known` is."""
        self._known: Known = {}
        self._changing = asyncio.Lock()

    async def keep_in(self, keys: Keys) -> None:
        """Use what `keys` has, and change it there."""
        self._keys = keys
        try:
            await self.read()
        except FrdError as error:
            log.error("%s: the service begins without silences", error)

    async def read(self) -> None:
        """See what other replicas have changed. Without an answer, what is known stays."""
        if self._keys is not None:
            with contextlib.suppress(RegistryUnavailable):
                async with self._changing:  # what is read is not older than what is known
                    self._see(await self._keys.get(_KEY))

    def all(self, now: AlignedNs) -> list[Silence]:
        """Those in force at `now` (UTC)."""
        return list(_in_force(self._known, now).values())

    def of(self, finding: Finding, now: AlignedNs) -> tuple[AlignedNs | None, str]:
        """Until when the finding is silenced, and the person who did it.

        The silence of a node is for findings whose suspects are all on silenced nodes: a node in
        repair must not hide what is wrong with others.
        """
        if not (known := self._known):
            return None, ""
        of_job = known.get((Scope.JOB, encodable(finding.job)))
        found = [known.get((Scope.FINDING, finding.id)), of_job]
        nodes = [known.get((Scope.NODE, encodable(s.node))) for s in finding.suspects]
        ends = [silence for silence in nodes if silence is not None]
        if ends and len(ends) == len(nodes):
            found.append(min(ends, key=lambda one: one.until_at))
        active = [one for one in found if one is not None and one.until_at > now]
        if not active:
            return None, ""
        last = max(active, key=lambda one: one.until_at)
        whole = "" if last.of is Scope.FINDING else f", for {last.of} {clean(last.name)}"
        return last.until_at, last.by + whole

    async def put(self, silence: Silence, now: AlignedNs) -> None:
        """
        Raises:
            Refused: there are `MAX_SILENCES` others.
            ServiceUnavailable: it is not known to be stored.
            StoreError: as well.
        """

        def add(known: Known) -> None:
            known[silence.of, silence.name] = silence
            if len(known) > MAX_SILENCES:
                raise Refused(f"silences: {MAX_SILENCES} already: end one of them first")

        await self._change(add, now)

    async def end(self, id: str, now: AlignedNs) -> Silence | None:
        """End the silence with this id, or of the finding with it; None if there is none.

        Raises:
            ServiceUnavailable, StoreError: as `put`.
        """
        ended: list[Silence] = []

        def remove(known: Known) -> None:
            own = Scope.FINDING, id
            ended[:] = [one for of, one in known.items() if id == one.id or of == own]
            for one in ended:
                del known[one.of, one.name]

        await self._change(remove, now)
        return ended[0] if ended else None

    async def _change(self, change: Callable[[Known], None], now: AlignedNs) -> None:
        if self._keys is None:
            raise ServiceUnavailable("silences: the service is starting: try again")
        async with self._changing:
            for _ in range(_TRIES):
                try:
                    self._see(entry := await self._keys.get(_KEY))
                    known = _in_force(self._known, now)
                    change(known)
                    value = msgspec.json.encode(list(known.values()))
                    revision = entry.revision if entry is not None else 0
                    self._see(Entry(value, await self._keys.put(_KEY, value, revision)))
                    return
                except Conflict:
                    continue  # another replica was quicker
                except RegistryUnavailable as error:
                    raise ServiceUnavailable(f"silences: {error}") from None
            raise ServiceUnavailable("silences: others change them all the time: try again")

    def _see(self, entry: Entry | None) -> None:
        if entry is None or entry == self._entry:
            return
        self._entry = entry
        try:
            self._known = {(one.of, one.name): one for one in _FORM.decode(entry.value)}
        except msgspec.DecodeError as error:
            log.error("silences: damaged, or of a newer frd: %s: there are none now", error)
            self._known = {}


class LocalKeys:
    """Keys of the findings database, for a service without a cluster: it alone writes."""

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def get(self, key: str) -> Entry | None:
        value = await asyncio.to_thread(self._store.value, key)
        return None if value is None else Entry(value, 1)

    async def put(self, key: str, value: bytes, revision: int) -> int:
        await asyncio.to_thread(self._store.keep_value, key, value)
        return 1


def _in_force(known: Mapping[tuple[Scope, str], Silence], now: AlignedNs) -> Known:
    return {of: one for of, one in known.items() if one.until_at > now}
