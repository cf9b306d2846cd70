"""Which messages about findings a webhook gets, and when. Pure: no thread and no socket.

A finding causes at most five messages: it opens, it becomes critical, it gets its first suspect,
a person acknowledges it, it closes. If several of the first three have happened since the last
message, a target gets one message, for the first of them in its configuration. An acknowledgement
and a closing are sent only to a target that has received a message about this finding before.

While a finding is silenced, the first three rest: they are sent when the silence ends, if the
finding is still open. What is no news any more, and which targets got a message, is stored with the
finding (`Notified`), so that it outlives a restart and a takeover. An open finding without such a
record counts as sent to each target that wants what has happened to it, unless it is silenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.config import NotifyEvent, NotifyTarget
from frd.model import AlignedNs, Finding, Severity
from frd.store.findings import Notified

HOLD_S: Final = 4.5
"""How long a message waits for ranks that were asked: with the time to the next look and for the
request, it is sent within 5 s. With half of it, three samples of an inspection, a second apart,
often miss the first message."""

_ACKNOWLEDGED: Final = "acknowledged"


def after(
    known: Notified, finding: Finding, targets: Sequence[NotifyTarget], now: AlignedNs
) -> tuple[Notified, list[tuple[str, NotifyEvent]]]:
    """The messages about this version of an open finding, each by the name of its target and what
    has happened, and what is known after them."""
    happened, messages = _happened(finding), list[tuple[str, NotifyEvent]]()
    news = [event for event in happened if event not in known.events]
    if finding.is_silenced(now):
        news = [event for event in news if event == _ACKNOWLEDGED]
    for target in targets:
        is_reached = target.name in known.targets
        wanted = (e for e in news if e != _ACKNOWLEDGED and _wants(target, e, finding))
        if (first := next(wanted, None)) is not None:
            messages.append((target.name, first))
        is_acknowledged = _ACKNOWLEDGED in (news if is_reached else happened)
        if is_acknowledged and (is_reached or first is not None) and _ACKNOWLEDGED in target.on:
            messages.append((target.name, _ACKNOWLEDGED))
    reached = dict.fromkeys((*known.targets, *(name for name, _ in messages)))
    return Notified(finding.id, (*known.events, *news), tuple(reached)), messages


def at_end(known: Notified, targets: Sequence[NotifyTarget]) -> list[tuple[str, NotifyEvent]]:
    """The messages about a closing."""
    reached = [one for one in targets if one.name in known.targets]
    return [(one.name, "closed") for one in reached if "closed" in one.on]


def assumed(finding: Finding, targets: Sequence[NotifyTarget], now: AlignedNs) -> Notified:
    """What another process has made of an open finding, as far as that can be known."""
    happened = _happened(finding)
    reached = [one.name for one in targets if any(_wants(one, e, finding) for e in happened)]
    events = () if finding.is_silenced(now) else happened
    return Notified(finding.id, tuple(events), tuple(reached))


def _happened(finding: Finding) -> list[NotifyEvent]:
    """To an open finding."""
    has_happened: dict[NotifyEvent, bool] = {
        "opened": True,
        "critical": finding.severity is Severity.CRITICAL,
        "suspect": bool(finding.suspects),
        _ACKNOWLEDGED: bool(finding.acknowledged_by),
    }
    return [event for event, is_so in has_happened.items() if is_so]


def _wants(target: NotifyTarget, event: NotifyEvent, finding: Finding) -> bool:
    is_severe = target.min_severity == "warning" or finding.severity is Severity.CRITICAL
    return event in target.on and is_severe
