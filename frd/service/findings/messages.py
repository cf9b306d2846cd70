"""Messages about findings, as webhooks take them.

A message names the cause, the effect, where suspects are and what they wait for, what to do, and
the page. Nothing in it is what a rank has printed, or the command line of a process. Texts of jobs
are one printable line each, and no markup: escaped for Slack; in a card for Teams, text runs, which
have no Markdown.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, assert_never

from frd.address import finding_page
from frd.config import NotifyEvent, NotifyTarget
from frd.do_now import do_now, shown_json
from frd.do_now.table import RUNBOOKS
from frd.engine.findings.text import STANDS_AT, clean, place
from frd.forms import finding_json, folded, utc_text
from frd.model import AlignedNs, Finding, FindingState, Kind, Severity, Suspect

VERSION: Final = 1
"""Version of the JSON form. It changes when a key loses its meaning, not when keys are added."""
_MAX_SLACK_CHARS: Final = 3_500
_MAX_CARD_BYTES: Final = 20_000
"""Teams refuses messages above about 28 KB, and in practice some that are smaller."""
_MAX_SUMMARY_CHARS: Final = 1_024
"""Of PagerDuty."""
_MAX_LINE_CHARS: Final = 1_000
_MAX_SUSPECTS: Final = 16
_ACTIONS: Final[dict[str, str]] = {"acknowledged": "acknowledge", "closed": "resolve"}
"""Of PagerDuty; the others trigger."""
_LINKS: Final = {"page_url": "Open the finding", "runbook_url": "Runbook"}
Event: TypeAlias = NotifyEvent | Literal["test"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What a message is about."""

    event: Event
    finding: Finding


def sample_finding(now: AlignedNs) -> Finding:
    """What a message of the event `test` is about."""
    says = "Test of frd: nothing is wrong"
    of = f"test-{now}", Kind.TELEMETRY_GAP, FindingState.OPEN, "test", 0, now
    return Finding(*of, headline=says, summary=says)


def body(notice: Notice, target: NotifyTarget, url: str, *, has_pages: bool = True) -> bytes:
    """The request's body, without secrets. `url` is where people open the service, without a slash
    at the end."""
    finding = notice.finding
    base = target.runbook_url.rstrip("/") or f"{url}/runbooks"
    links = {"page_url": finding_page(url, finding.id)} if has_pages else {}
    links["runbook_url"] = f"{base}/{RUNBOOKS[finding.kind]}.md"
    match target.format:
        case "json":
            content = _generic(notice, links)
        case "slack":
            content = {"text": _slack(notice, links)}
        case "teams":
            content = _teams(notice, links)
        case "pagerduty":
            content = _pagerduty(notice, links)
        case _:
            assert_never(target.format)
    return json.dumps(content).encode()


def _generic(notice: Notice, links: Mapping[str, str]) -> dict[str, Any]:
    shown = (finding_json if notice.event == "test" else shown_json)(notice.finding)
    for suspect in shown["suspects"]:
        suspect.get("address", {}).pop("command", None)
    keys = ("id", "job", "kind", "summary", "headline", "effect", "suspects", "do_now")
    return {
        "version": VERSION,
        "event": notice.event,
        **{key: shown[key] for key in keys if key in shown},
        "severity": _severity(notice.finding),
        **links,
        "command": _command(notice.finding),
        "finding": shown,
    }


def _slack(notice: Notice, links: Mapping[str, str]) -> str:
    steps = (f"→ {text} {_code(command)}".rstrip() for text, command in _steps(notice))
    lines = [f"*{_title(notice)}*", *_cause(notice), *steps, *_rest(notice)]
    # Escaped for Slack, so that nothing in a job's name becomes a mention or a link.
    text = html.escape("\n".join(lines), quote=False)
    if len(text) > _MAX_SLACK_CHARS:
        # Not in the middle of an escape.
        text = f"{text[:_MAX_SLACK_CHARS].rpartition(' ')[0]} …"
    leads = (html.escape(link, quote=False) for link in links.values())
    return "\n".join((text, _code(_command(notice.finding)), *leads))


def _code(text: str) -> str:
    """A backtick inside would end the code, and the rest could not be copied."""
    return f"`{text}`" if text and "`" not in text else text


def _teams(notice: Notice, links: Mapping[str, str]) -> dict[str, Any]:
    rows = [[_run(_title(notice), weight="Bolder", size="Medium")]]
    rows += [[_run(line)] for line in _cause(notice)]
    for text, command in _steps(notice):
        rows.append([_run(f"→ {text} "), _run(command or " ", fontType="Monospace")])
    rows += [[_run(line, isSubtle=True)] for line in _rest(notice)]
    rows.append([_run(_command(notice.finding), fontType="Monospace")])
    body = [{"type": "RichTextBlock", "inlines": row} for row in rows]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
        "actions": [
            {"type": "Action.OpenUrl", "title": _LINKS[key], "url": url}
            for key, url in links.items()
        ],
    }
    while len(json.dumps(card)) > _MAX_CARD_BYTES:
        body.pop()
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _run(text: str, **style: Any) -> dict[str, Any]:
    return {"type": "TextRun", "text": text, **style}


def _pagerduty(notice: Notice, links: Mapping[str, str]) -> dict[str, Any]:
    """Without the routing key, which is read when the message is sent."""
    finding, action = notice.finding, _ACTIONS.get(notice.event, "trigger")
    content = {"event_action": action, "dedup_key": finding.id}
    if action != "trigger":
        return content
    details = {
        "suspects": "\n".join(_rest(notice)),
        "do_now": "\n".join(" ".join(step) for step in _steps(notice)),
        "command": _command(finding),
    }
    job, first = clean(finding.job), next(iter(finding.suspects), None)
    payload = {
        "summary": clean(f"{job}: {'; '.join(_cause(notice))}", _MAX_SUMMARY_CHARS),
        "source": clean(first.node if first is not None else "") or job or "frd",
        "severity": _severity(finding),
        "timestamp": utc_text(finding.opened_at),
        "group": job,
        "class": finding.kind.value,
        "custom_details": details,
    }
    if first is not None:
        payload["component"] = f"rank {first.rank}"
    return {
        **content,
        "client": "frd",
        "links": [{"href": url, "text": _LINKS[key]} for key, url in links.items()],
        "payload": payload,
    }


# -- parts of a message --------------------------------------------------------------------------


def _title(notice: Notice) -> str:
    finding = notice.finding
    news: dict[Event, str] = {
        "opened": _severity(finding),
        "critical": "now critical",
        "suspect": "first suspect",
        "acknowledged": f"acknowledged by {finding.acknowledged_by}",
        "closed": "closed",
        "test": "test",
    }
    return _line(f"{news[notice.event]}: {finding.kind.value} in job {finding.job}")


def _cause(notice: Notice) -> list[str]:
    finding = notice.finding
    return [_line(text) for text in (finding.headline, finding.effect) if text]


def _steps(notice: Notice) -> list[tuple[str, str]]:
    """What to do while it lasts: text and command, which may be empty."""
    if notice.event not in ("opened", "critical", "suspect"):
        return []
    return [(_line(step.text), step.command) for step in do_now(notice.finding)]


def _rest(notice: Notice) -> Iterator[str]:
    """What the cause leaves out: of each suspect what shows it, its line, and its wait."""
    finding, is_over = notice.finding, notice.event in _ACTIONS
    suspects = () if is_over else finding.suspects[:_MAX_SUSPECTS]
    lines = {one.rank: _shown(one) for one in suspects}
    for who, alike in folded(finding_json(finding)["suspects"][: len(suspects)]):
        first, *_ = alike.values()
        said = "; ".join(f"{of}{lines[suspect['rank']]}" for of, suspect in alike.items())
        yield _line(f"• {who} ({first['reason']}, confidence {first['confidence']}): {said}")
    if len(finding.suspects) > _MAX_SUSPECTS and not is_over:
        yield f"• and {len(finding.suspects) - _MAX_SUSPECTS} more"
    if finding.ended_by:
        yield _line(finding.ended_by)
    if notice.event == "closed" and finding.close_reason:
        yield _line(f"closed: {finding.close_reason}")


def _line(text: str) -> str:
    return clean(text[: _MAX_LINE_CHARS + 1], _MAX_LINE_CHARS)


def _shown(suspect: Suspect) -> str:
    said = suspect.evidence
    line = place(suspect.stack[0]) if suspect.stack and STANDS_AT not in said else ""
    wait = suspect.waits_for.text if suspect.waits_for is not None else ""
    return "; ".join(filter(None, (said, line, wait)))


def _severity(finding: Finding) -> str:
    return (finding.severity or Severity.WARNING).value


def _command(finding: Finding) -> str:
    return f"frd findings {finding.id}"
