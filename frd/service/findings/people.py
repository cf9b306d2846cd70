"""What people say of findings: who acknowledged one, whose it is, notes, and silences.

The engine knows nothing of it, and a replay does without it: it is added to findings when they are
published and stored. The stored finding takes it through a restart and to the next owner of its
cell; silences are kept apart (`silences`), because they may be there before the finding. The owner
of a cell applies all changes of its findings, one after the other: no note of two people is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from frd.engine.views import StatusView
from frd.forms import utc_text
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Note
from frd.service.findings.silences import Refused, Silences

MAX_NOTES: Final = 32
_MOST: Final = 10_000
"""Findings of which marks are held in memory, without those that the engine holds, too."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The part of a finding that people write, without silences."""

    acknowledged_by: str = ""
    acknowledged_at: AlignedNs | None = None
    assigned_to: str = ""
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, finding: Finding) -> Marks:
        return cls(
            finding.acknowledged_by,
            finding.acknowledged_at,
            finding.assigned_to,
            finding.notes,
        )


Mark: TypeAlias = Callable[[Marks], Marks]
"""What a person says; it raises `Refused` if others have said otherwise."""


def acknowledge(by: str, at: AlignedNs) -> Mark:
    def mark(marks: Marks) -> Marks:
        if marks.acknowledged_at is None:
            return replace(marks, acknowledged_by=by, acknowledged_at=at)
        if marks.acknowledged_by != by:
            who = f"by {marks.acknowledged_by} at {utc_text(marks.acknowledged_at)}"
            raise Refused(f"acknowledged already: {who}: ask them, or undo it first")
        return marks

    return mark


def undo_acknowledge(marks: Marks) -> Marks:
    return replace(marks, acknowledged_by="", acknowledged_at=None)


def assign(to: str) -> Mark:
    return lambda marks: replace(marks, assigned_to=to)


def add_note(note: Note) -> Mark:
    def mark(marks: Marks) -> Marks:
        if len(marks.notes) >= MAX_NOTES:
            raise Refused(f"notes: {MAX_NOTES} already: write down the rest elsewhere")
        return replace(marks, notes=(*marks.notes, note))

    return mark


class People:
    """What has been said of the findings of one cell."""

    def __init__(self, silences: Silences) -> None:
        self._silences = silences
        self._marks: dict[str, Marks] = {}
        """By id, of findings of which a person has said something."""
        self._shown: Mapping[str, Finding] = {}
        """Open findings as they were last published, by id."""

    def take_up(self, findings: Sequence[Finding]) -> None:
        """Go on with findings of an earlier process, or owner."""
        for finding in findings:
            self._marks[finding.id] = Marks.of(finding)
        self._shown = {finding.id: finding for finding in findings}

    def change(self, finding: Finding, mark: Mark) -> None:
        """
        Raises:
            Refused: see `Mark`.
        """
        known = self._marks.get(finding.id) or Marks.of(finding)
        try:
            self._marks[finding.id] = mark(known)
        except Refused as error:
            raise Refused(f"finding: {finding.id}: {error}") from None

    def said(self, finding: Finding, now: AlignedNs) -> Finding:
        """`finding` with what has been said of it, at `now` (UTC)."""
        before = Marks.of(finding)
        marks = self._marks.get(finding.id, before)
        until_at, by = self._silences.of(finding, now)
        is_known = (finding.silenced_until_at, finding.silenced_by) == (until_at, by)
        if is_known and marks == before:
            return finding
        return replace(
            finding,
            acknowledged_by=marks.acknowledged_by,
            acknowledged_at=marks.acknowledged_at,
            assigned_to=marks.assigned_to,
            notes=marks.notes,
            silenced_until_at=until_at,
            silenced_by=by,
        )

    def view(self, view: StatusView, now: AlignedNs) -> StatusView:
        """As `said`, of all findings of the engine."""
        findings = [self.said(finding, now) for finding in view.findings]
        going_on = [self.said(finding, now) for finding in view.going_on]
        if len(self._marks) > _MOST:
            held = {finding.id for finding in (*findings, *going_on)}
            self._marks = {id_: one for id_, one in self._marks.items() if id_ in held}
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
            and _gist(self._shown.get(finding.id, finding)) != _gist(finding)
        ]

    def published(self, view: StatusView) -> None:
        self._shown = {one.id: one for one in view.findings if one.state is FindingState.OPEN}


def _gist(finding: Finding) -> object:
    return Marks.of(finding), finding.silenced_until_at, finding.silenced_by
