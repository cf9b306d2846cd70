"""From the end of a chain of waits to suspects: reason, confidence, evidence, and since when.

Each claim has premises. Confidence is `HIGH` only if all of them are proven (`confidence_of`); each
function names its premises, and `docs/how-it-decides.md` lists them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from frd.engine.clocks.alignment import FOREVER, UncertainTime
from frd.engine.findings import builder, disagreements, text
from frd.engine.hangs import unrecorded
from frd.engine.hangs.facts import Fact, UnequalPair
from frd.engine.hangs.ops_in_flight import Instance, Op
from frd.engine.hangs.root_causes import Root, hub
from frd.engine.hangs.unrecorded import Calls, not_over
from frd.engine.hangs.wait_graph import Ending, Graph, Member, Node, UnknownRank, Wait
from frd.engine.losses.exits import Manner, how_it_ended, manner_of, was_asked
from frd.engine.matching import signature_rules
from frd.engine.state.snapshot import AT_REST, EARLY, Mismatch, Snapshot
from frd.model import (
    DEVICE,
    IDLE,
    NATIVE,
    POLL,
    UNKNOWN_SEQ,
    AlignedNs,
    Confidence,
    RankState,
    Reason,
    Suspect,
    UnrecordedWait,
    WaitSource,
)

_STOPPED = ("stopped", "zombie", "state t", "state z")
"""Words in an agent's evidence for a process that provably does not run."""

_FEW = 0.25
"""Ranks in an op that are a smaller part of its known members may be wrong instead of the rest."""
_LEAST_MEMBERS = 3
"""In a smaller group there are no few: one waits for one."""

Dated: TypeAlias = tuple[Suspect, UncertainTime]
"""A suspect, and when it began as far as the snapshot shows: a time on the clock of the rank that
reported it, so that `builder.timed` can compare it with those of other suspects."""


def suspects_of(graph: Graph, root: Root, held_up: Sequence[Wait]) -> list[Dated]:
    """The suspects of one root; `held_up` are the waits that lead straight to it, oldest first."""
    node, calls = root.nodes[0], graph.calls
    match root.ending:
        case Ending.ORDER:
            return _circle(graph, root)
        case Ending.MISMATCH if isinstance(node, Wait):
            return _minority(graph, graph.mismatches[node.instance])
        case Ending.UNEQUAL if isinstance(node, Wait):
            return _both_ends(graph, graph.pairs[node.instance])
        case Ending.ALONE | Ending.DEVICE if isinstance(node, Wait):
            return _left_inside(graph, node.instance, root.ending)
        case Ending.GONE | Ending.IDLE | Ending.MOVING if isinstance(node, Member) and calls:
            return [_not_come(graph, calls, node.rank)]
        case Ending.UNKNOWN if calls:
            is_seen = graph.snapshot.row(node.rank) >= 0
            return [] if is_seen else [_not_come(graph, calls, node.rank)]
        case Ending.GONE if isinstance(node, Member):
            return [_gone(graph, node.rank, held_up)]
        case Ending.IDLE | Ending.MOVING if isinstance(node, Member):
            return [_elsewhere(graph, node.rank, root.ending, held_up)]
        case Ending.WAITING if isinstance(node, Member):
            return [_waiting(graph, node.rank, held_up)]
        case Ending.UNKNOWN if isinstance(node, UnknownRank):
            return _silence(graph, node, held_up)
        case _:
            return []


def op_of(graph: Graph, instance: Instance) -> str:
    if instance.is_p2p:
        src, dst = (str(end) if end >= 0 else "?" for end in (instance.src, instance.dst))
        return f"send {src}->{dst}"
    return graph.snapshot.op(instance.group, instance.seq)


def _describe(graph: Graph, instance: Instance, *, numbered: bool = True) -> str:
    seq, group = instance.seq if numbered else UNKNOWN_SEQ, graph.snapshot.groups[instance.group]
    return text.collective(op_of(graph, instance), seq, group.label)


def confidence_of(*premises: bool | None) -> Confidence:
    """How sure a claim is: `HIGH` if all of its premises are proven (True), `LOW` if one is refuted
    (False), `MEDIUM` if one is only possible (None)."""
    if False in premises:
        return Confidence.LOW
    return Confidence.MEDIUM if None in premises else Confidence.HIGH


def _named(
    graph: Graph,
    rank: int,
    reason: Reason,
    began: UncertainTime,
    premises: Sequence[bool | None],
    *evidence: str,
) -> Dated:
    confidence = confidence_of(*premises)
    return builder.suspect(graph.snapshot, rank, reason, confidence, *evidence), began


def _elsewhere(
    graph: Graph, rank: int, ending: Ending, held_up: Sequence[Wait], doing: str = ""
) -> Dated:
    """It has rested for a threshold (not come out of another op a moment ago), was absent until the
    wait for it was a stall, there is no group in which it may be in an op, a recorded op waits for
    it directly, in which not just a few ranks are, unless its stack shows where it is; and what was
    seen of it during the wait is no wait for another rank."""
    facts, began = graph.facts, _onset(graph, held_up)
    words = [_last_joined(graph, rank, held_up, fresh=True), doing]
    if ending is Ending.MOVING:
        words.append("it is still active in other groups")
    few = [_few(graph, wait) for wait in held_up if Member(rank) in graph.edges[wait]]
    is_placed = facts.moved_at(rank) <= graph.snapshot.placed.get(rank, -1)
    as_of = facts.as_of(rank)
    threshold_ns, margin_ns = _threshold_ns(graph, held_up), graph.snapshot.margin_ns(rank, began)
    is_free, why_not_seen = _is_free(graph, rank, began, threshold_ns)
    premises = (
        is_free,
        ending is not Ending.MOVING or None,
        as_of - _free_since(graph, rank) >= threshold_ns or None,
        (margin_ns is not None and as_of - began.at >= threshold_ns + margin_ns) or None,
        not graph.waits.may_be_elsewhere(rank) or None,
        (bool(few) and (not all(few) or is_placed)) or None,
    )
    words.append(few[0] if few and premises[-1] is None else "")
    words.append(why_not_seen)
    if rank in graph.snapshot.hidden:
        words.append("it may wait in a batch of sends, which has no entry")
    words.append(text.clean(graph.snapshot.detail[graph.snapshot.row(rank)]))
    words.append(unrecorded.of_waiters(rank, facts.unrecorded))
    return _named(graph, rank, Reason.CPU_STUCK, began, premises, *words)


def _free_since(graph: Graph, rank: int) -> int:
    """When the rank last moved, or was last seen to wait for another one, as far as is known."""
    until = unrecorded.waited_until(graph.snapshot, rank) if graph.snapshot.can_ask else 0
    return max(graph.facts.moved_at(rank), until)


def _is_free(
    graph: Graph, rank: int, began: UncertainTime, threshold_ns: int
) -> tuple[bool | None, str]:
    """Whether inspections have seen it for a while in no wait for another rank. A thread that
    rests in native code may be in any wait, and one that is busy may wait for its device, if it has
    one. So a stack is enough only if nothing else can explain the wait (no other rank, no wait that
    no recorder shows), or, if it cannot be inspected, its backend records all that it has; and so
    it is with a stack that cannot be had, which the words say. What was asked in vain again after a
    while cannot be had. A rank that is idle may be healthy, and so may those that wait for it."""
    snapshot, facts = graph.snapshot, graph.facts
    if not snapshot.can_ask:
        return True, ""
    since = max(facts.moved_at(rank), began.at + (snapshot.margin_ns(rank, began) or 0))
    info = snapshot.info.get(rank)
    backends = info.backends if info is not None else ()
    seen = [one for one in snapshot.unrecorded.get(rank, ()) if one.as_of_ns >= since]
    if not_over(seen):
        return None, ""
    others = {node.rank for node in graph.endings if isinstance(node, Member)} - {rank}
    is_shown = not any("gloo" in backend for backend in backends)
    is_only = not others and not facts.unrecorded
    inspected = [one for one in seen if one.source is WaitSource.INSPECTION]
    lasting = [w for w in inspected if w.as_of_ns - w.since_ns >= threshold_ns * AT_REST]
    is_work = is_only or (info is not None and not info.devices)
    if any(one.op not in ("", IDLE) or (one.detail and is_work) for one in lasting):
        return True, ""
    least_ns, not_had = threshold_ns * EARLY, {}
    for source in (WaitSource.INSPECTION, WaitSource.STACK):
        first, last, said = snapshot.unanswered.get((rank, source), (FOREVER, 0, ""))
        if last - max(first, since) >= least_ns:
            not_had[source] = said
    is_only &= is_shown and bool(backends)
    if seen:
        return (is_only or (is_shown and WaitSource.INSPECTION in not_had)) or None, ""
    if (why := not_had.get(WaitSource.STACK)) is None:
        return None, ""
    return is_only or None, f"its stack cannot be had: {text.clean(why)}"


def _few(graph: Graph, wait: Wait) -> str:
    """Why the ranks in an op may be wrong, instead of those that are not: a call that only one rank
    makes looks as if all others were late. Empty if enough ranks are in it; members of which too
    little is known, or that are gone, do not count."""
    if wait.instance.is_p2p:
        return ""
    came, members = graph.came_of_known(wait)
    are_few = len(came) == 1 or len(came) < _FEW * members
    if members < _LEAST_MEMBERS or not are_few:
        return ""
    who = f"{text.ranks(came)} of {members} {'is' if len(came) == 1 else 'are'} in it"
    return f"only {who}, perhaps by a call that the others do not make"


def _waiting(graph: Graph, rank: int, held_up: Sequence[Wait]) -> Dated:
    """It waits for ranks that are not known: hardly a first cause, but all that is left. A native
    call may also wait for something else than a rank, as a rank that is elsewhere does; and so may
    a rank that polls, or waits for its device, if no other is left for which it may wait."""
    wait = graph.facts.unrecorded[rank]
    if wait.op == NATIVE or (wait.op in (POLL, DEVICE) and graph.is_last(rank)):
        return _elsewhere(graph, rank, Ending.WAITING, held_up, unrecorded.described(wait))
    words = [_last_joined(graph, rank, held_up, fresh=True), unrecorded.described(wait)]
    return _named(graph, rank, Reason.CPU_STUCK, _onset(graph, held_up), (None,), *words)


def _not_come(graph: Graph, calls: Calls, rank: int) -> Dated:
    """It waits in no call, and no rank is in a recorded op. It was seen in none when the others had
    waited for the threshold, has done nothing else, and they can wait for no other."""
    snapshot, row, first = graph.snapshot, graph.snapshot.row(rank), calls.first
    began = snapshot.moment(first.rank, AlignedNs(first.since_ns))
    is_joint = unrecorded.way_of(first.op) is unrecorded.Way.JOINT
    is_meant = first.op == unrecorded.FIRST or len(calls.free) == 1 or rank in first.peers
    come = f"has not come to {first.op}" if is_joint else "waits in no call"
    state, detail, since, reason = None, "", 0, Reason.UNREACHABLE
    if row >= 0:
        state, detail = snapshot.state[row], text.clean(snapshot.detail[row])
        since = int(snapshot.state_since[row])
    at = f" at {snapshot.clock_text(since)}" if since > 0 else ""
    premises: list[bool | None] = [None]
    match state:
        case None:
            words = [
                "no agent has ever seen it: its process has not started, ended or stalled before "
                "it imported torch, or runs without `frd-agent exec`"
            ]
        case RankState.SILENT:
            words = [detail or f"it has not answered since{at.removeprefix(' at')}", come]
        case RankState.EXITED | RankState.FINISHED:
            reason = Reason.EXITED
            left = "finished cleanly" if rank in snapshot.exits else "left the job"
            left = "process exited" if state is RankState.EXITED else left
            premises = [manner_in_calls(snapshot, rank) not in (Manner.REACTED, Manner.ASKED)]
            words = [f"{left}{at}", detail]
        case _:
            reason, stalled = Reason.CPU_STUCK, began.later(calls.threshold_ns)
            margin_ns, seen = snapshot.margin_ns(rank, stalled), calls.outside.get(rank)
            is_free, why_not_seen = _is_free(graph, rank, began, calls.threshold_ns)
            premises = [
                bool(is_free),
                seen is not None and seen.as_of_ns - _free_since(graph, rank) >= calls.threshold_ns,
                seen is not None
                and margin_ns is not None
                and seen.as_of_ns >= stalled.at + margin_ns,
                seen is not None and seen.op != IDLE,
                not calls.moves(snapshot, rank),
                not graph.waits.may_be_elsewhere(rank),
                unrecorded.way_of(first.op) is not unrecorded.Way.DOUBTFUL,
            ]
            words = [come, detail, why_not_seen, unrecorded.of_waiters(rank, calls.waiting)]
    proven = [one or None for one in (is_meant, *premises)]  # what is not may still be so
    return _named(graph, rank, reason, began, proven, *words)


def manner_in_calls(snapshot: Snapshot, rank: int) -> Manner:
    """Why a rank left. One that has never had a process group counts as finished whatever ended it:
    the detail of its status says what that was."""
    row = snapshot.row(rank)
    if rank not in snapshot.exits and was_asked(snapshot.detail[row]):
        return Manner.ASKED
    return manner_of(how_it_ended(snapshot, row), rank)


def _gone(graph: Graph, rank: int, held_up: Sequence[Wait]) -> Dated:
    """Its agent has seen the end of the process, or that it is stopped: a recorder that does not
    answer is not enough. When it ended, it cannot have waited for a threshold, in the op it was in
    or unseen. A rank whose exception blames a peer is hardly the first cause."""
    snapshot, row = graph.snapshot, graph.snapshot.row(rank)
    detail = text.clean(snapshot.detail[row])
    since = AlignedNs(int(snapshot.state_since[row]))
    at = f" at {snapshot.clock_text(since)}" if since > 0 else ""
    premise: bool | None = True
    reason = Reason.EXITED
    match snapshot.state[row]:
        case RankState.FINISHED:
            words = [f"finished cleanly{at}", detail]
        case RankState.SILENT:
            reason = Reason.UNREACHABLE
            words = [detail or f"its recorder has not answered since{at.removeprefix(' at')}"]
            premise = any(word in detail.lower() for word in _STOPPED) or None
        case _:
            words = [f"process exited{at}", detail]
            manner = manner_of(how_it_ended(snapshot, row), rank)
            first = snapshot.state_since[snapshot.in_state(RankState.EXITED)].min()
            asked = since <= first or None  # a launcher ends the others when one has failed
            doubts = {Manner.REACTED: False, Manner.ABORTED: None, Manner.ASKED: asked}
            premise = doubts.get(manner, True)
    words.append(_last_joined(graph, rank, held_up, fresh=False))
    onset = _onset(graph, held_up)
    began = snapshot.moment(rank, since) if since > 0 else onset
    margin_ns, head = snapshot.margin_ns(rank, onset), graph.waits.head(rank)
    free_at = head.since if head else max(graph.facts.as_of(rank), onset.at - (margin_ns or 0))
    is_free = margin_ns is not None and since - free_at < _threshold_ns(graph, held_up)
    return _named(graph, rank, reason, began, (premise, is_free or None), *words)


def _silence(graph: Graph, unknown: UnknownRank, held_up: Sequence[Wait]) -> list[Dated]:
    """An agent that stopped reporting may mean that its node is down. One that still reports other
    ranks speaks against it; any other doubt is no evidence."""
    if unknown.fact not in (Fact.DISCONNECTED, Fact.LATE):
        return []
    premise = None if unknown.fact is Fact.DISCONNECTED else False
    rank, began = unknown.rank, _onset(graph, held_up)
    why = "its telemetry is late"
    if unknown.fact is Fact.DISCONNECTED:
        why = text.agent_gone(bool(graph.snapshot.left[graph.snapshot.row(rank)]))
    words = [f"{why}; last report at {graph.snapshot.clock_text(graph.facts.as_of(rank))}"]
    words.append(_last_joined(graph, rank, held_up, fresh=False))
    return [_named(graph, rank, Reason.UNREACHABLE, began, (premise,), *words)]


def _left_inside(graph: Graph, instance: Instance, ending: Ending) -> list[Dated]:
    """The stuck ranks are a minority, and two agents report the ranks that are ahead, or the stuck
    rank's own agent does: a single other agent may be wrong."""
    attendance = graph.waits.attendance(instance)
    what = _describe(graph, instance)
    if ending is Ending.ALONE:
        reason = Reason.IN_COLLECTIVE_ALONE
        ahead, ahead_since = attendance.done, attendance.done_at
        stuck = graph.stuck_inside(attendance, ahead_since)
        words = f"still inside {what}, which {text.ranks(ahead.tolist())} completed"
    else:
        reason = Reason.DEVICE_STUCK
        stuck = graph.stuck_devices(attendance)
        ahead, ahead_since = attendance.inside[attendance.started], attendance.started_at
        words = (
            f"joined {what}, but its device has not started it; the device of "
            f"{text.ranks(ahead.tolist())} has"
        )
    witnesses = graph.facts.agents_of(ahead)
    suspects = []
    for rank in stuck:
        is_confirmed = len(witnesses) > 1 or witnesses == graph.facts.agents_of([rank])
        has_order = graph.snapshot.margin_ns(rank, ahead_since) is not None
        premises = (is_confirmed or None, len(stuck) <= len(ahead) or None, has_order or None)
        began = graph.snapshot.moment(rank, graph.waits.op(rank, instance).since)
        suspects.append(_named(graph, rank, reason, began, premises, words))
    return suspects


def _circle(graph: Graph, root: Root) -> list[Dated]:
    """Each rank with its own order: the op it is in, and the ops in which others wait for it. Ranks
    that may as well be right are less certain, and so are ranks in no op."""
    wrong, is_shown = _wrong(graph, root)
    held_up: dict[Node, dict[Instance, Wait]] = {}
    waits = (node for node in root.nodes if isinstance(node, Wait))
    for wait in sorted(waits, key=lambda wait: (wait.instance, wait.rank)):
        for member in graph.edges[wait]:
            held_up.setdefault(member, {})[wait.instance] = wait
    suspects = []
    for rank, head in sorted(_heads(graph, root).items()):
        mine = {op.instance for op in graph.waits.ops(rank)}
        left = {True: ["which it entered before"], False: ["and has not joined"]}
        for at, wait in held_up.get(Member(rank), {}).items():
            op = _describe(graph, at)
            if rank in wrong and is_shown:
                who = [one for one in graph.came_and_missing(wait)[0] if one != rank]
                op += f", where {text.ranks(who)} {'waits' if len(who) == 1 else 'wait'}"
            if at != head.instance:
                left[at in mine].append(op)
        evidence = [f"is in {_describe(graph, head.instance)}"]
        evidence += [f"{way} {' and '.join(ops)}" for way, *ops in left.values() if ops]
        began, premise = graph.snapshot.moment(rank, head.since), rank in wrong or None
        suspects.append(_named(graph, rank, Reason.ORDER, began, (premise,), ", ".join(evidence)))
    for rank, one in _unrecorded(graph, root).items():
        when = graph.snapshot.moment(rank, AlignedNs(one.since_ns))
        suspects.append(_named(graph, rank, Reason.ORDER, when, (None,), unrecorded.described(one)))
    return suspects


def _wrong(graph: Graph, root: Root) -> tuple[Collection[int], bool]:
    """Ranks of a circle in another op than most; without a majority the rank through which all
    circles lead, and whether recorders show all of their waits. None if calls of sends and receives
    wait for each other: either may be wrong."""
    heads = _heads(graph, root)
    others = _unrecorded(graph, root)
    counts = Counter(head.instance for head in heads.values()).most_common(1)
    members = len(heads) + len(others)
    usual = next((most for most, count in counts if 2 * count > members), None)
    wrong = {rank for rank, head in heads.items() if head.instance != usual}
    if usual is None:
        wrong = {rank for rank in wrong if not heads[rank].instance.is_p2p}
        wrong = wrong and wrong & {hub(graph, root)}
    calls = (to for n in root.nodes if isinstance(n, Wait) for to in graph.edges[n])
    in_calls = any(one.op not in unrecorded.ONE_SIDED for one in others.values())
    if in_calls or any(isinstance(to, Wait) for to in calls):
        wrong = set()  # which ranks have to make a call is not known
    return wrong, bool(wrong) and usual is None and len(heads) == members


def _unrecorded(graph: Graph, root: Root) -> dict[int, UnrecordedWait]:
    """The waits of ranks of a circle that are in no op."""
    members = sorted(node.rank for node in root.nodes if isinstance(node, Member))
    known = graph.facts.unrecorded
    return {rank: known[rank] for rank in members if rank in known}


def _heads(graph: Graph, root: Root) -> dict[int, Op]:
    """What each rank of a circle is in."""
    members = sorted({node.rank for node in root.nodes})  # a collective has none
    return {rank: head for rank in members if (head := graph.waits.head(rank)) is not None}


def _minority(graph: Graph, mismatch: Mismatch) -> list[Dated]:
    """All ranks outside the largest class, if that is a majority of all that joined; else all."""
    majority = disagreements.has_majority(mismatch)
    began = graph.onset(Wait(Instance(mismatch.group, mismatch.seq)))
    is_alone = len(mismatch.classes) == 1  # sums do not add up, and it is unknown whose is wrong
    named = mismatch.classes[1:] if majority and not is_alone else mismatch.classes
    premises = (majority or None, mismatch.complete or None, not is_alone)
    return [
        _named(graph, rank, Reason.MISMATCH, began, premises, words)
        for alike in named
        for words in (disagreements.of_class(graph.snapshot, mismatch, alike),)
        for rank in alike[1]
    ]


def _both_ends(graph: Graph, pair: UnequalPair) -> list[Dated]:
    """Of two, none is the majority."""
    return [
        _named(graph, rank, Reason.MISMATCH, graph.onset(Wait(end, rank=rank)), (None,), pair.words)
        for rank, end in pair.ends
    ]


def disagree(graph: Graph, root: Root) -> str:
    """One sentence on what each rank did, for ranks that disagree, or may; empty for others."""
    node = root.nodes[0]
    if root.ending is Ending.MISMATCH and isinstance(node, Wait):
        return disagreements.of_mismatch(graph.snapshot, graph.mismatches[node.instance])
    if root.ending is Ending.UNEQUAL and isinstance(node, Wait):
        return graph.pairs[node.instance].words
    if root.ending is Ending.NO_RANK and isinstance(node, Wait) and not node.instance.is_p2p:
        came = graph.waits.attendance(node.instance)
        is_rooted = len(came.done) > 0 and signature_rules.is_rooted(op_of(graph, node.instance))
        done, inside = came.done.tolist(), [*came.inside.tolist(), *came.behind.tolist()]
        return disagreements.of_roots(done, inside) if is_rooted else ""
    if root.ending is not Ending.ORDER:
        return ""
    wrong, is_shown = _wrong(graph, root)
    if is_shown:
        first = next(suspect for suspect, _ in _circle(graph, root) if suspect.rank in wrong)
        return text.clean(f"rank {first.rank} {first.evidence}", disagreements.MOST_CHARS)
    members: dict[Instance, list[int]] = {}
    for rank, head in _heads(graph, root).items():
        members.setdefault(head.instance, []).append(rank)
    named = [
        (_describe(graph, instance, numbered=False), ranks) for instance, ranks in members.items()
    ]
    calls: dict[str, list[int]] = {}
    for rank, wait in _unrecorded(graph, root).items():
        calls.setdefault(wait.op, []).append(rank)
    named += calls.items()
    return disagreements.of_order(sorted(named, key=lambda item: (len(item[1]), item[1])))


def lowered(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The same with at most medium confidence, for an incident that is not fully seen."""
    most, least = Confidence.HIGH, Confidence.MEDIUM
    return [replace(s, confidence=least) if s.confidence is most else s for s in suspects]


def _onset(graph: Graph, held_up: Sequence[Wait]) -> UncertainTime:
    unknown = graph.snapshot.moment(-1, graph.snapshot.now)
    return min(map(graph.onset, held_up), key=lambda onset: onset.at, default=unknown)


def _threshold_ns(graph: Graph, held_up: Sequence[Wait]) -> int:
    """The shortest wait in one of these that is a stall."""
    return min((graph.facts.threshold_ns(wait.instance.group) for wait in held_up), default=0)


def _last_joined(graph: Graph, rank: int, held_up: Sequence[Wait], *, fresh: bool) -> str:
    """How far the rank came in the group that has waited for it longest, as far as known."""
    if not held_up:
        return ""
    instance = held_up[0].instance
    label = text.clean(graph.snapshot.groups[instance.group].label)
    if instance.is_p2p:
        way = "recv" if rank == instance.dst else "send"
        other = instance.peer_of(rank)
        return f"has posted no {way} that matches rank {other} on {label}" if fresh else ""
    pairs = graph.snapshot.pairs
    row = pairs.row(instance.group, rank)
    if row < 0 and graph.snapshot.groups[instance.group].ranks:
        return ""  # it is waited for by way of other ranks
    if row < 0 or pairs.joined[row] < 0:
        return f"has not joined a collective of {label} yet" if fresh else ""
    return f"last {'joined' if fresh else 'seen at'} seq {pairs.joined[row]} of {label}"
