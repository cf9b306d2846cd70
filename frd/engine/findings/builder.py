"""From verdicts to findings: ids, labels, and the evidence that came later.

A finding is put together anew whenever its claim, a stack or a note changes; nothing is edited in
place, so there is one way in which a finding can look, however it came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from frd.engine.clocks.uncertain_time import UncertainTime, ties
from frd.engine.findings import text as summary
from frd.engine.hangs.attribution import Blame
from frd.engine.hangs.diagnosis import Verdict
from frd.engine.hangs.exits import TOGETHER_NS, Exit
from frd.engine.hangs.lost_ranks import Loss
from frd.engine.state.snapshot import Bools, GroupSnapshot, Snapshot
from frd.forms import clock_text
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    CollectiveRef,
    Confidence,
    Finding,
    Int32s,
    Kind,
    RankState,
    Reason,
    Suspect,
    Witness,
    WorkerStack,
)

Key: TypeAlias = tuple[str, int, int]
"""Something that is stuck, over time: as `frd.engine.state.snapshot.Stuck`, but by group_id."""

_STACK_LINES = 64
_MOST_WORKERS = 16
_WORKER_LINES = 16
_MAY_BE_BUSY = frozenset({Reason.CPU_STUCK, Reason.UNREACHABLE})
"""Whether such a rank uses its processor tells whether it works or waits."""
_SURENESS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
CERTAIN = _SURENESS.index(Confidence.HIGH)
"""What `surest` gives where somebody is named with high confidence."""


@dataclass(slots=True)
class Attachments:
    """What was found out after a finding opened; kept apart, for claims are replaced."""

    activities: dict[int, Activity] = field(default_factory=dict)
    """By rank."""
    notes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    dump: str | None = None

    @classmethod
    def of(cls, finding: Finding) -> Attachments:
        """What a finding of an earlier process of the service carries."""
        known = {
            s.rank: Activity(s.stack, s.inside, s.doing, workers=s.workers)
            for s in finding.suspects
            if s.stack or s.doing or s.workers
        }
        return cls(known, dump=finding.dump)

    def add(
        self, *, rank: int | None, activity: Activity | None, note: str, dump: str | None
    ) -> None:
        if rank is not None and activity is not None:
            self.activities[rank] = _cleaned(activity)
        if rank is not None and note:
            self.notes[rank] = (*self.notes.get(rank, ()), summary.clean(note))
        self.dump = dump if dump is not None else self.dump

    def dressed(self, finding: Finding, suspects: Sequence[Suspect]) -> Finding:
        """The finding with these suspects and all that was attached."""
        return replace(
            finding,
            suspects=tuple(self.adorn(suspect) for suspect in suspects),
            witness=self.witness(finding),
            dump=self.dump,
        )

    def adorn(self, suspect: Suspect) -> Suspect:
        """The suspect with what is known of its activity; its evidence says it too, once."""
        activity = self.activities.get(suspect.rank, Activity(stack=suspect.stack))
        words = [suspect.evidence]
        if activity.stack:
            inside = f", inside {activity.inside}" if activity.inside else ""
            words.append(summary.STANDS_AT + summary.place(activity.stack[0], " in ") + inside)
        if suspect.reason in _MAY_BE_BUSY:
            words.append(activity.usage)
        words += (activity.note, *self.notes.get(suspect.rank, ()))
        told: list[str] = []
        for word in words:
            if word and not any(word in earlier for earlier in told):
                told.append(word)
        return replace(
            suspect,
            stack=activity.stack,
            inside=activity.inside,
            doing=activity.doing,
            workers=activity.workers,
            evidence="; ".join(told),
        )

    def witness(self, finding: Finding) -> Witness | None:
        """The first of those who wait in the finding's collective whose stack is known."""
        ref = finding.collective
        for rank in (*(ref.waiting_ranks if ref is not None else ()), *finding.victims):
            activity = self.activities.get(rank)
            if activity is not None and activity.stack and rank in finding.victims:
                return Witness(rank, activity.stack)
        return finding.witness


def _cleaned(activity: Activity) -> Activity:
    """Printable and of bounded length, whatever the job calls its things."""
    return Activity(
        stack=_lines(activity.stack, _STACK_LINES),
        inside=summary.clean(activity.inside),
        doing=summary.clean(activity.doing),
        usage=summary.clean(activity.usage),
        note=summary.clean(activity.note),
        workers=tuple(
            WorkerStack(
                pid=one.pid,
                name=summary.clean(one.name),
                stack=_lines(one.stack, _WORKER_LINES),
                inside=summary.clean(one.inside),
                doing=summary.clean(one.doing),
                usage=summary.clean(one.usage),
            )
            for one in activity.workers[:_MOST_WORKERS]
        ),
    )


def _lines(stack: Sequence[str], most: int) -> tuple[str, ...]:
    return tuple(summary.clean(line) for line in stack[:most])


def finding_id(key: AttemptKey, kind: Kind, about: str, opened_at: AlignedNs) -> str:
    parts = (key.job, str(key.attempt), kind.value, about, str(opened_at))
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest()[:16]


def keys_of(snapshot: Snapshot, verdict: Verdict) -> set[Key]:
    """What identifies an incident over time."""
    keys = {(snapshot.groups[g].info.group_id, seq, rank) for g, seq, rank in verdict.stalled}
    return keys | {key_about(snapshot, verdict)}


def key_about(snapshot: Snapshot, verdict: Verdict) -> Key:
    return key_of(collective_of(snapshot, verdict, waited_s=0.0))


def key_of(ref: CollectiveRef) -> Key:
    return ref.group_id, ref.seq, min(ref.waiting_ranks, default=-1) if ref.seq < 0 else -1


def collective_of(snapshot: Snapshot, verdict: Verdict, waited_s: float) -> CollectiveRef:
    info = snapshot.groups[verdict.instance.group].info
    return CollectiveRef(
        group=summary.clean(info.label),
        group_id=info.group_id,
        group_size=len(info.ranks),
        seq=verdict.instance.seq,
        op=summary.clean(verdict.op),
        waiting_ranks=verdict.waiting,
        missing_ranks=verdict.missing,
        waited_s=waited_s,
    )


def labels_of(snapshot: Snapshot, verdict: Verdict) -> tuple[str, ...]:
    """Groups that wait, the finding's own first; groups of one description are told once."""
    groups = [verdict.instance.group, *(stuck.group for stuck in verdict.stalled)]
    labels = (summary.clean(snapshot.groups[group].info.label) for group in groups)
    return tuple(dict.fromkeys(labels))


def suspects_of(snapshot: Snapshot, verdict: Verdict, most: int) -> tuple[Suspect, ...]:
    sure = sorted(verdict.suspects, key=lambda b: -_SURENESS.index(b.confidence))[:most]
    kept = {blame.rank for blame in sure}
    named = [blame for blame in verdict.suspects if blame.rank in kept]
    return timed(
        [
            Suspect(b.rank, node_of(snapshot, b.rank), b.reason, b.confidence, b.evidence)
            for b in named
        ],
        [blame.began for blame in named],
    )


def timed(
    suspects: Sequence[Suspect], began: Sequence[UncertainTime], least_ns: int = 0
) -> tuple[Suspect, ...]:
    """With the time at which each began, and whether that has an order."""
    return tuple(
        replace(
            suspect,
            onset_at=moment.at or None,
            onset_uncertainty_s=moment.uncertainty_s,
            tied=tied,
        )
        for suspect, moment, tied in zip(suspects, began, ties(began, least_ns), strict=True)
    )


def begun_by(suspects: Sequence[Suspect], at: AlignedNs) -> tuple[Suspect, ...]:
    """No cause is later than its finding, whatever a clock that is off may say."""
    return tuple(
        s if s.onset_at is None or s.onset_at <= at else replace(s, onset_at=at) for s in suspects
    )


def suspects_of_loss(snapshot: Snapshot, loss: Loss, most: int) -> tuple[Suspect, ...]:
    exits = loss.exits[:most]
    suspects = [
        Suspect(one.rank, node_of(snapshot, one.rank), Reason.EXITED, loss.confidence, words)
        for one in exits
        for words in [exit_words(snapshot, one)]
    ]
    return timed(suspects, [one.seen for one in exits], TOGETHER_NS)


def exit_words(snapshot: Snapshot, one: Exit) -> str:
    """``was killed by SIGKILL at 10:02:11 (last joined all_reduce #249 on default_pg)``."""
    words = f"{summary.ended(one.how)} at {clock_text(one.at)}"
    last = last_joined(snapshot, one.rank, one.at)
    if last:
        words += f" ({last})"
    return f"{words}; {summary.clean(one.how.note)}" if one.how.note else words


def began_after(snapshot: Snapshot, suspect: Suspect, opened_at: AlignedNs) -> bool:
    """Beyond doubt: an end that was only seen may be as old as the last word of the rank."""
    if suspect.onset_at is None or suspect.onset_at <= opened_at:
        return False
    if suspect.reason is Reason.UNREACHABLE or suspect.reason is Reason.EXITED:
        row = int(np.searchsorted(snapshot.rank, suspect.rank))
        return bool(snapshot.as_of[row] > opened_at)
    return True


def last_joined(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> str:
    """The last collective that a rank is known to have joined, in the group where it came last."""
    found: tuple[int, int, GroupSnapshot] | None = None
    for group in snapshot.groups:
        at = int(np.searchsorted(group.members, rank))
        if at == len(group.members) or group.members[at] != rank or group.enqueued[at] < 0:
            continue
        moved = int(group.moved_at[at]) if group.moved_at is not None else 0
        if found is None or (moved, len(group.members)) > (found[0], len(found[2].members)):
            found = moved, int(group.enqueued[at]), group
    if found is None:
        return ""
    _, seq, group = found
    told = "last joined" if _told_all(snapshot, rank, ended_at) else "last seen in"
    op = group.ops(seq)  # forgotten once all have completed it
    what = summary.collective(op, seq, group.info.label)
    return f"{told} {what if op else f'#{seq} on {summary.clean(group.info.label)}'}"


def held_up_by(snapshot: Snapshot, lost: Sequence[Exit]) -> CollectiveRef | None:
    """The collective in which the most ranks wait for one of these, or waited until it failed."""
    ranks = [one.rank for one in lost]
    live = snapshot.rank[[state is RankState.LIVE for state in snapshot.state]]
    told = {one.rank for one in lost if _told_all(snapshot, one.rank, one.at)}
    found = [
        ref
        for group in snapshot.groups
        if (ref := _waits_in(group, np.isin(group.members, ranks), live, told)) is not None
    ]
    return max(found, key=lambda ref: (len(ref.waiting_ranks), ref.group_size), default=None)


def _waits_in(
    group: GroupSnapshot, lost: Bools, live: Int32s, told: set[int]
) -> CollectiveRef | None:
    """What members of a group wait in for its lost ones."""
    if not lost.any():
        return None
    inside = ~lost & (group.enqueued > group.completed) & np.isin(group.members, live)
    if inside.any():
        seq = int(group.completed[inside].min()) + 1
        waiting = group.members[inside & (group.completed + 1 == seq)]
    elif told.issuperset(group.members[lost].tolist()) and group.enqueued[lost].min() >= 0:
        seq = int(group.enqueued[lost].min()) + 1
        waiting = group.members[~lost & (group.enqueued >= seq)]
    else:
        return None
    if not len(waiting):
        return None
    return CollectiveRef(
        group=summary.clean(group.info.label),
        group_id=group.info.group_id,
        group_size=len(group.info.ranks),
        seq=seq,
        op=summary.clean(group.ops(seq)),
        waiting_ranks=tuple(waiting.tolist()),
        missing_ranks=tuple(group.members[lost].tolist()),
        waited_s=0.0,
    )


def _told_all(snapshot: Snapshot, rank: int, ended_at: AlignedNs) -> bool:
    """All that the rank did is known, to its end."""
    return bool(snapshot.as_of[int(np.searchsorted(snapshot.rank, rank))] >= ended_at)


def node_of(snapshot: Snapshot, rank: int) -> str:
    info = snapshot.info.get(rank)
    return summary.clean(info.node) if info is not None else ""


def surest(suspects: Sequence[Suspect | Blame]) -> int:
    """How sure the surest of them is; -1 for nobody."""
    return max((_SURENESS.index(s.confidence) for s in suspects), default=-1)


def refined(old: Sequence[Suspect], new: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """The same ranks for the same reasons: of each, the surer claim. Certainty is not lost."""
    before: Mapping[int, Suspect] = {s.rank: s for s in old}
    return tuple(s if surest([s]) >= surest([before[s.rank]]) else before[s.rank] for s in new)


def finished(finding: Finding) -> Finding:
    """With the summary that fits the rest of it."""
    return replace(finding, summary=summary.summarize(finding))


def looks_alike(one: Finding, other: Finding) -> bool:
    """Nothing that people see differs, but for the passing of time."""
    return _timeless(one) == _timeless(other)


def _timeless(finding: Finding) -> Finding:
    ref = finding.collective
    return replace(
        finding,
        summary="",
        collective=replace(ref, waited_s=0.0) if ref is not None else None,
        suspects=tuple(
            replace(s, onset_at=None, onset_uncertainty_s=None) for s in finding.suspects
        ),
    )
