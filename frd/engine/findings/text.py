"""Texts for people: what a finding says at three in the morning.

Every string that came from a job (group names, exceptions, stack frames) passes through `clean`,
so that a finding's text is one line of printable UTF-8, whatever a group is called. Texts contain
no numbers that change by themselves, except the waiting time, so that a finding's evidence changes
only when there is something new to say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import assert_never

from frd.forms import REASONS, clock_text, duration_text, fold_ranks, signal_name, span_text
from frd.model import (
    DEVICE,
    LOCK,
    POLL,
    Certainty,
    CollectiveRef,
    ExitInfo,
    ExitKind,
    Finding,
    FindingState,
    Kind,
    Reason,
    Suspect,
    SuspectPhase,
    WaitsFor,
)

_TEXT_LIMIT = 300
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_FRAME = re.compile(r"^(?:.*[/\\])?(?P<place>[^/\\]*:[\d?]+)\s+(?:in\s+)?(?P<function>\S.*)$")
STANDS_AT = "main thread at "
"""Starts the part of the evidence that names a stack's innermost frame."""
_NAMED_ONE_BY_ONE = 3
"""Up to this many suspects are listed with the place of each."""


def clean(text: str, limit: int = _TEXT_LIMIT) -> str:
    """One printable line: control, format and surrogate characters become U+FFFD."""
    if not text.isprintable():
        text = "".join(
            "\ufffd" if unicodedata.category(c) in _UNPRINTABLE else c
            for c in text.strip().replace("\n", " ").replace("\t", " ")
        )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def place(frame: str, between: str = " ") -> str:
    """Where a stack frame is, without its folders: ``train.py:88 load_batch``."""
    frame = clean(frame)
    match = _FRAME.match(frame)
    return f"{match['place']}{between}{match['function']}" if match is not None else frame


def collective(op: str, seq: int, label: str) -> str:
    """``all_reduce #7 on default_pg``; P2P ops (``send 0->8``) have no number, and calls that no
    recorder shows (``new_group``) have no group either."""
    number = f" #{seq}" if seq >= 0 else ""
    return f"{clean(op) or 'collective'}{number}" + (f" on {clean(label)}" if label else "")


def ranks(numbers: Sequence[int]) -> str:
    """``rank 2``, ``ranks 0-3,7``."""
    return f"rank{'s' if len(set(numbers)) != 1 else ''} {fold_ranks(numbers)}"


def summarize(finding: Finding, *, timed: bool = True) -> str:
    """One line: what waits, for which rank, and what that rank is doing.

    `timed` when the waiting time is that of now, not of some moment in the past.
    """
    match finding.kind:
        case Kind.RANK_LOST:
            return _lost(finding) + _tie(finding.suspects) + _ended(finding)
        case Kind.MISMATCH:
            return _mismatch(finding, timed) + _ended(finding)
        case Kind.MEMORY_SPIKE | Kind.OOM | Kind.STRAGGLER:
            return finding.summary  # its figures stand nowhere else
        case Kind.CLOCK_UNSYNCHRONIZED | Kind.STANDSTILL:
            return finding.summary  # no field has the places
        case _:
            said = _stall(finding, timed) + _tie(finding.suspects) + _held_up(finding)
            return said + _waits(finding.suspects, timed) + _ended(finding)


def waits_for(rank: int, found: WaitsFor, *, timed: bool = True) -> str:
    """``rank 2 waits for data: its loader worker (pid 7) has been in read() of /data/shard-17.tar
    for 41 s; 3 other workers are idle``, as of the moment at which that was seen. Empty if nothing
    is known."""
    if not found.says:
        return ""
    likely = "probably " if found.certainty is Certainty.LIKELY else ""
    topic = f" {likely}waits for {clean(found.topic)}" if found.topic else ""
    lasted = ""
    if timed and found.seen_at is not None and found.since_at is not None:
        lasted = f" for {duration_text((found.seen_at - found.since_at) / 1e9)}"
    rest = f"; {clean(found.rest)}" if found.rest else ""
    return f"rank {rank}{topic}: {clean(found.says)}{lasted}{rest}"


def _waits(suspects: Sequence[Suspect], timed: bool) -> str:
    """What the suspects wait for. If several wait, the one that is known best."""
    known = [s for s in suspects if s.waits_for is not None and s.waits_for.text]
    order = [Certainty.SEEN, Certainty.LIKELY, Certainty.UNKNOWN]
    found = min(known, key=lambda s: order.index(_of(s).certainty), default=None)
    if found is None:
        return ""
    return f"; {waits_for(found.rank, _of(found), timed=timed)}"


def _of(suspect: Suspect) -> WaitsFor:
    assert suspect.waits_for is not None
    return suspect.waits_for


def _ended(finding: Finding) -> str:
    return f"; {finding.ended_by}" if finding.ended_by else ""


def _stall(finding: Finding, timed: bool) -> str:
    if finding.collective is None:
        return f"the job waits for {_who(finding.suspects)}"
    waited = _waited(finding.collective, timed)
    suspects = finding.suspects
    reasons = {s.reason for s in suspects}
    if not suspects:
        if finding.reason is Reason.NETWORK_OR_DEVICE:
            known, why = "", "no single rank is the cause, check the network and the devices"
            if timed and not finding.collective.group_size:
                known, why = " of this job", "it may wait for members that are not of this job"
            why = finding.disagreement or why
            return f"{waited} although all of its ranks{known} have joined: {why}"
        why = "whose telemetry is missing or late: check the agents (frd status)"
        if not timed:  # from dump files
            why = f"of which the dumps show too little: take a dump of {ranks(finding.unknown)}"
        return f"{waited}; the cause may be {ranks(finding.unknown)}, {why}"
    if reasons == {Reason.ORDER}:
        order = finding.disagreement or (
            f"{_who(suspects)} entered their groups in different orders"
        )
        return f"{order}, and they wait for each other: {waited}"
    if reasons == {Reason.MISMATCH}:
        return f"{waited}: {_disagreement(finding)}"
    if reasons == {Reason.DEVICE_STUCK}:
        return f"{waited} for the device of {_who(suspects)}, which has not started it"
    if reasons == {Reason.IN_COLLECTIVE_ALONE}:
        return f"{waited} for {_who(suspects)}, still inside an op that the other ranks completed"
    return f"{waited} for {_who(suspects)}"


_WAYS = {POLL: "poll", DEVICE: "wait for their devices", LOCK: "wait for a lock"}
"""What ranks do in a wait that is no call."""


def _waited(ref: CollectiveRef, timed: bool) -> str:
    if not ref.group_id and (way := _WAYS.get(ref.op)):
        lasted = f", and have waited {ref.waited_s:.1f} s" if timed else ""
        return f"{ranks(ref.waiting_ranks)} {way}{lasted}"
    what = collective(ref.op, ref.seq, ref.group)
    return f"{what} has waited {ref.waited_s:.1f} s" if timed else f"{what} waits"


def _who(suspects: Sequence[Suspect]) -> str:
    """The suspects; of a few of them, what each is doing, or where, or what is wrong with it."""
    if len(suspects) == 1 and suspects[0].doing:
        return f"rank {suspects[0].rank}, {_clause(suspects[0])}"
    are_few = len(suspects) <= _NAMED_ONE_BY_ONE
    alike: dict[tuple[bool, str], list[int]] = {}
    for one in suspects:
        is_less_sure = one.confidence is not suspects[0].confidence
        remark = f" ({_remark(one)})" if are_few and _remark(one) else ""
        alike.setdefault((is_less_sure, remark), []).append(one.rank)
    return ", ".join(
        f"{'perhaps ' * is_less_sure}{ranks(of)}{remark}"
        for (is_less_sure, remark), of in alike.items()
    )


def _remark(suspect: Suspect) -> str:
    where = place(suspect.stack[0]) if suspect.stack else ""
    if suspect.doing:
        return ", ".join(filter(None, (suspect.doing, _place_beyond(suspect))))
    return where or _briefly(suspect)


def _briefly(suspect: Suspect) -> str:
    brief = (Reason.CPU_STUCK, Reason.EXITED, Reason.UNREACHABLE)
    return REASONS[suspect.reason] if suspect.reason in brief else ""


def _clause(suspect: Suspect) -> str:
    """``which is saving a checkpoint (train.py:88 save)``"""
    where = _place_beyond(suspect)
    doing = suspect.doing + (f" ({where})" if where else "")
    if suspect.doing.startswith("the program"):
        return f"where {doing}"
    return f"which {doing}" if suspect.doing.startswith("waits ") else f"which is {doing}"


def _place_beyond(suspect: Suspect) -> str:
    """Where the main thread is, unless the phrase names a place that says more."""
    names_place = ": " in suspect.doing or suspect.doing.startswith("the program")
    return place(suspect.stack[0]) if suspect.stack and not names_place else ""


def _tie(suspects: Sequence[Suspect]) -> str:
    """That several began at the same time, where it took their clocks to find out."""
    tied = [s for s in suspects if s.tied]
    if len({s.onset_at for s in tied}) < 2:
        return ""
    bounds = sorted(s.onset_uncertainty_s for s in tied if s.onset_uncertainty_s is not None)
    if len(bounds) < len(tied):
        return "; their clocks are not exact enough to say which was first"
    return f"; they began at the same time, within {span_text(round(sum(bounds[-2:]) * 1e9))}"


def _held_up(finding: Finding) -> str:
    groups, others = len(finding.groups_held_up), len(finding.victims)
    if groups < 2 or not others:
        return ""
    wait = "1 other rank waits" if others == 1 else f"{others} other ranks wait"
    return f"; {wait}, {groups} groups are held up"


def _mismatch(finding: Finding, timed: bool) -> str:
    text = _disagreement(finding)
    if (stack := next((s.stack for s in finding.suspects if s.stack), ())) and finding.suspects:
        rank = next(s.rank for s in finding.suspects if s.stack)
        text += f"; rank {rank} is at {place(stack[0])}"
    ref = finding.collective
    if ref is None or not ref.waiting_ranks:
        return text
    return f"{text}; {_waited(ref, timed)}"


def _disagreement(finding: Finding) -> str:
    if finding.disagreement:
        return finding.disagreement
    return f"{_who(finding.suspects)} joined with another op, size or type than the other ranks"


def _lost(finding: Finding) -> str:
    """``rank 1 was killed by SIGKILL at 10:02:11 (...); 3 ranks wait for it``."""
    suspects = finding.suspects
    if not suspects:
        return (
            f"{ranks(finding.victims)} ended, and each blames a peer: "
            "which rank ended first is not known"
        )
    first = suspects[0].evidence.partition(f"; {STANDS_AT}")[0]
    who = f"rank {suspects[0].rank} {first}"
    if len(suspects) > 1:
        others = ranks([s.rank for s in suspects[1:]])
        who += f", and {others} {'were' if len(suspects) > 2 else 'was'} lost with it"
    waiting = len(finding.collective.waiting_ranks) if finding.collective is not None else 0
    if not waiting:
        return who
    verb = "waits" if waiting == 1 else "wait"
    verb = verb if finding.state is FindingState.OPEN else "waited"
    them = "it" if len(suspects) == 1 else "them"
    return f"{who}; {waiting} rank{'s' * (waiting != 1)} {verb} for {them}"


def phase(found: SuspectPhase, when: str = "in") -> str:
    """``in phase epoch 3 / eval since 10:02:11``; a path that is too long keeps its inner end."""
    names = " / ".join(clean(name) or "''" for name in found.path)
    if len(names) > _TEXT_LIMIT:
        names = "…" + names[1 - _TEXT_LIMIT :]
    return f"{when} phase {names} since {clock_text(found.since_at)}"


def agent_gone(left: bool) -> str:
    """Why nothing is heard of a rank; `left`: its agent was asked to stop, or said goodbye."""
    return f"its agent {'was stopped while it lived' if left else 'has gone without a goodbye'}"


def ended(how: ExitInfo) -> str:
    """How a process ended, as what the rank did: ``raised ValueError: x (train.py:8 step)``."""
    raised = clean(f"{how.exception} ({how.where})" if how.where else how.exception)
    match how.kind:
        case ExitKind.CLEAN:
            return "exited with status 0"
        case ExitKind.EXCEPTION:
            return f"raised {raised}"
        case ExitKind.INTERRUPT:
            return "was stopped by KeyboardInterrupt"
        case ExitKind.STATUS:
            by = f" (128 + {signal_name(how.signal)})" if how.signal else ""
            return f"exited with status {how.status}{by}"
        case ExitKind.SIGNAL:
            return f"was killed by {signal_name(how.signal)}"
        case ExitKind.UNKNOWN:
            return "is gone and left no exit record (SIGKILL, out of memory, or os._exit)"
        case _ as never:
            assert_never(never)


def ended_by(how: ExitInfo) -> str:
    """The same as what ended it: ``KeyboardInterrupt``, ``SIGTERM``, ``RuntimeError: x``."""
    match how.kind:
        case ExitKind.INTERRUPT:
            return "KeyboardInterrupt"
        case ExitKind.EXCEPTION:
            return clean(how.exception)
        case ExitKind.SIGNAL:
            return signal_name(how.signal)
        case ExitKind.STATUS if how.signal:
            return signal_name(how.signal)
        case ExitKind.STATUS | ExitKind.CLEAN:
            return f"exit status {how.status or 0}"
        case ExitKind.UNKNOWN:
            return "an unknown cause (no exit record)"
        case _ as never:
            assert_never(never)
