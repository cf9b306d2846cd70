"""A finding as data: what it claims, without its texts, its id and exact times.

A change of wording must not change these values; a change of a cause, a confidence, a severity or
of the moment at which a finding opens or closes must.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from frd.forms import fold_ranks
from frd.model import AlignedNs, Change, Finding, FindingEvent

Json: TypeAlias = dict[str, Any]

_SECOND = 1_000_000_000


def as_json(value: Json) -> str:
    """One line; equal values give equal lines."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def verdict(finding: Finding, since_ns: int, *, answers: bool = False) -> Json:
    """What a finding claims, without empty fields; times are whole seconds after `since_ns`.
    `answers`: with what agents said when they were asked."""

    def seconds(at: AlignedNs | None) -> int | None:
        return None if at is None else round((at - since_ns) / _SECOND)

    claims: Json = {
        "kind": finding.kind,
        "attempt": finding.attempt,
        "state": finding.state,
        "severity": finding.severity,
        "reason": finding.reason,
        "opened_s": seconds(finding.opened_at),
        "closed_s": seconds(finding.closed_at),
        "critical_s": seconds(finding.critical_at),
        "suspects": [
            [s.rank, s.reason, s.confidence, seconds(s.onset_at), *(["tied"] if s.tied else [])]
            for s in finding.suspects
        ],
        "victims": fold_ranks(finding.victims),
        "unknown": fold_ranks(finding.unknown),
        "held_up": list(finding.groups_held_up),
    }
    if (at := finding.collective) is not None:
        claims["collective"] = [at.group, at.group_size, at.seq, at.op]
        claims["waiting"] = fold_ranks(at.waiting_ranks)
        claims["missing"] = fold_ranks(at.missing_ranks)
    if answers:
        claims |= _answers(finding)
    return {name: value for name, value in claims.items() if value not in (None, "", [], 0, False)}


def _answers(finding: Finding) -> Json:
    return {
        "places": [
            [
                s.rank,
                s.waits_for.kind if s.waits_for is not None else "",
                s.stack[0] if s.stack else "",
                s.doing,
            ]
            for s in finding.suspects
            if s.waits_for is not None or s.stack or s.doing
        ],
        "witness": [finding.witness.rank] if finding.witness is not None else [],
        "has_dump": finding.dump is not None,
        "opinions": len(finding.second_opinion),
        "has_ended_by": bool(finding.ended_by),
    }


def history(
    published: Iterable[Sequence[FindingEvent]], since_ns: int, *, answers: bool = False
) -> list[Json]:
    """What was published, in order: findings are numbered as they open, and an update holds only
    the fields that it changed. The order of events that were published together does not count."""
    numbers: dict[str, int] = {}
    known: dict[str, Json] = {}
    events: list[Json] = []
    for batch in published:
        ones = [
            (e.change, verdict(e.finding, since_ns, answers=answers), e.finding.id) for e in batch
        ]
        for change, now, finding_id in sorted(ones, key=lambda one: (one[0], as_json(one[1]))):
            number = numbers.setdefault(finding_id, len(numbers))
            before = {} if change is Change.OPENED else known.get(finding_id, {})
            known[finding_id] = now
            names = sorted(before.keys() | now.keys())
            changed = {name: now.get(name) for name in names if before.get(name) != now.get(name)}
            if changed or change is not Change.UPDATED:
                events.append({"finding": number, "change": change.name.lower(), **changed})
    return events
