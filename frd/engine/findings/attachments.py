"""Evidence that arrives after a finding opened: stacks, notes, the id of a dump, what NCCL says.

Attachments are kept apart from the finding's own fields, because every look may replace those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from frd.engine.findings import builder, text
from frd.model import Activity, Finding, Holder, Reason, Suspect, WaitsFor, Witness, WorkerStack

T = TypeVar("T", Activity, WorkerStack, WaitsFor, Holder)
_STACK_LINES = 64
_MOST_WORKERS = 16
_WORKER_LINES = 16
_MOST_OPINIONS = 16
_FROM = "; "
"""Starts the part of a disagreement that names source lines."""
_WAIT_FOR_RANKS = ("torch/distributed/", "torch/futures/")
"""Libraries whose innermost frame may wait for other ranks."""
_MAY_BE_BUSY = frozenset({Reason.CPU_STUCK, Reason.UNREACHABLE})
"""Whether such a rank uses its processor shows whether it works or waits."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A piece of evidence for a finding: what a rank does, the dump of the job, what NCCL says."""

    rank: int | None = None
    activity: Activity | None = None
    """Of `rank`."""
    dump: str | None = None
    waits_for: WaitsFor | None = None
    """What `rank` is blocked in."""
    second_opinion: tuple[str, ...] = ()


@dataclass(slots=True)
class Attachments:
    activities: dict[int, Activity] = field(default_factory=dict)
    """By rank."""
    waits: dict[int, WaitsFor] = field(default_factory=dict)
    """What ranks are blocked in."""
    dump: str | None = None
    second_opinion: tuple[str, ...] = ()

    @classmethod
    def of(cls, finding: Finding) -> Attachments:
        """What a finding of an earlier process of the service carries."""
        known = {
            s.rank: Activity(s.stack, s.inside, s.doing, workers=s.workers)
            for s in finding.suspects
            if s.stack or s.doing or s.workers
        }
        waits = {s.rank: s.waits_for for s in finding.suspects if s.waits_for is not None}
        return cls(known, waits, finding.dump, finding.second_opinion)

    def add(self, evidence: Evidence) -> None:
        """A stack stays: only another one takes its place."""
        rank, new, waits_for = evidence.rank, evidence.activity, evidence.waits_for
        if rank is not None and new is not None and (new.stack or rank not in self.activities):
            workers = tuple(cleaned(one, _WORKER_LINES) for one in new.workers[:_MOST_WORKERS])
            self.activities[rank] = replace(cleaned(new), workers=workers)
        if rank is not None and waits_for is not None:
            self.waits[rank] = waits_for
        self.dump = evidence.dump if evidence.dump is not None else self.dump
        if evidence.second_opinion:
            self.second_opinion = tuple(map(text.clean, evidence.second_opinion[:_MOST_OPINIONS]))

    def attached_to(self, finding: Finding, suspects: Sequence[Suspect]) -> Finding:
        """The finding with these suspects, and with everything that was attached."""
        return replace(
            finding,
            suspects=builder.listed(map(self._with_activity, suspects)),
            witness=self._witness(finding),
            disagreement=self._with_lines(finding),
            dump=self.dump,
            second_opinion=self.second_opinion,
        )

    def _with_activity(self, suspect: Suspect) -> Suspect:
        """The suspect with its activity; the evidence mentions each part of it once."""
        activity = self.activities.get(suspect.rank, Activity(stack=suspect.stack))
        found = self.waits.get(suspect.rank)
        words = [suspect.evidence]
        if activity.stack:
            inside = f", inside {activity.inside}" if activity.inside else ""
            words.append(text.STANDS_AT + text.place(activity.stack[0], " in ") + inside)
        if suspect.reason in _MAY_BE_BUSY:
            words.append(activity.usage)
        words.append(activity.note)
        kept: list[str] = []
        for word in words:
            if word and not any(word in earlier for earlier in kept):
                kept.append(word)
        return replace(
            suspect,
            stack=activity.stack,
            inside=activity.inside,
            doing=activity.doing,
            workers=activity.workers,
            waits_for=found and replace(found, text=text.waits_for(suspect.rank, found)),
            evidence="; ".join(kept),
        )

    def _with_lines(self, finding: Finding) -> str:
        """What ranks may disagree on if none is named, with the lines from which they joined."""
        said, ref = finding.disagreement.partition(_FROM)[0], finding.collective
        if not said or ref is None or finding.reason is not Reason.NETWORK_OR_DEVICE:
            return finding.disagreement
        lines: dict[str, list[int]] = {}
        for rank in ref.waiting_ranks:
            if (activity := self.activities.get(rank)) is not None and activity.stack:
                lines.setdefault(text.place(activity.stack[0]), []).append(rank)
        places = (f"{text.ranks(ranks)} joined at {line}" for line, ranks in lines.items())
        return said + (_FROM + ", ".join(places) if lines else "")

    def _witness(self, finding: Finding) -> Witness | None:
        """The first rank that waits in the finding's collective and whose stack is known."""
        ref = finding.collective
        shown = {rank for rank, activity in self.activities.items() if activity.stack}
        shown.intersection_update(finding.victims)
        for rank in (*(ref.waiting_ranks if ref is not None else ()), *finding.victims):
            if not shown:
                break
            if rank in shown:
                return Witness(rank, self.activities[rank].stack)
        return finding.witness


def shows_place(of: Activity | Suspect) -> bool:
    """The stack shows where the program is, and that is not a wait for a collective or a call of
    torch.distributed, which may be for any rank, nor the end of the program, after which the rank
    joins nothing."""
    may_wait = any(library in of.inside for library in _WAIT_FOR_RANKS)
    return bool(of.stack) and not may_wait and not of.doing.startswith("the program has ended")


def cleaned(of: T, lines: int = _STACK_LINES) -> T:
    """Printable and of bounded length, whatever names the job uses."""
    words: dict[str, Any] = {}
    for part in fields(of):
        value = getattr(of, part.name)
        if type(value) is str:  # not an enumeration
            words[part.name] = text.clean(value)
        elif isinstance(value, Holder):
            words[part.name] = cleaned(value)
        elif part.name == "stack":
            words[part.name] = tuple(map(text.clean, value[:lines]))
    return replace(of, **words)
