"""Which messages about findings a webhook gets, and when. Pure: no thread and no socket.

A finding causes at most four messages: it opens, it becomes critical, it gets its first suspect, it
closes. If two of these happen together, a target gets one message, for the first of them in its
configuration. A closing is sent only to a target that has received a message about this finding
before. After a restart of the service, and with a cell that a replica takes over, the findings that
are open count as sent to each target that wants what has happened to them. Messages that were not
delivered are in the outbox of the process that owes them (see `frd.store.findings`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from frd.address import finding_page
from frd.config import NotifyEvent, NotifyTarget
from frd.do_now import shown_json
from frd.forms import folded
from frd.model import Change, Finding, FindingEvent, Kind, Severity

VERSION: Final = 1
"""Version of the JSON form. It changes when a key loses its meaning, not when keys are added."""
_MAX_SLACK_CHARS: Final = 3_500
_MAX_SUSPECTS: Final = 16


@dataclass(frozen=True, slots=True)
class Notice:
    """A change of a finding that a webhook may report."""

    event: NotifyEvent
    finding: Finding


class News:
    """Turns events of the engine into notices, and remembers what was announced."""

    def __init__(self) -> None:
        self._announced: dict[str, list[NotifyEvent]] = {}

    def know(self, findings: Iterable[Finding]) -> None:
        """These were announced by another process."""
        self._announced |= {finding.id: _changes(finding) for finding in findings}

    def forget(self, findings: Iterable[Finding]) -> None:
        """Another process announces what happens to these."""
        for finding in findings:
            self._announced.pop(finding.id, None)

    def of(self, event: FindingEvent) -> Sequence[Notice]:
        """The notices of an event, the most important first."""
        finding = event.finding
        before = self._announced.pop(finding.id, None)
        happened: list[NotifyEvent] = ["closed"]
        if event.change is not Change.CLOSED:
            changes = _changes(finding)
            if event.change is Change.OPENED:
                happened = ["opened", *changes]
            else:
                happened = [c for c in changes if before is not None and c not in before]
            self._announced[finding.id] = list({*(before or ()), *changes})  # each once
        return [Notice(name, finding) for name in happened]


def _changes(finding: Finding) -> list[NotifyEvent]:
    """What has happened to an open finding."""
    changes: list[NotifyEvent] = []
    if finding.severity is Severity.CRITICAL:
        changes.append("critical")
    if finding.suspects:
        changes.append("suspect")
    return changes


class Choice:
    """Selects the notices that one target gets."""

    def __init__(self, target: NotifyTarget) -> None:
        self._target = target
        self._announced: set[str] = set()
        """Open findings about which the target got a message."""

    def know(self, findings: Iterable[Finding]) -> None:
        """Another process has announced these, to targets that want what has happened to them."""
        self._announced |= {
            finding.id
            for finding in findings
            if self._is_severe(finding)
            and not {"opened", *_changes(finding)}.isdisjoint(self._target.on)
        }

    def forget(self, findings: Iterable[Finding]) -> None:
        """Another process sends the messages about these."""
        self._announced -= {finding.id for finding in findings}

    def of(self, notices: Sequence[Notice]) -> Notice | None:
        """The notice to send, of those that one event has caused; None for no message."""
        chosen = next((n for n in notices if self._wants(n)), None)
        for notice in notices:
            if notice.event == "closed":
                self._announced.discard(notice.finding.id)
            elif chosen is not None:
                self._announced.add(notice.finding.id)
        return chosen

    def _wants(self, notice: Notice) -> bool:
        if notice.event not in self._target.on:
            return False
        if notice.event == "closed":
            return notice.finding.id in self._announced
        return self._is_severe(notice.finding)

    def _is_severe(self, finding: Finding) -> bool:
        return self._target.min_severity == "warning" or finding.severity is Severity.CRITICAL


# -- messages ------------------------------------------------------------------------------------

_RUNBOOKS: Final[dict[Kind, str]] = {
    Kind.STALL: "FrdCollectiveStalled",
    Kind.ORDER: "FrdCollectiveMismatch",
    Kind.MISMATCH: "FrdCollectiveMismatch",
    Kind.RANK_LOST: "FrdRankLost",
    Kind.OOM: "FrdMemoryFirstCause",
    Kind.MEMORY_SPIKE: "FrdMemoryFirstCause",
    Kind.STRAGGLER: "FrdStragglerPersistent",
    Kind.TELEMETRY_GAP: "FrdTelemetryGap",
    Kind.CLOCK_UNSYNCHRONIZED: "FrdClockUnsynchronized",
    Kind.STANDSTILL: "FrdStandstill",
}


def body(notice: Notice, target: NotifyTarget, url: str, *, has_pages: bool = True) -> bytes:
    """The request's body. `url` is where people open the service, without a slash at the end."""
    finding = notice.finding
    base = target.runbook_url.rstrip("/") or f"{url}/runbooks"
    links = {"page_url": finding_page(url, finding.id)} if has_pages else {}
    links["runbook_url"] = f"{base}/{_RUNBOOKS[finding.kind]}.md"
    match target.format:
        case "json":
            content = _generic(notice, links)
        case "slack":
            content = {"text": _slack(notice, links)}
        case _:
            assert_never(target.format)
    return json.dumps(content).encode()


def _generic(notice: Notice, links: Mapping[str, str]) -> dict[str, Any]:
    shown = shown_json(notice.finding)
    return {
        "version": VERSION,
        "event": notice.event,
        **{key: shown[key] for key in ("id", "job", "kind", "summary", "suspects")},
        "severity": _severity(notice.finding),
        **links,
        "command": _command(notice.finding),
        "finding": shown,
    }


def _slack(notice: Notice, links: Mapping[str, str]) -> str:
    finding = notice.finding
    news: dict[NotifyEvent, str] = {
        "opened": _severity(finding),
        "critical": "now critical",
        "suspect": "first suspect",
        "closed": "closed",
    }
    headline = f"{news[notice.event]}: {finding.kind.value} in job {finding.job}"
    lines = [f"*{headline}*", finding.summary]
    for who, alike in folded(shown_json(finding)["suspects"][:_MAX_SUSPECTS]):
        first, *_ = alike.values()
        said = "; ".join(f"{of}{suspect['evidence']}" for of, suspect in alike.items())
        lines.append(f"• {who} ({first['reason']}, confidence {first['confidence']}): {said}")
    if len(finding.suspects) > _MAX_SUSPECTS:
        lines.append(f"• and {len(finding.suspects) - _MAX_SUSPECTS} more")
    if finding.ended_by:
        lines.append(finding.ended_by)
    if notice.event == "closed" and finding.close_reason:
        lines.append(f"closed: {finding.close_reason}")
    # Escaped for Slack, so that nothing in a job's name becomes a mention or a link.
    text = html.escape("\n".join(lines), quote=False)
    if len(text) > _MAX_SLACK_CHARS:
        # Not in the middle of an escape.
        text = f"{text[:_MAX_SLACK_CHARS].rpartition(' ')[0]} …"
    leads = (html.escape(link, quote=False) for link in links.values())
    return "\n".join((text, f"`{_command(finding)}`", *leads))


def _severity(finding: Finding) -> str:
    return (finding.severity or Severity.WARNING).value


def _command(finding: Finding) -> str:
    return f"frd findings {finding.id}"
