"""What the answers of ranks mean: waits that they prove, and evidence for findings.

One stack shows one moment between the request and the answer. If the next one shows the same call
from the same line, and the main thread has not run in between, it is the same wait: it has lasted
at least from the first answer to the second request. Late and repeated answers prove no more.

Of what an inspection shows, two things are waits for other ranks: a process of another rank
provably holds what this one waits for; or the rank is in a native call that may wait for another
rank, so that it is no first cause while another suspect is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from frd.decodable import decodable
from frd.engine.findings import text
from frd.engine.findings.attachments import Evidence, cleaned, shows_place
from frd.engine.findings.claim import Claim
from frd.engine.unrecorded import ONE_SIDED
from frd.flight.stacks.places import activity_of
from frd.flight.stacks.waits import Call, call_of, has_stack, native_line
from frd.model import (
    NATIVE,
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
_WAKES_NS: Final = 1_000_000
"""Processor time that a wait for the store may use between two stacks: it wakes every ten seconds
to look at its time-out, which takes a few hundred microseconds. A wait for a peer uses none."""
_REWORD_S: Final = 10.0
"""How often a finding is updated if a rank waits for the same kind of thing, in other words or for
longer. The journal holds what changes a finding: with a tenth of it, ten times as much."""
_HELD: Final = frozenset({WaitKind.LOCK_FILE, WaitKind.LOCK_SHARED, WaitKind.PIPE_WORKER})
"""Kinds of wait that one process ends, the holder."""

Confirm = Callable[[str], int]
"""After how many ns another stack may prove a wait in an op."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What the text of a rank's stacks shows."""

    activity: Activity
    call: Call | None = None
    """The call of torch.distributed that the main thread is in."""
    native_line: str = ""
    is_whole: bool = False
    """Its main thread was seen, and has not left the program."""

    @classmethod
    def of(cls, said: str) -> Stack:
        return cls(activity_of(said), call_of(said), native_line(said), has_stack(said))


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
    blocked: WaitReport | None = None
    """In what an inspection has seen it; in node time."""
    dump: str = ""
    """The id of the stored dump."""
    opinion: tuple[str, ...] = ()
    """What NCCL counts, in sentences."""


@dataclass(slots=True)
class _Sighting:
    """The call that the last stack of a rank showed."""

    call: Call
    since: AlignedNs
    confirm_at: AlignedNs | None
    """When another stack may prove it; None if one was asked for."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """The words that a finding has for a rank, and since when. Other words take their place
    immediately if the rank now waits for another kind of thing, else after a while: a rank that
    reads one file after another is no news every second. What was seen stays until something else
    is seen."""

    waits_for: WaitsFor
    since: AlignedNs
    given_at: AlignedNs
    """When the finding was last given them."""
    timed: WaitsFor | None = None
    """The same with times, as it was given."""

    def gives_way_to(self, other: WaitsFor, now: AlignedNs) -> bool:
        one = self.waits_for
        if one.certainty is Certainty.SEEN and other.certainty is not Certainty.SEEN:
            return False
        is_other = other.kind is not WaitKind.UNKNOWN and (
            (one.kind, one.holder) != (other.kind, other.holder)
        )
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
    _lines: dict[int, str] = field(default_factory=dict)
    """The line that the last stack of a rank ended in; empty if it ended in Python's standard
    library."""
    _shown: dict[tuple[str, int], _Shown] = field(default_factory=dict)
    """By finding and rank; under the finding "" what is known before one opens."""
    _seen: dict[int, tuple[AlignedNs, Activity]] = field(default_factory=dict)
    """What the last stack of a rank showed, and when that was asked for."""

    @property
    def waiting(self) -> Collection[int]:
        """The ranks whose last stack showed a wait."""
        return self._sightings.keys()

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
        self._lines.pop(rank, None)
        self._seen.pop(rank, None)
        self._shown = {key: shown for key, shown in self._shown.items() if key[1] != rank}
        self.blocked.discard(rank)

    def forget_stacks(self) -> None:
        self._sightings.clear()
        self._lines.clear()
        self._seen.clear()

    def keep(self, inspected: Mapping[str, Collection[int]]) -> None:
        """Forget what inspections have shown of all but these ranks, by finding."""
        self._shown = {key: shown for key, shown in self._shown.items() if key[0] in inspected}
        self.blocked.intersection_update(set[int]().union(*inspected.values()))

    # -- what is known when a finding opens ----------------------------------------------------

    @property
    def placed(self) -> Mapping[int, AlignedNs]:
        """See `Snapshot.placed`."""
        return {rank: at for rank, (at, one) in self._seen.items() if shows_place(one)}

    def known_of(self, claim: Claim, finding: str) -> Iterator[Evidence]:
        """What the ranks of a claim that opens a finding have answered during its wait."""
        for rank in (*(one.rank for one in claim.suspects), *claim.victims):
            asked_at, activity = self._seen.get(rank, (_NEVER, Activity()))
            if asked_at >= claim.since and activity != Activity():
                yield Evidence(rank, activity)
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
        if known is not None and stack is not None and stack.call is not None:
            since = known.since if _is_one_wait(known.call, stack.call) else _NEVER
        line = self._lines.get(rank, answer.line) if answer.blocked is not None else ""
        return replace(answer, since=since, line=line)

    # -- stacks --------------------------------------------------------------------------------

    def of_stack(self, answer: Answer, stack: Stack, after_ns: Confirm | None) -> UnrecordedWait:
        """The wait that a whole stack shows, or its end, in aligned time. If no earlier one showed
        it, another one can prove it `after_ns` of its op later; None if none will be asked for."""
        rank = answer.rank
        self._lines[rank] = stack.native_line
        self._seen[rank] = answer.asked_at, stack.activity
        call, known = stack.call, self._sightings.get(rank)
        if call is None:
            self._sightings.pop(rank, None)
            at = NodeNs(answer.asked_at)
            return UnrecordedWait(rank, WaitSource.STACK, "", at, at)
        if known is not None and not _is_one_wait(known.call, call):
            known = None
        since = known.since if known is not None else answer.since or answer.answered_at
        as_of = max(since, answer.asked_at)
        due = [known.confirm_at if known is not None else None]
        due.append(after_ns and AlignedNs(since + after_ns(call.op)))
        # Two requests at the same time prove nothing: a later stack still has to.
        confirm_at = min((at for at in due if at is not None and at > as_of), default=None)
        self._sightings[rank] = _Sighting(call, since, confirm_at)
        times = NodeNs(since), NodeNs(as_of)
        return UnrecordedWait(rank, WaitSource.STACK, call.op, *times, detail=call.where)

    # -- inspections ---------------------------------------------------------------------------

    def of_inspection(self, answer: Answer, report: WaitReport) -> UnrecordedWait | None:
        """The wait for another rank that an inspection shows, or its end, in node time."""
        if report.as_of_ns <= 0:
            return None
        rank = answer.rank
        since, as_of = report.since_ns, report.as_of_ns
        found = UnrecordedWait(rank, WaitSource.INSPECTION, "", since, as_of)
        if holder := _other_holder(rank, report):
            peers = () if holder.rank is None else (holder.rank,)
            detail = text.clean(f"{report.waits_for.what} held by pid {holder.pid}")
            found = replace(found, op="lock", peers=peers, detail=detail)
        elif report.may_be_for_peer and answer.line:
            found = replace(found, op=NATIVE, detail=answer.line)
        if found.op:
            self.blocked.add(rank)
        elif rank not in self.blocked:
            return None
        else:
            self.blocked.discard(rank)
            found = replace(found, since_ns=as_of)
        return found

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


def _is_one_wait(before: Call, after: Call) -> bool:
    if (before.op, before.where) != (after.op, after.where):
        return False
    if before.ran_ns is None or after.ran_ns is None:
        return False
    most = 0 if after.op in ONE_SIDED - {"store"} else _WAKES_NS
    return 0 <= after.ran_ns - before.ran_ns <= most


def _other_holder(rank: int, report: WaitReport) -> Holder | None:
    """The process of another rank that provably holds what this one waits for."""
    found, holder = report.waits_for, report.waits_for.holder
    if found.kind not in _HELD or found.certainty is not Certainty.SEEN or holder is None:
        return None
    return None if holder.rank in (None, rank) else holder
