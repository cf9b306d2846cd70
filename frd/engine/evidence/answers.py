"""What the answers of ranks mean: waits that they prove, and evidence for findings.

One stack shows one moment between the request and the answer. If the next one shows the same call
from the same line, and the main thread has hardly run in between, it is the same wait: it has
lasted at least from the first answer to the second request. So has a rest in no call that is known.
Late and repeated answers prove no more.

Of what an inspection shows, three things are waits for other ranks: a process of another rank
provably holds what this one waits for; the rank polls, for a lock that another rank holds or for
something that is not known; or it is in a native call that may wait for another rank. In the last
two it is no first cause while another suspect is left. What is seen to be no such wait is known,
too: the rank is idle, or at rest in a call that no rank ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from frd.decodable import decodable
from frd.engine.findings import text
from frd.engine.findings.attachments import Evidence, cleaned, shows_place
from frd.engine.findings.builder import Claim
from frd.flight.stacks.places import activity_of
from frd.flight.stacks.text import processes
from frd.flight.stacks.waits import Call, is_one_wait, native_line, place_of
from frd.model import (
    CHILD,
    DEVICE,
    IDLE,
    LOCK,
    NATIVE,
    NO_WAIT,
    POLL,
    REST,
    Activity,
    AlignedNs,
    AttemptKey,
    Certainty,
    Finding,
    Holder,
    NodeNs,
    NodeRawNs,
    UnrecordedWait,
    WaitKind,
    WaitsFor,
    WaitSource,
)
from frd.wire.waits import WaitReport

_NEVER: Final = AlignedNs(0)
_REWORD_S: Final = 10.0
"""How often a finding is updated if a rank waits for the same kind of thing, in other words or for
longer. The journal holds what changes a finding: with a tenth of it, ten times as much."""
_HELD: Final = frozenset({WaitKind.LOCK_FILE, WaitKind.LOCK_SHARED, WaitKind.PIPE_WORKER})
"""Kinds of wait that one process ends, the holder."""
_CHILDREN: Final = (WaitKind.CHILD, WaitKind.PIPE_WORKER)
_REST: Final = frozenset(
    {
        *(WaitKind.FILE_READ, WaitKind.FILE_WRITE, WaitKind.FILE_SYNC, WaitKind.FILE_OPEN),
        *(WaitKind.PAGE_FAULT, WaitKind.SLEEP, WaitKind.STOPPED),
        *_CHILDREN,
    }
)
"""Kinds of wait that no other rank ends, unless a process of it is the holder."""

Confirm = Callable[[str], int]
"""After how many ns another stack may prove a wait in an op."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What the text of a rank's stacks shows."""

    activity: Activity
    place: Call | None = None
    """What the main thread is in; None if it was not seen, or has left the program."""
    native_line: str = ""

    @classmethod
    def of(cls, said: str) -> Stack:
        process = next(processes(said))
        return cls(activity_of(said), place_of(process), native_line(process))


@decodable
@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank answered to a question, or that it did not. Times are aligned."""

    question: int
    """Its number."""
    attempt: AttemptKey
    occasion: str
    finding: str
    rank: int
    """-1: for all ranks."""
    asked_at: AlignedNs
    answered_at: AlignedNs
    unanswered: str = ""
    """There is no answer, because ..."""
    is_silent: bool = False
    """The rank, or its agent, was asked and gave none."""
    stack: Stack | None = None
    since: AlignedNs = _NEVER
    """Since when stacks show the call of this one, and `line` where the last one ended: what the
    engine knew, for a replay that begins later."""
    line: str = ""
    is_outside: bool = False
    """The last stack showed the rank in no call of torch.distributed: the same."""
    blocked: WaitReport | None = None
    """In what an inspection has seen it; in node time."""
    dump: str = ""
    """The id of the stored dump."""
    opinion: tuple[str, ...] = ()
    """What NCCL counts, in sentences."""


@dataclass(slots=True)
class _Sighting:
    """The last stack of a rank that showed its place."""

    answer: Answer
    stack: Stack
    call: Call
    """Its place."""
    since: AlignedNs
    confirm_at: AlignedNs | None
    """When another stack may prove it; None if one was asked for."""

    def goes_on(self, call: Call, asked_at: AlignedNs) -> bool:
        return is_one_wait(self.call, call, max(asked_at - self.answer.answered_at, 0))


@dataclass(frozen=True, slots=True)
class _Shown:
    """The words that a finding has for a rank, and since when. Other words take their place
    immediately if the rank now waits for another kind of thing, else after a while: a rank that
    reads one file after another is no news every second. What was seen stays until something else
    is seen, or a likely holder is found."""

    waits_for: WaitsFor
    since: AlignedNs
    given_at: AlignedNs
    """When the finding was last given them."""
    timed: WaitsFor | None = None
    """The same with times, as it was given."""

    def gives_way_to(self, other: WaitsFor, now: AlignedNs) -> bool:
        one = self.waits_for
        is_other = other.kind is not WaitKind.UNKNOWN and (
            (one.kind, one.holder) != (other.kind, other.holder)
        )
        is_more = one.kind is other.kind and one.holder is None and other.holder is not None
        if one.certainty is Certainty.SEEN and other.certainty is not Certainty.SEEN:
            return is_more
        return one != other and (is_other or now - self.since >= _REWORD_S * 1e9)


@dataclass(slots=True)
class Answers:
    """What the ranks of one attempt have answered."""

    blocked: set[int] = field(default_factory=set)
    """Ranks that an inspection has seen waiting for another rank, or perhaps."""
    began_at: AlignedNs = _NEVER
    """When the present run of the attempt began."""
    _replaced_at: dict[int, AlignedNs] = field(default_factory=dict)
    """When another process took a rank."""
    _sightings: dict[int, _Sighting] = field(default_factory=dict)
    _shown: dict[tuple[str, int], _Shown] = field(default_factory=dict)
    """By finding and rank; under the finding "" what is known before one opens."""
    _free: dict[int, tuple[str, WaitReport]] = field(default_factory=dict)
    """What inspections have last shown of each rank, as far as that was kept."""

    @property
    def waiting(self) -> Collection[int]:
        """The ranks whose last stack showed a wait for others that no recorder shows."""
        shown = self._sightings.items()
        return [rank for rank, one in shown if one.call.op not in (DEVICE, *NO_WAIT)]

    def to_confirm(self, now: AlignedNs) -> list[int]:
        """The ranks whose wait another stack may prove now; each is returned once."""
        due = []
        for rank, sighting in self._sightings.items():
            if sighting.confirm_at is not None and now >= sighting.confirm_at:
                sighting.confirm_at = None
                due.append(rank)
        return sorted(due)

    def forget(self, rank: int, now: AlignedNs) -> None:
        """Another process has the rank: what the former one answers says nothing of this one."""
        self._replaced_at[rank] = now
        self._sightings.pop(rank, None)
        self._free.pop(rank, None)
        self._shown = {key: shown for key, shown in self._shown.items() if key[1] != rank}
        self.blocked.discard(rank)

    def forget_stacks(self) -> None:
        self._sightings.clear()
        self._free.clear()

    def keep(self, inspected: Mapping[str, Collection[int]]) -> None:
        """Forget what inspections have shown of ranks for all but these findings."""
        of = {"", *inspected}
        self._shown = {key: shown for key, shown in self._shown.items() if key[0] in of}

    # -- what is known when a finding opens ----------------------------------------------------

    @property
    def placed(self) -> Mapping[int, AlignedNs]:
        """See `Snapshot.placed`."""
        seen = self._sightings.items()
        return {r: one.answer.asked_at for r, one in seen if shows_place(one.stack.activity)}

    def known_of(
        self, claim: Claim, finding: str, line_since: Callable[[int, AlignedNs], str]
    ) -> Iterator[Evidence]:
        """What the ranks of a claim that opens a finding have answered during its wait. If the
        stack of one has not come, `line_since` gives the line that its tap has published."""
        suspects = [one.rank for one in claim.suspects]
        known = self._sightings.keys() | {rank for of, rank in self._shown if not of}
        for rank in (*suspects, *sorted(known.intersection(claim.victims))):
            seen = self._sightings.get(rank)
            if seen is not None and seen.answer.answered_at >= claim.since:
                yield Evidence(rank, seen.stack.activity)
            elif rank in suspects and (line := line_since(rank, claim.since)):
                yield Evidence(rank, Activity(stack=(line,)))
            shown = self._shown.pop(("", rank), None)
            if shown is not None and shown.given_at >= claim.since:
                self._shown[finding, rank] = shown
                yield Evidence(rank, waits_for=shown.timed)

    def is_of_present_process(self, answer: Answer) -> bool:
        return answer.asked_at >= self._replaced_at.get(answer.rank, self.began_at)

    def with_earlier(self, answer: Answer) -> Answer:
        """With what earlier stacks of its rank have shown."""
        since, rank = answer.since, answer.rank
        known, stack = self._sightings.get(rank), answer.stack
        if known is not None and stack is not None and stack.place is not None:
            is_one = known.goes_on(stack.place, answer.asked_at)
            since = known.since if is_one else _NEVER
        if answer.blocked is None:
            return replace(answer, since=since, line="")
        line, is_outside = answer.line, answer.is_outside
        if known is not None:
            line, is_outside = known.stack.native_line, known.call.op in NO_WAIT
        return replace(answer, since=since, line=line, is_outside=is_outside)

    # -- stacks --------------------------------------------------------------------------------

    def of_stack(
        self, answer: Answer, stack: Stack, call: Call, after_ns: Confirm | None
    ) -> UnrecordedWait:
        """The wait that a stack shows by its place, `call`, or its end, in aligned time. If no
        earlier one showed it, another one can prove it `after_ns` of its op later; None if none
        will be asked for."""
        rank = answer.rank
        known = self._sightings.get(rank)
        if known is not None and not known.goes_on(call, answer.asked_at):
            known = None
        since = known.since if known is not None else answer.since or answer.answered_at
        as_of = max(since, answer.asked_at)
        due = [known.confirm_at if known is not None else None]
        due.append(AlignedNs(since + after_ns(call.op)) if after_ns and call.op else None)
        # Two requests at the same time prove nothing: a later stack still has to.
        confirm_at = min((at for at in due if at is not None and at > as_of), default=None)
        self._sightings[rank] = _Sighting(answer, stack, call, since, confirm_at)
        if not call.op and as_of == since:  # one moment, in which it may be running
            at = NodeNs(answer.asked_at)
            return UnrecordedWait(rank, WaitSource.STACK, "", at, at)
        times = NodeNs(since), NodeNs(as_of)
        op = call.op or REST
        return UnrecordedWait(rank, WaitSource.STACK, op, *times, detail=call.where)

    # -- inspections ---------------------------------------------------------------------------

    def of_inspection(self, answer: Answer, report: WaitReport) -> UnrecordedWait | None:
        """What an inspection shows the rank to be in, or the end of such a wait, in node time."""
        if report.as_of_ns <= 0:
            return None
        rank, was_blocked = answer.rank, answer.rank in self.blocked
        op, detail = _seen_in(answer, report)
        shown = self._sightings.get(rank)
        # That another rank has some lock means nothing to a rank that polls for something else.
        is_for_lock = op == LOCK or (op == POLL and shown is not None and shown.call.is_for_lock)
        holder = _other_holder(rank, report) if is_for_lock else None
        peers = () if holder is None or holder.rank is None else (holder.rank,)
        if op in (LOCK, POLL, NATIVE):
            self.blocked.add(rank)
        else:
            self.blocked.discard(rank)
        is_news = op in (LOCK, POLL, NATIVE) or was_blocked
        if not is_news and (not (op or detail) or self._is_again(rank, op, report)):
            return None
        self._free[rank] = op, report
        times = (report.since_ns if op or detail else report.as_of_ns), report.as_of_ns
        return UnrecordedWait(rank, WaitSource.INSPECTION, op, *times, peers=peers, detail=detail)

    def _is_again(self, rank: int, op: str, report: WaitReport) -> bool:
        """The same is kept again once it has lasted twice as long, or for some seconds more."""
        last_op, last = self._free.get(rank, ("", None))
        if last is None or (op, report.since_ns) != (last_op, last.since_ns):
            return False
        lasted_ns, more_ns = last.as_of_ns - last.since_ns, report.as_of_ns - last.as_of_ns
        return more_ns < min(lasted_ns, _REWORD_S * 1e9)

    def shown(
        self,
        answer: Answer,
        report: WaitReport,
        finding: Finding | None,
        to_aligned: Callable[[int, NodeRawNs], AlignedNs | None],
    ) -> Evidence | None:
        """What the finding says from now on that the rank waits for; None: what it says already.
        `finding` is the open one: an earlier process of the service may have put words there."""
        if report.as_of_ns <= 0:
            return None  # not looked at yet
        words, now = cleaned(report.waits_for), answer.answered_at
        key = answer.finding, answer.rank
        known = self._shown.get(key)
        if known is None and finding is not None:
            suspects = (s for s in finding.suspects if s.rank == answer.rank)
            earlier = next((s.waits_for for s in suspects), None)
            known = _Shown(earlier, _NEVER, _NEVER) if earlier is not None else None
        if known is None and not words.says:
            return None
        if known is None or known.gives_way_to(words, now):
            known = _Shown(words, now, now)
        elif replace(words, rest="") != replace(known.waits_for, rest=""):
            return None  # what is shown was last seen before this
        elif now - known.given_at < _REWORD_S * 1e9:
            return None
        since, seen = (to_aligned(answer.rank, at) for at in (report.since_ns, report.as_of_ns))
        timed = replace(known.waits_for, since_at=since, seen_at=seen)
        self._shown[key] = replace(known, timed=timed, given_at=now)
        return Evidence(answer.rank, waits_for=timed)


def evidence_of(answer: Answer) -> Evidence | None:
    """What a finding says because of an answer, but for inspections."""
    if answer.dump:
        return Evidence(dump=answer.dump)
    if answer.opinion:
        return Evidence(second_opinion=answer.opinion)
    if answer.stack is not None and answer.stack.activity != Activity():
        return Evidence(answer.rank, answer.stack.activity)
    return None


def _seen_in(answer: Answer, report: WaitReport) -> tuple[str, str]:
    """The op of the wait, and its detail; both are empty if it is not known."""
    found, holder = report.waits_for, _other_holder(answer.rank, report)
    is_seen = found.certainty is Certainty.SEEN
    if holder is not None and is_seen and found.kind in _HELD:
        return LOCK, text.clean(f"{found.what} held by pid {holder.pid}")
    if report.is_poll:
        return POLL, text.clean(found.says)
    if report.is_idle:
        return IDLE, text.clean(found.says)
    if report.may_be_for_peer and answer.line:
        return NATIVE, answer.line
    if is_seen and found.kind is WaitKind.LOCK_FILE and found.holder is None:
        return NATIVE, text.clean(found.says)  # a rank of another node may have it
    if is_seen and holder is None and _is_rest(answer, found):
        return CHILD if found.kind in _CHILDREN else REST, text.clean(found.says)
    return "", text.clean(found.says) if found.kind is WaitKind.ON_CPU else ""


def _is_rest(answer: Answer, found: WaitsFor) -> bool:
    """Whether no other rank ends this wait, if a process of it is not the holder. A reply may come
    from the store: then the stack shows a call."""
    if found.kind is WaitKind.SOCKET:
        return answer.is_outside
    return found.kind in _REST or (found.kind is WaitKind.LOCK_FILE and found.holder is not None)


def _other_holder(rank: int, report: WaitReport) -> Holder | None:
    """The process of another rank that holds what this one waits for."""
    holder = report.waits_for.holder
    return None if holder is None or holder.rank in (None, rank) else holder
