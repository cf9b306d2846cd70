"""Which findings viewers have to get again: those that opened, closed, or say something else now.

A finding's ages and wordings change all the time; so do those of hundreds of findings of a job of
16,384 ranks, each of which may be a hundred kilobytes. Comparing them is work for a thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from frd.do_now import shown_json
from frd.errors import StoreError
from frd.forms import json_bytes
from frd.model import Finding, FindingState
from frd.service.http.answers import MAX_FINDINGS
from frd.service.view import ServiceView

AGAIN_S: Final = 10.0
"""How often a finding is sent again of which only texts and ages have changed,"""
_BYTES_PER_S: Final = 8_000
"""unless there are so many, or so large ones, that this would be more bytes."""


@dataclass(slots=True)
class _Shown:
    """An open finding as viewers have it."""

    finding: Finding
    at: float
    size: int = 0
    """Bytes of its JSON."""


@dataclass(slots=True)
class News:
    """What has changed since the last look."""

    findings: list[bytes] = field(default_factory=list)
    """Findings as JSON."""
    opened_or_closed: bool = False


class FindingNews:
    """`look` reads the disk. One thread at a time."""

    def __init__(self, view: ServiceView) -> None:
        self._view = view
        self._shown: dict[str, _Shown] | None = None
        """By id; None before the first look."""

    def look(self, now: float) -> News:
        """`now` is a monotonic time in seconds. The first look has no news: what is open then is
        for the viewers to ask."""
        is_open, news = self._open_findings(), News()
        if self._shown is None:
            self._shown = {id_: _Shown(finding, now) for id_, finding in is_open.items()}
            return news
        shown = self._shown
        again_s = max(AGAIN_S, sum(one.size for one in shown.values()) / _BYTES_PER_S)
        for id_, finding in is_open.items():
            last = shown.get(id_)
            if last is None or _differs(last, finding, now, again_s):
                news.findings.append(json_bytes(shown_json(finding)))
                shown[id_] = _Shown(finding, now, len(news.findings[-1]))
                news.opened_or_closed |= last is None
        for id_ in shown.keys() - is_open.keys():
            try:
                closed = self._view.finding(id_)
            except StoreError:
                continue  # the next look tries again
            del shown[id_]
            news.opened_or_closed = True
            if closed is not None:
                news.findings.append(json_bytes(shown_json(closed)))
        return news

    def _open_findings(self) -> dict[str, Finding]:
        """Of all replicas: the store has copies of those of the others."""
        copies = []
        if self._view.state.cluster is not None:
            copies = self._view.store.query(state=FindingState.OPEN, limit=MAX_FINDINGS)
        own = self._view.findings(state=FindingState.OPEN, job=None, limit=MAX_FINDINGS)
        return {finding.id: finding for finding in (*copies, *own)}


def _differs(shown: _Shown, finding: Finding, now: float, again_s: float) -> bool:
    """Whether viewers have to get a finding again: if it says something else now; for another
    wording, after `again_s`."""
    if _gist(shown.finding) != _gist(finding):
        return True
    return now - shown.at >= again_s and _ageless(shown.finding) != _ageless(finding)


def _gist(finding: Finding) -> tuple[object, ...]:
    suspects = [
        (s.rank, s.reason, s.confidence, bool(s.stack), s.waits_for and s.waits_for.kind)
        for s in finding.suspects
    ]
    gist = finding.state, finding.severity, finding.kind, finding.dump, finding.ended_by
    return (
        *(*gist, suspects, finding.witness is None, len(finding.victims)),
        *(bool(finding.second_opinion), finding.opened_at // 1_000_000_000, finding.goes_on),
        *(finding.acknowledged_by, finding.assigned_to, len(finding.notes)),
        *(finding.silenced_until_at, finding.silenced_by),
    )


def _ageless(finding: Finding) -> Finding:
    collective = finding.collective
    if collective is not None:
        collective = replace(collective, waited_s=0.0)
    return replace(finding, collective=collective, effect="", summary="")
