"""What a finding says at three in the morning: the cause first, then what it holds up.

The headline is the cause, from the best that is known: what the rank is blocked in, else what its
program is doing, else the line, else the reason. None of its numbers changes by itself, so it may
be a label or the title of a ticket. The effect has the waiting time. The summary is one sentence of
both, uncut, and of what else is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from frd.engine.findings.text import STANDS_AT, clean, collective, place, ranks, seen_for, waits_for
from frd.forms import duration_text, span_text
from frd.model import (
    DEVICE,
    LOCK,
    POLL,
    Certainty,
    CollectiveRef,
    Finding,
    Kind,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)

MOST_CHARS: Final = 100
"""Of a headline."""
_MOST_EFFECT: Final = 600
_LONG_WORD: Final = 30
"""A word of this length may be cut in its middle, to `_SHORT_WORD` characters."""
_SHORT_WORD: Final = 24
_NAMED_ONE_BY_ONE: Final = 3
"""Up to this many suspects are listed with the cause of each."""
_WORDED: Final = {
    *(Kind.MEMORY_SPIKE, Kind.OOM, Kind.STRAGGLER, Kind.CLOCK_UNSYNCHRONIZED, Kind.STANDSTILL)
}
"""Kinds whose detectors write headline and effect, since no other field has their figures."""
_BLOCKED: Final = {
    *(WaitKind.FILE_READ, WaitKind.FILE_WRITE, WaitKind.FILE_SYNC, WaitKind.FILE_OPEN),
    *(WaitKind.PAGE_FAULT, WaitKind.LOCK_FILE, WaitKind.LOCK_SHARED, WaitKind.SOCKET),
}
"""Waits that say more than the program's line."""
_STATES: Final = {WaitKind.STOPPED, WaitKind.ZOMBIE}
"""The same of a process that is in no call."""
_VAGUE: Final = {WaitKind.ON_CPU, WaitKind.NOT_ALLOWED, WaitKind.UNKNOWN}
"""Waits that say less than the program's line."""
_REASONS: Final = {
    Reason.CPU_STUCK: " is alive, but has not joined",
    Reason.EXITED: " has exited",
    Reason.UNREACHABLE: " does not answer",
    Reason.IN_COLLECTIVE_ALONE: " is still inside an op that the other ranks completed",
    Reason.DEVICE_STUCK: " has joined, but the device has not started the op",
    Reason.MISMATCH: " joined with another op, size or type than the other ranks",
}
_PLURALS: Final = {
    " is alive, but has ": " are alive, but have ",
    " is ": " are ",
    " has ": " have ",
    " does ": " do ",
    ": its ": ": their ",
}
"""How clauses about several ranks begin."""
_WAYS: Final = {POLL: "a poll", DEVICE: "a wait for their devices", LOCK: "a wait for a lock"}
"""What ranks are in if that is no call."""
_ASIDE: Final = re.compile(r" \((pid \d+|\d+\.\d cores|state \w|asleep in \w+\(\), [a-z ]+)\)")
"""Details of a wait for which a headline has no room."""
_WHEN: Final = re.compile(r"(; last report)? at \d\d:\d\d:\d\d( \(last [^;]*\))?")
"""When a lost rank ended, and in what, which headlines leave out."""


def worded(finding: Finding, *, timed: bool = True) -> Finding:
    """The finding with the headline, effect and summary that fit its other fields.

    `timed` when the waiting time is that of now, not of some moment in the past.
    """
    if finding.kind in _WORDED:
        whole = "; ".join(filter(None, (_begun(finding.headline), finding.effect)))
        summary = finding.summary or whole
        headline = shortened(finding.headline or summary)
        effect = clean(finding.effect, _MOST_EFFECT)
        return replace(finding, headline=headline, effect=effect, summary=summary)
    cause = _cause(finding, timed)
    effect = clean(_effect(finding, timed), _MOST_EFFECT)
    rest = (*_rest(finding, cause, timed), _tie(finding.suspects), finding.ended_by)
    headline = shortened(_WHEN.sub("", cause) if finding.kind is Kind.RANK_LOST else cause)
    summary = "; ".join(filter(None, (_begun(cause), effect, *rest)))
    return replace(finding, headline=headline, effect=effect, summary=summary)


def shortened(cause: str) -> str:
    """At most `MOST_CHARS`. Clauses go first; then long words, such as paths, lose their middle:
    the end of a path says the most."""
    text = _begun(clean(cause, 10 * MOST_CHARS)).rstrip(".")
    while len(text) > MOST_CHARS and "; " in text:
        text = text.rpartition("; ")[0]
    while len(text) > MOST_CHARS and len(longest := max(text.split(" "), key=len)) >= _LONG_WORD:
        kept = max(_SHORT_WORD, len(longest) - (len(text) - MOST_CHARS))
        text = text.replace(longest, f"{longest[: kept // 3]}…{longest[1 + kept // 3 - kept :]}", 1)
    return clean(text, MOST_CHARS)


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- the cause -----------------------------------------------------------------------------------


def _cause(finding: Finding, timed: bool) -> str:
    suspects, reasons = finding.suspects, {s.reason for s in finding.suspects}
    if finding.kind is Kind.RANK_LOST:
        return _lost(finding)
    if suspects and (finding.kind is Kind.MISMATCH or reasons == {Reason.MISMATCH}):
        return _with_node(finding.disagreement, suspects) or _who(suspects)
    if reasons == {Reason.ORDER}:
        groups = " and ".join(finding.groups_held_up) if len(finding.groups_held_up) == 2 else ""
        if len(suspects) > 1:
            return f"{_named(suspects)} entered {groups or 'their groups'} in different orders"
        otherwise = f"{_named(suspects)} entered {groups or 'its groups'} in another order"
        return _with_node(finding.disagreement, suspects) or otherwise
    if suspects:
        return _who(suspects)
    if finding.disagreement:
        return finding.disagreement
    if finding.unknown and finding.reason is not Reason.NETWORK_OR_DEVICE:
        why = (
            "whose telemetry is missing or late" if timed else "of which the dumps show too little"
        )
        return f"the cause may be {ranks(finding.unknown)}, {why}"
    if timed and finding.collective is not None and not finding.collective.group_size:
        return "the group may wait for members that are not of this job"
    return "no single rank is the cause of the hang: check network and devices"


def _with_node(disagreement: str, suspects: Sequence[Suspect]) -> str:
    """``rank 2 (node7) passed float16 where ..``"""
    who = ranks([s.rank for s in suspects])
    is_first = disagreement.startswith(f"{who} ")
    return _named(suspects) + disagreement[len(who) :] if is_first else disagreement


def _named(suspects: Sequence[Suspect]) -> str:
    """``ranks 0-1 (node7)``; the node if it is one."""
    nodes = {s.node for s in suspects}
    node = f" ({clean(min(nodes))})" if len(nodes) == 1 and nodes != {""} else ""
    return ranks([s.rank for s in suspects]) + node


def _who(suspects: Sequence[Suspect]) -> str:
    """The suspects and what is wrong with each; of many of them, their reasons."""
    alike: dict[tuple[bool, str], list[Suspect]] = {}
    for one in suspects:
        is_less_sure = one.confidence is not suspects[0].confidence
        does = _does(one) if len(suspects) <= _NAMED_ONE_BY_ONE else _REASONS.get(one.reason, "")
        alike.setdefault((is_less_sure, does), []).append(one)
    return ", ".join(
        f"{'perhaps ' * is_less_sure}{_named(of)}{_plural(does) if len(of) > 1 else does}"
        for (is_less_sure, does), of in alike.items()
    )


def _plural(does: str) -> str:
    begun = ((one, many) for one, many in _PLURALS.items() if does.startswith(one))
    one, many = next(begun, ("", ""))
    return many + does[len(one) :]


def _does(suspect: Suspect) -> str:
    """The best that is known of the rank, to follow its name."""
    found, program = suspect.waits_for, _program(suspect)
    if found is not None and found.says and found.certainty is not Certainty.UNKNOWN:
        is_clear = found.kind in _BLOCKED | _STATES or found.holder is not None
        if is_clear or not (suspect.doing or found.kind in _VAGUE):
            short, _ = _short(found)
            where = place(suspect.stack[0]) if suspect.stack and "its main thread " in short else ""
            return f": {short}" + (f" at {where}" if where else "")
    if suspect.doing or not suspect.stack:
        return program or _REASONS.get(suspect.reason, "")
    if suspect.reason is Reason.CPU_STUCK:
        return program
    return f"{_REASONS.get(suspect.reason, '')} ({place(suspect.stack[0])})"


def _program(suspect: Suspect) -> str:
    """``: saving a checkpoint (train.py:88 save)``, `` is at train.py:88 step``. The line is left
    out if the phrase names a place that says more."""
    names_place = ": " in suspect.doing or suspect.doing.startswith("the program")
    where = place(suspect.stack[0]) if suspect.stack and not names_place else ""
    if suspect.doing:
        return f": {suspect.doing}" + (f" ({where})" if where else "")
    return f" is at {where}" if where else ""


def _short(found: WaitsFor) -> tuple[str, list[str]]:
    """``its loader worker is stuck in read(/data/shard-17.tar)``, and the details left out."""
    says, mount = clean(found.says), f"{clean(found.fs)} on {clean(found.mount)}"
    details = _ASIDE.findall(says)
    says = _ASIDE.sub("", says)
    if f" ({mount})" in says:
        details.append(mount)
        says = says.replace(f" ({mount})", "", 1)
    if found.what:
        says = says.replace(f"() of {clean(found.what)}", f"({clean(found.what)})", 1)
    who, _, does = says.partition(" has been ")
    if not does:
        return says, details
    is_stuck = found.kind in _BLOCKED and does.startswith("in ") and "() calls" not in does
    is_stuck &= "slow rather than stuck" not in found.rest
    likely = "probably " * (found.certainty is Certainty.LIKELY)
    return f"{who} is {likely}{'stuck ' * is_stuck}{does}", details


def _lost(finding: Finding) -> str:
    """``rank 1 (node7) was killed by SIGKILL at 10:02:11 (...)``"""
    suspects = finding.suspects
    if not suspects:
        return (
            f"{ranks(finding.victims)} ended, and each blames a peer: "
            "which rank ended first is not known"
        )
    first = suspects[0].evidence.partition(f"; {STANDS_AT}")[0]
    who = f"{_named(suspects[:1])}{':' * first.startswith('its ')} {first}"
    if len(suspects) > 1:
        others = ranks([s.rank for s in suspects[1:]])
        who += f", and {others} {'were' if len(suspects) > 2 else 'was'} lost with it"
    return who


# -- the effect ----------------------------------------------------------------------------------


def _effect(finding: Finding, timed: bool) -> str:
    """``holds up 2 ranks in all_reduce #36 of default_pg for 62 s``"""
    ref, suspects = finding.collective, finding.suspects
    others, groups = len(finding.victims), len(finding.groups_held_up)
    them = "it" if len(suspects) == 1 else "them"
    # A suspect does not hold itself up.
    count = len({*ref.waiting_ranks} - {s.rank for s in suspects}) if ref is not None else 0
    waiting = f"{count} rank{'s' * (count != 1)}" if count else "the job"
    wait = "waited" if not finding.lasts else "waits" if count == 1 else "wait"
    if finding.kind is Kind.RANK_LOST:
        affects = f"affects {others} other rank{'s' * (others != 1)}" if others and suspects else ""
        return f"{waiting} {wait} for {them}" if count else affects
    if ref is None:
        return f"the job waits for {them}" if suspects else ""
    if finding.kind is Kind.MISMATCH and not ref.waiting_ranks:
        return ""
    where = f"in {_where(ref)}" + (f" for {duration_text(ref.waited_s)}" if timed else "")
    in_all = f"{others} rank{'s' * (others != 1)}" + f" in {groups} groups" * (groups > 1)
    if {s.reason for s in suspects} == {Reason.ORDER}:
        held = f", and hold up {in_all}" if others and groups > 1 else ""
        return f"they {'wait' if finding.lasts else 'waited'} for each other {where}{held}"
    where += f", in all {in_all}" if others and (groups > 1 or others > count > 0) else ""
    if suspects:
        hold = "held" if not finding.lasts else "holds" if len(suspects) == 1 else "hold"
        return f"{hold} up {waiting} {where}"
    have_joined = ", although all ranks that are known have joined"
    return f"{waiting} {wait} {where}{have_joined * (finding.reason is Reason.NETWORK_OR_DEVICE)}"


def _where(ref: CollectiveRef) -> str:
    if not ref.group_id and ref.op in _WAYS:
        return _WAYS[ref.op]
    return collective(ref.op, ref.seq, "") + (f" of {clean(ref.group)}" if ref.group else "")


# -- the rest ------------------------------------------------------------------------------------


def _rest(finding: Finding, cause: str, timed: bool) -> Iterator[str]:
    """What is known beyond the cause."""
    if finding.disagreement and not cause.endswith(_after_name(finding.disagreement)):
        yield finding.disagreement
    if finding.kind is Kind.MISMATCH:
        at = next((s for s in finding.suspects if s.stack and place(s.stack[0]) not in cause), None)
        if at is not None:
            yield f"rank {at.rank} is at {place(at.stack[0])}"
        return
    if finding.kind is Kind.RANK_LOST:
        return
    if finding.unknown and not finding.suspects:
        yield (
            "check the agents (frd status)" if timed else f"take a dump of {ranks(finding.unknown)}"
        )
    for one in finding.suspects[:_NAMED_ONE_BY_ONE]:
        does = _program(one)
        if does and one.waits_for is not None and does.strip(": ").removeprefix("is ") not in cause:
            yield f"rank {one.rank}{does}"
    yield _wait(finding.suspects, cause, timed)


def _after_name(disagreement: str) -> str:
    """Without ``rank 2``, after which a headline names the node."""
    return disagreement.partition(" ")[2].partition(" ")[2]


def _wait(suspects: Sequence[Suspect], cause: str, timed: bool) -> str:
    """What the suspects wait for, as far as the cause does not say it. If several wait, the one
    that is known best."""
    known = [
        (s.rank, s.waits_for) for s in suspects if s.waits_for is not None and s.waits_for.says
    ]
    order = [Certainty.SEEN, Certainty.LIKELY, Certainty.UNKNOWN]
    if not known:
        return ""
    rank, found = min(known, key=lambda one: order.index(one[1].certainty))
    short, details = _short(found)
    if short not in cause:
        return waits_for(rank, found, timed=timed)
    likely = "probably " * (found.certainty is Certainty.LIKELY)
    waits = f"{likely}waits for {clean(found.topic)}" if found.topic else "has been seen so"
    aside = f" ({', '.join(details)})" if details else ""
    rest = f"; {clean(found.rest)}" if found.rest else ""
    return f"rank {rank} {waits}{seen_for(found) if timed else ''}{aside}{rest}"


def _tie(suspects: Sequence[Suspect]) -> str:
    """That several began at the same time, where it took their clocks to find out."""
    tied = [s for s in suspects if s.tied]
    if len({s.onset_at for s in tied}) < 2:
        return ""
    bounds = sorted(s.onset_uncertainty_s for s in tied if s.onset_uncertainty_s is not None)
    if len(bounds) < len(tied):
        return "their clocks are not exact enough to say which was first"
    return f"they began at the same time, within {span_text(round(sum(bounds[-2:]) * 1e9))}"
