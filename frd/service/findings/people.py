"""What people say of findings: who acknowledged one, whose it is, notes, and silences.

The engine knows nothing of it, and a replay does without it: it is added to findings when they are
published and stored. The stored finding takes it through a restart and to the next owner of its
cell; silences are kept apart (`silences`), because they may be there before the finding. The owner
of a cell applies all changes of its findings, one after the other: no note of two people is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeAlias

from frd.engine.views import StatusView
from frd.forms import utc_text
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Note
from frd.service.findings.silences import Refused, Silences

MAX_NOTES: Final = 32
_MOST: Final = 10_000
"""Findings of which marks are held in memory, without those that the engine holds, too."""
_MARKS: Final = ("acknowledged_by", "acknowledged_at", "assigned_to", "notes")
_SAID: Final = (*_MARKS, "silenced_until_at", "silenced_by")
"""The fields of a finding that people write."""
_marks_of, _said_of = attrgetter(*_MARKS), attrgetter(*_SAID)
Mark: TypeAlias = Callable[[Finding], Finding]
"""What a person says; it raises `Refused` if others have said otherwise."""


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
