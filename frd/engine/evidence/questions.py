"""On which occasion which ranks of an attempt are asked what, and how often.

Of a job that makes progress, and of which no finding opens, no rank is asked. A question is asked
once: what is not answered is asked again only if its occasion comes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.evidence.answers import Answer, Answers, Confirm
from frd.engine.findings.builder import EXPLAINING
from frd.engine.hangs.detector import pause_ns
from frd.engine.hangs.diagnosis import diagnose
from frd.engine.hangs.unrecorded import threshold_of_call_ns
from frd.engine.policy import Policy
from frd.engine.state.snapshot import AT_REST, EARLY, Snapshot, StalledOp
from frd.engine.tick import Tick
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    Kind,
    RankState,
    Reason,
    WaitKind,
    WaitSource,
)


class QuestionKind(StrEnum):
    DUMP = "dump"
    """Flight Recorder dumps and stacks: an answer for each rank, and one for the stored dump."""
    STACK = "stack"
    INSPECTION = "inspection"
    """What the rank is blocked in, by /proc."""
    OPINION = "second opinion"
    """What NCCL's RAS service counts. One answer: it speaks for all ranks."""


class Occasion(StrEnum):
    """Why ranks are asked; the most urgent first: once about a finding, then what may prove a wait,
    then what is repeated every second."""

    EARLY = "early"
    """A wait has lasted for half of its threshold: the ranks that it would be blamed on, and one
    that waits; each once, so that a finding opens with what they answer."""
    OPENED = "opened"
    """A finding opened: the ranks involved, once."""
    NAMED = "named"
    """A suspect was named later: its stack, once."""
    UNDECIDED = "undecided"
    """No rank is the cause of a hang, or one is alone in an op: RAS, once for either reason."""
    SIGHTED = "sighted"
    """A stack showed a wait for the first time: the rank once more, because two stacks prove it."""
    WAITING = "waiting"
    """A finding explains why nothing moves: the ranks that were seen in calls without a record,
    every minute, because such a wait ends without a trace."""
    STILL = "still"
    """Nothing explains why no watermark has risen for the stall threshold: living ranks, every
    minute. Where no rank waits, the next time is twice as late: a job may compute for long, and
    sends and receives of Gloo move no watermark."""
    SUSPECTED = "suspected"
    """Live suspects that are in no op, every second, from some seconds before the finding opens: an
    agent reads much of a process that it inspects, so that no other rank is asked."""


@dataclass(frozen=True, slots=True)
class Rule:
    kind: QuestionKind = QuestionKind.STACK
    within_s: float = 10.0
    """How long agents may take to answer."""


RULES: Final = {
    **dict.fromkeys(Occasion, Rule()),
    Occasion.OPENED: Rule(QuestionKind.DUMP),
    # An agent uses up to 12 s of it: 6 s for the question, because RAS itself waits for processes
    # that do not respond, and 6 s before it for the question about another finding.
    Occasion.UNDECIDED: Rule(QuestionKind.OPINION, 15.0),
    Occasion.SUSPECTED: Rule(QuestionKind.INSPECTION, 1.0),
}
MAX_RANKS: Final = 64
"""Ranks that one question asks."""
ROUND_S: Final = 60.0
"""Between two rounds of stacks: a finding may say for so long that a rank waits which no longer
does. With half of it, ranks are stopped twice as often to be looked at."""
LEAST_OFTEN_S: Final = 960.0
"""The longest time between two rounds in which no rank waits: four doublings."""
MOST_EARLY: Final = 8
"""Ranks of one incident that are asked before it is a finding."""
INSPECT_BEFORE_S: Final = 6.0
"""From so long before a wait is a finding, its suspects are inspected: an agent answers with what
three samples show, a second apart. With half of it a slow agent answers too late; with twice as
much, pauses that end before the threshold cost twice as much of the agents."""
INSPECT_S: Final = 0.9
"""Less than the second that passes: evaluations are a quarter of a second apart."""
_LOST: Final = 40
"""The service gives an answer for each rank, but questions about a job may have to wait for their
turn. After so many times the time for it, an answer is lost."""
MUTE_S: Final = 9.9
"""How long a rank is not inspected again that has not answered."""
_NO_STACKS: Final = frozenset({Kind.STRAGGLER, Kind.CLOCK_UNSYNCHRONIZED})
"""Kinds for which no rank is asked, because its present stack does not explain them."""
_INSPECTED: Final = frozenset({Reason.CPU_STUCK, Reason.UNREACHABLE})
_UNDECIDED: Final = frozenset({Reason.NETWORK_OR_DEVICE, Reason.IN_COLLECTIVE_ALONE})


@dataclass(frozen=True, slots=True)
class Question:
    number: int
    """Within the attempt."""
    attempt: AttemptKey
    occasion: Occasion
    ranks: tuple[int, ...]
    """Of an opinion: one of them answers, the first ones preferably."""
    asked_at: AlignedNs
    finding: str = ""
    """The id of the finding that it is about."""
    children_of: tuple[int, ...] = ()
    """The ranks of whose child processes stacks are wanted, too."""
    members: tuple[tuple[int, int], ...] = ()
    """Of an opinion: the ranks of the group, ascending, with their process ids; 0 unknown."""

    @property
    def rule(self) -> Rule:
        return RULES[self.occasion]

    @property
    def until(self) -> AlignedNs:
        """Then no answer is expected any more."""
        return AlignedNs(self.asked_at + round(_LOST * self.rule.within_s * 1e9))


@dataclass(slots=True)
class _Early:
    """Before waits are findings."""

    asked: dict[StalledOp | str, frozenset[int]] = field(default_factory=dict)
    """The ranks that were asked because of each op, or call without a record, while it waits."""
    due_at: int = 0
    is_recorded: bool = False
    """A recorded op waits."""
    inspected: tuple[int, ...] = ()
    """Ranks that the waits would be blamed on, when they are about to be findings."""


@dataclass(slots=True)
class _Rounds:
    """Rounds of stacks while nothing moves."""

    still_since: AlignedNs
    """When a watermark last rose, as far as that was looked at, or a group was first seen."""
    due_at: AlignedNs
    pause_s: float = ROUND_S
    is_explained: bool = False
    """A finding says why nothing moves."""
    count: int = 0
    """How often ranks were asked because nothing moved."""
    inspected_since: AlignedNs | None = None
    """The `still_since` for which ranks were inspected."""
    inspected_until: float = 0
    """When that ends: what a rank polls for is proven when it has lasted for a threshold."""


class Questions:
    """The questions about one attempt."""

    def __init__(self, key: AttemptKey) -> None:
        self._key = key
        self._count = 0
        self._open: dict[int, tuple[Question, set[int]]] = {}
        """Questions whose time is not over, and the ranks that have not answered."""
        self._named: dict[str, set[int]] = {}
        """Suspects that were asked for their stacks, by open finding."""
        self._reasons: dict[str, set[Reason]] = {}
        """Reasons because of which RAS was asked, by open finding."""
        self._inspected_at = AlignedNs(0)
        self._inspectable: set[int] = set()
        """Ranks whose agents have ever answered an inspection."""
        self._muted: dict[int, AlignedNs] = {}
        """Until when ranks are not inspected."""
        self._early = _Early()
        self.resting: tuple[int, ...] = ()
        """Suspects of a standstill that is about to be a finding."""
        self._rounds: _Rounds | None = None
        """Of an attempt that runs."""
        self.asking: tuple[str, ...] = ()
        """Ids of open findings that an answer may still improve, as of the last `due`."""

    def answered(self, answer: Answer) -> None:
        """By one rank of a question, or for all of them (-1)."""
        question, left = self._open.get(answer.question, (None, set[int]()))
        left.discard(answer.rank)
        if question is not None and (answer.rank < 0 or not left):
            del self._open[answer.question]
        if answer.occasion != Occasion.SUSPECTED:
            return
        if answer.blocked is not None:
            self._inspectable.add(answer.rank)
        elif answer.is_silent and answer.rank not in self._inspectable:
            self._muted[answer.rank] = AlignedNs(answer.asked_at + round(MUTE_S * 1e9))

    def due(
        self,
        now: AlignedNs,
        attempt: Attempt,
        known: Answers,
        tick: Tick | None,
        findings: Mapping[str, Finding],
        events: Sequence[FindingEvent],
        *,
        is_over: bool,
        is_dismissed: bool = False,
    ) -> list[Question]:
        """What is to be asked now. `tick` is the look of this moment, if there was one, `findings`
        are those that are open for users, by id, `events` what has just changed of them;
        `is_dismissed`: others were closed by hand, and their trouble lasts."""
        self._open = {n: one for n, one in self._open.items() if now < one[0].until}
        asked = [*self._about_findings(now, attempt, events)]
        wanted = {
            one.id: _to_inspect(one, known.blocked)
            for one in findings.values()
            if not (one.ended_by or one.kind is Kind.RANK_LOST)
        }
        explaining = [one for one in findings.values() if one.kind in EXPLAINING]
        if is_over or is_dismissed:
            self._early = _Early()
        elif tick is not None:
            asked += self._before(now, tick, explaining)
        inspected = (*self._early.inspected, *self.resting)[:MOST_EARLY]
        if not (is_over or is_dismissed or explaining or self._early.is_recorded):
            inspected += self._at_rest(now, attempt)
        if inspected:
            others = {rank for ranks in wanted.values() for rank in ranks}
            each = dict.fromkeys((*inspected, *sorted(known.blocked)))
            wanted[""] = [rank for rank in each if rank not in others]
        known.keep(wanted)
        opened = any(event.change is Change.OPENED for event in events)
        if opened or now - self._inspected_at >= INSPECT_S * 1e9:
            asked += self._inspections(now, wanted)
        if is_over:
            self._rounds = None
            known.forget_stacks()
        elif attempt.tables.groups.count:
            self._rounds = rounds = self._rounds or _Rounds(now, now)
            asked += self._round(now, attempt, known, explaining, rounds)
        self._named = {id_: ranks for id_, ranks in self._named.items() if id_ in findings}
        self._reasons = {id_: why for id_, why in self._reasons.items() if id_ in findings}
        self.asking = tuple(id_ for id_, one in findings.items() if self._may_improve(one))
        return asked

    def _may_improve(self, finding: Finding) -> bool:
        """A suspect has not answered, and the finding does not say yet what the suspect was asked
        for. Without suspects: a rank that was asked about the finding has not answered."""
        for question, left in self._open.values():
            is_wait = question.rule.kind is QuestionKind.INSPECTION
            for one in finding.suspects:
                stack = one.stack if one.rank not in question.children_of else ()
                shown = one.waits_for if is_wait else one.doing or one.workers or stack
                if one.rank in left and not shown:
                    return True
            if left and not finding.suspects and question.finding == finding.id:
                return True
        return False

    def _ask(
        self,
        now: AlignedNs,
        occasion: Occasion,
        ranks: Sequence[int],
        finding: str = "",
        children_of: Collection[int] = (),
        members: Sequence[tuple[int, int]] = (),
    ) -> Question:
        self._count += 1
        some = tuple(ranks if members else ranks[:MAX_RANKS])
        question = Question(
            *(self._count, self._key, occasion, some, now, finding),
            *(tuple(children_of), tuple(members)),
        )
        self._open[self._count] = question, set() if members else set(some)
        return question

    def _is_asking(self, kind: QuestionKind, finding: str = "") -> bool:
        return any(
            one.rule.kind is kind and one.finding == finding for one, _ in self._open.values()
        )

    # -- before there is a finding -------------------------------------------------------------

    def _before(
        self, now: AlignedNs, tick: Tick, explaining: Sequence[Finding]
    ) -> Iterator[Question]:
        """A wait will be a finding: look for its cause as if it was one, at half of all times."""
        early, table = self._early, tick.early
        is_news = len(table) > len(tick.stalls) if explaining else len(table) or tick.has_calls
        if not is_news:
            self._early = _Early()
            return
        if now < early.due_at:
            return
        early.due_at, early.is_recorded = now + pause_ns(tick.world_size), len(table) > 0
        snapshot = tick.snapshot()
        asked, inspected, stuck = early.asked, list[int](), table.ops()
        named = {one.rank for finding in explaining for one in finding.suspects}
        early.asked = {op: of for op, of in asked.items() if op in stuck}
        half, policy = _at_half(snapshot, tick.policy)
        for diagnosis in diagnose(half, table, policy):
            suspects = [
                one
                for one in diagnosis.suspects
                if one.rank not in named and snapshot.lives(one.rank)
            ]
            inspected += [one.rank for one in suspects if one.reason in _INSPECTED]
            waits = diagnosis.stalled or (diagnosis.collective.op,)
            before = frozenset[int]().union(*(asked.get(wait, ()) for wait in waits))
            ranks = [one.rank for one in suspects if one.rank not in before]
            if ranks and not before:
                ranks = ranks[:MOST_EARLY]
                ranks += [r for r in diagnosis.collective.waiting_ranks if r not in ranks][:1]
            ranks = ranks[: max(1 + MOST_EARLY - len(before), 0)]
            early.asked |= dict.fromkeys(waits, before.union(ranks))
            if ranks:
                children_of = [one.rank for one in suspects if one.rank in ranks]
                yield self._ask(now, Occasion.EARLY, ranks, children_of=children_of)
        is_soon = now >= snapshot.stalled_at(table).at - INSPECT_BEFORE_S * 1e9
        early.inspected = tuple(inspected[:MOST_EARLY]) if is_soon else ()

    def _at_rest(self, now: AlignedNs, attempt: Attempt) -> tuple[int, ...]:
        """The ranks of a job in which nothing has moved for a threshold, and no op waits: a look at
        /proc costs them nothing, and shows which of them poll, or are blocked in what. It goes on
        for as long as a wait has to last, and is repeated with the rounds of stacks."""
        if (rounds := self._rounds) is None:
            return ()
        is_begun = rounds.inspected_since == rounds.still_since
        is_done = is_begun and now >= rounds.inspected_until
        if is_done or not _rests(now, attempt, rounds, 1):
            return ()
        if not is_begun:
            rounds.inspected_since = rounds.still_since
            rounds.inspected_until = now + 2 * _highest_ns(attempt)
        return tuple(_some_of(attempt, 0))

    # -- about findings ------------------------------------------------------------------------

    def _about_findings(
        self, now: AlignedNs, attempt: Attempt, events: Iterable[FindingEvent]
    ) -> Iterator[Question]:
        for event in events:
            finding = event.finding
            if event.change is Change.CLOSED:
                continue
            yield from self._opinion(now, attempt, finding)
            if finding.kind in _NO_STACKS:
                continue
            suspects = [suspect.rank for suspect in finding.suspects]
            if event.change is Change.OPENED:
                self._named[finding.id] = set(suspects)
                ranks = _involved(finding)
                yield self._ask(now, Occasion.OPENED, ranks, finding.id, children_of=suspects)
                continue
            # The suspects of a finding of an earlier process of the service were asked then.
            asked = self._named.setdefault(finding.id, set(suspects))
            if new := [rank for rank in suspects if rank not in asked]:
                asked.update(new)
                yield self._ask(now, Occasion.NAMED, new, finding.id, children_of=new)

    def _opinion(self, now: AlignedNs, attempt: Attempt, finding: Finding) -> Iterator[Question]:
        reasons = _UNDECIDED & {finding.reason, *(s.reason for s in finding.suspects)}
        if not reasons or (ref := finding.collective) is None:
            return
        # A finding of an earlier process that has an opinion was asked about then.
        known = set(reasons) if finding.second_opinion else set()
        if not reasons - (asked := self._reasons.setdefault(finding.id, known)):
            return
        if not (members := attempt.processes_of(ref.group_id)):
            return
        asked |= reasons
        named = {suspect.rank for suspect in finding.suspects}
        ranks = sorted((rank for rank, _ in members), key=lambda rank: rank in named)
        if ranks := [rank for rank in ranks if attempt.may_use(rank, "nccl")]:
            yield self._ask(now, Occasion.UNDECIDED, ranks, finding.id, members=members)

    def _inspections(
        self, now: AlignedNs, wanted: Mapping[str, Sequence[int]]
    ) -> Iterator[Question]:
        self._muted = {rank: at for rank, at in self._muted.items() if now < at}
        for finding_id, ranks in wanted.items():
            ready = [rank for rank in ranks if rank not in self._muted]
            if ready and not self._is_asking(QuestionKind.INSPECTION, finding_id):
                self._inspected_at = now
                yield self._ask(now, Occasion.SUSPECTED, ready, finding_id)

    # -- while nothing moves -------------------------------------------------------------------

    def _round(
        self,
        now: AlignedNs,
        attempt: Attempt,
        known: Answers,
        explaining: Sequence[Finding],
        rounds: _Rounds,
    ) -> Iterator[Question]:
        if again := known.to_confirm(now):
            yield self._ask(now, Occasion.SIGHTED, again)
            return
        if explaining and not rounds.is_explained:  # its ranks are asked now, see `OPENED`
            rounds.due_at = AlignedNs(now + round(ROUND_S * 1e9))
        rounds.is_explained = bool(explaining)
        if now < rounds.due_at or self._is_asking(QuestionKind.STACK):
            return
        # Waits that are about to be findings say why nothing moves.
        if not explaining and not _rests(now, attempt, rounds, 1 + bool(self._early.asked)):
            return
        if not explaining and rounds.count and not known.waiting:
            rounds.pause_s = min(2 * rounds.pause_s, LEAST_OFTEN_S)
        pause_s = ROUND_S if explaining else rounds.pause_s
        rounds.due_at = AlignedNs(now + round(pause_s * 1e9))
        if explaining:
            if waiting := sorted({*known.waiting, *_in_calls(explaining)}):
                yield self._ask(now, Occasion.WAITING, waiting)
            return
        rounds.inspected_until = now + 2 * _highest_ns(attempt)
        # The taps of the others have published where they are.
        if some := [r for r in _some_of(attempt, rounds.count) if not attempt.is_shown(r, now)]:
            yield self._ask(now, Occasion.STILL, some)
        rounds.count += 1


def confirmed_after(
    occasion: str, attempt: Attempt, policy: Policy, now: AlignedNs
) -> Confirm | None:
    """When another stack may prove a wait that one showed: if a finding explains it, that its rank
    is at rest; otherwise that the wait is a hang itself. None if no other will be asked for."""
    groups = attempt.tables.groups
    threshold_ns = groups.threshold_ns[: groups.count]
    if occasion == Occasion.SIGHTED:
        return None
    if occasion == Occasion.STILL:
        of = policy, int(threshold_ns.max(initial=0)), attempt.call_thresholds_ns(now)
        return lambda op: threshold_of_call_ns(op, *of)
    rest_ns = threshold_ns.min() * AT_REST if groups.count else 0
    return lambda op: int(rest_ns)


def _highest_ns(attempt: Attempt) -> int:
    """The highest threshold of its groups."""
    groups = attempt.tables.groups
    return int(groups.threshold_ns[: groups.count].max())


def _rests(now: AlignedNs, attempt: Attempt, rounds: _Rounds, times: float) -> bool:
    """No watermark has risen for so many thresholds. What has moved is looked at only then."""
    threshold_ns = _highest_ns(attempt) * times
    if now - rounds.still_since < threshold_ns:
        return False
    if (moved_at := attempt.tables.moved_at(now)) > rounds.still_since:
        rounds.still_since, rounds.pause_s = AlignedNs(moved_at), ROUND_S
    return bool(now - rounds.still_since >= threshold_ns)


def in_vain(answer: Answer) -> tuple[WaitSource, str] | None:
    """What a rank was asked for and does not show, and why; None for other answers."""
    kind = next((rule.kind for one, rule in RULES.items() if one == answer.occasion), None)
    if answer.rank < 0 or kind in (None, QuestionKind.OPINION):
        return None
    if kind is QuestionKind.INSPECTION:
        found, why = answer.blocked, answer.unanswered if answer.is_silent else ""
        if found is not None and found.waits_for.kind is WaitKind.NOT_ALLOWED:
            why = found.waits_for.says
        return (WaitSource.INSPECTION, why) if why else None
    if answer.stack is None:
        return (WaitSource.STACK, answer.unanswered) if answer.is_silent else None
    return None if answer.stack.place else (WaitSource.STACK, "it shows no frames of Python")


def _at_half(snapshot: Snapshot, policy: Policy) -> tuple[Snapshot, Policy]:
    """The same with all thresholds at `EARLY`."""
    times = {
        name: getattr(policy, name) * EARLY for name in ("stall_after_s", "init_stall_after_s")
    }
    thresholds_ns = (snapshot.threshold_ns * EARLY).astype(np.int64)
    of_calls = {op: round(ns * EARLY) for op, ns in snapshot.call_threshold_ns.items()}
    half = replace(snapshot, threshold_ns=thresholds_ns, call_threshold_ns=of_calls)
    return half, replace(policy, **times)


def _some_of(attempt: Attempt, turn: int) -> list[int]:
    """Living ranks, others in each turn if there are too many, spread over the job."""
    ranks = attempt.tables.ranks
    alive = [
        rank
        for rank in ranks.sorted().tolist()
        if rank not in ranks.statuses or ranks.statuses[rank].state is RankState.LIVE
    ]
    step = -(-len(alive) // MAX_RANKS) or 1
    return alive[turn % step :: step]


def _involved(finding: Finding) -> list[int]:
    """The ranks of a finding, the most important first."""
    suspects = [suspect.rank for suspect in finding.suspects]
    collective = finding.collective
    members = (*collective.missing_ranks, *collective.waiting_ranks) if collective else ()
    return list(dict.fromkeys((*suspects, *members, *finding.victims)))


def _to_inspect(finding: Finding, blocked: set[int]) -> list[int]:
    """Suspects that may be inspected; ranks that turned out to wait for one of them, too."""
    ranks = [one.rank for one in finding.suspects if one.reason in _INSPECTED]
    return [*ranks, *sorted(blocked.intersection(finding.victims))] if ranks and blocked else ranks


def _in_calls(findings: Iterable[Finding]) -> Iterator[int]:
    """The ranks that findings about calls without a record are about: an earlier process of the
    service may have seen them there."""
    for finding in findings:
        if (ref := finding.collective) is not None and not ref.group_id:
            yield from ref.waiting_ranks
            yield from (suspect.rank for suspect in finding.suspects)
