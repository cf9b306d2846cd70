"""From the end of a chain of waits to suspects: reason, confidence, evidence, and since when.

Confidence is high only when the evidence is fresh, complete and of the kind that leaves no other
explanation; each function says what lowers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias, assert_never

from frd.engine.clocks.uncertain_time import UncertainTime
from frd.engine.findings import builder, text
from frd.engine.hangs import disagreements
from frd.engine.hangs.exits import Manner, how_it_ended, manner_of
from frd.engine.hangs.ops_in_flight import Instance, Op
from frd.engine.hangs.root_causes import Root
from frd.engine.hangs.wait_graph import Graph
from frd.engine.hangs.wait_nodes import Ending, Member, TelemetryFault, UnknownRank, Wait
from frd.engine.state.snapshot import Mismatch
from frd.forms import utc_text
from frd.model import UNKNOWN_SEQ, AlignedNs, Confidence, RankState, Reason, Suspect

_STOPPED = ("stopped", "zombie", "state t", "state z")
"""Words in an agent's evidence for a process that provably does not run."""

Dated: TypeAlias = tuple[Suspect, UncertainTime]
"""A suspect, and when it began as far as the snapshot shows: a time on the clock of the rank that
reported it, so that `builder.timed` can compare it with those of other suspects."""


def suspects_of(graph: Graph, root: Root, held_up: Sequence[Wait]) -> list[Dated]:
    """The suspects of one root; `held_up` are the waits that lead straight to it, oldest first."""
    node = root.nodes[0]
    match root.ending:
        case Ending.ORDER:
            return _circle(graph, root)
        case Ending.MISMATCH if isinstance(node, Wait):
            return _minority(graph, graph.mismatches[node.instance])
        case Ending.ALONE | Ending.DEVICE if isinstance(node, Wait):
            return _left_inside(graph, node.instance, root.ending)
        case Ending.GONE if isinstance(node, Member):
            return [_gone(graph, node.rank, held_up)]
        case Ending.IDLE | Ending.MOVING if isinstance(node, Member):
            return [_elsewhere(graph, node.rank, root.ending, held_up)]
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
    label = graph.snapshot.groups[instance.group].label
    seq = instance.seq if numbered else UNKNOWN_SEQ
    return text.collective(op_of(graph, instance), seq, label)


def _dated(
    graph: Graph,
    rank: int,
    reason: Reason,
    confidence: Confidence,
    began: UncertainTime,
    *evidence: str,
) -> Dated:
    return builder.suspect(graph.snapshot, rank, reason, confidence, *evidence), began


def _elsewhere(graph: Graph, rank: int, ending: Ending, held_up: Sequence[Wait]) -> Dated:
    """High if the rank is provably in no collective and has been absent for long: a rank that was
    in another op may have left it a moment ago."""
    began = _onset(graph, held_up)
    words = [_last_joined(graph, rank, held_up, fresh=True)]
    if ending is Ending.MOVING:
        words.append("it is still active in other groups")
        confidence = Confidence.MEDIUM
    else:
        threshold_ns = min((graph.threshold_ns(wait.instance) for wait in held_up), default=0)
        as_of = graph.ranks.as_of(rank)
        rested_ns = as_of - graph.ranks.moved_at(rank)
        proven = as_of - began.at >= threshold_ns / 2 and rested_ns >= threshold_ns
        proven = proven and not graph.waits.has_forgotten(rank)
        confidence = Confidence.HIGH if proven else Confidence.MEDIUM
    words.append(text.clean(graph.snapshot.detail[graph.waits.row(rank)]))
    return _dated(graph, rank, Reason.CPU_STUCK, confidence, began, *words)


def _gone(graph: Graph, rank: int, held_up: Sequence[Wait]) -> Dated:
    """High if the agent has positive evidence. A recorder that does not answer is not enough, and a
    rank whose exception blames a peer is hardly the first cause."""
    snapshot, row = graph.snapshot, graph.waits.row(rank)
    detail = text.clean(snapshot.detail[row])
    since = AlignedNs(int(snapshot.state_since[row]))
    at = f" at {utc_text(since)}" if since > 0 else ""
    confidence, reason = Confidence.HIGH, Reason.EXITED
    match snapshot.state[row]:
        case RankState.FINISHED:
            words = [f"finished cleanly{at}", detail]
        case RankState.SILENT:
            reason = Reason.UNREACHABLE
            words = [detail or f"its recorder has not answered since{at.removeprefix(' at')}"]
            if not any(word in detail.lower() for word in _STOPPED):
                confidence = Confidence.MEDIUM
        case _:
            words = [f"process exited{at}", detail]
            if manner_of(how_it_ended(snapshot, row)) is Manner.REACTED:
                confidence = Confidence.LOW
    words.append(_last_joined(graph, rank, held_up, fresh=False))
    began = snapshot.moment(rank, since) if since > 0 else _onset(graph, held_up)
    return _dated(graph, rank, reason, confidence, began, *words)


def _silence(graph: Graph, unknown: UnknownRank, held_up: Sequence[Wait]) -> list[Dated]:
    """An agent that stopped reporting is weak evidence; any other doubt is no evidence."""
    match unknown.fault:
        case TelemetryFault.DISCONNECTED:
            confidence = Confidence.MEDIUM
        case TelemetryFault.LATE:
            confidence = Confidence.LOW
        case TelemetryFault.NEVER_SEEN | TelemetryFault.GAP | TelemetryFault.UNPROVEN:
            return []
        case _ as never:
            assert_never(never)
    rank, began = unknown.rank, _onset(graph, held_up)
    words = [f"{unknown.fault.value}; last report at {utc_text(graph.ranks.as_of(rank))}"]
    words.append(_last_joined(graph, rank, held_up, fresh=False))
    return [_dated(graph, rank, Reason.UNREACHABLE, confidence, began, *words)]


def _left_inside(graph: Graph, instance: Instance, ending: Ending) -> list[Dated]:
    """Confidence is HIGH only if the stuck ranks are a minority, and the ranks that are ahead are
    reported by two agents or by the stuck rank's own agent. A single other agent may be wrong."""
    attendance = graph.waits.attendance(instance)
    what = _describe(graph, instance)
    if ending is Ending.ALONE:
        reason = Reason.IN_COLLECTIVE_ALONE
        stuck, ahead = graph.stuck_inside(attendance, attendance.done_at), attendance.done
        words = f"still inside {what}, which {text.ranks(ahead.tolist())} completed"
    else:
        reason = Reason.DEVICE_STUCK
        stuck = graph.stuck_devices(attendance)
        ahead = attendance.inside[attendance.started]
        words = (
            f"joined {what}, but its device has not started it; the device of "
            f"{text.ranks(ahead.tolist())} has"
        )
    witnesses = graph.ranks.agents_of(ahead)
    suspects = []
    for rank in stuck:
        confirmed = len(witnesses) > 1 or witnesses == graph.ranks.agents_of([rank])
        certain = confirmed and len(stuck) <= len(ahead)
        confidence = Confidence.HIGH if certain else Confidence.MEDIUM
        since = next(op.since for op in graph.waits.ops(rank) if op.instance == instance)
        began = graph.snapshot.moment(rank, since)
        suspects.append(_dated(graph, rank, reason, confidence, began, words))
    return suspects


def _circle(graph: Graph, root: Root) -> list[Dated]:
    """Each rank with its own order: the op it is in, and the ops in which others wait for it. Ranks
    that do what most ranks do are less likely to be wrong."""
    waits = sorted(
        (n for n in root.nodes if isinstance(n, Wait)), key=lambda w: (w.instance, w.rank)
    )
    heads = _heads(graph, root)
    [(most, count)] = Counter(head.instance for head in heads.values()).most_common(1)
    usual = most if 2 * count > len(heads) else None
    suspects = []
    for rank, head in sorted(heads.items()):
        mine = {op.instance for op in graph.waits.ops(rank)}
        after: list[str] = []
        never: list[str] = []
        for wait in waits:
            if wait.instance != head.instance and Member(rank) in graph.edges[wait]:
                entered = wait.instance in mine
                (after if entered else never).append(_describe(graph, wait.instance))
        words = [f"is in {_describe(graph, head.instance)}"]
        if after:
            words.append(f"which it entered before {' and '.join(after)}")
        if never:
            words.append(f"and has not joined {' and '.join(never)}")
        began = graph.snapshot.moment(rank, head.since)
        confidence = Confidence.MEDIUM if head.instance == usual else Confidence.HIGH
        suspects.append(_dated(graph, rank, Reason.ORDER, confidence, began, ", ".join(words)))
    return suspects


def _heads(graph: Graph, root: Root) -> dict[int, Op]:
    """What each rank of a circle is in."""
    members = [node.rank for node in root.nodes if isinstance(node, Member)]
    return {rank: head for rank in members if (head := graph.waits.head(rank)) is not None}


def _minority(graph: Graph, mismatch: Mismatch) -> list[Dated]:
    """All ranks outside the largest class, if that is a true majority of all members; else all."""
    majority = disagreements.has_majority(mismatch)
    began = graph.onset(Wait(Instance(mismatch.group, mismatch.seq)))
    confidence = Confidence.HIGH if majority and mismatch.complete else Confidence.MEDIUM
    named = mismatch.classes[1:] if majority else mismatch.classes
    if len(mismatch.classes) == 1:  # their sums do not add up, and it is unknown whose is wrong
        confidence, named = Confidence.LOW, mismatch.classes
    suspects = []
    for alike in named:
        words = disagreements.of_class(graph.snapshot, mismatch, alike)
        suspects += [
            _dated(graph, rank, Reason.MISMATCH, confidence, began, words) for rank in alike[1]
        ]
    return suspects


def disagree(graph: Graph, root: Root) -> str:
    """One sentence on what each rank did, for ranks that disagree; empty for others."""
    if root.ending is Ending.MISMATCH and isinstance(node := root.nodes[0], Wait):
        mismatch = graph.mismatches[node.instance]
        return disagreements.of_mismatch(graph.snapshot, mismatch)
    if root.ending is not Ending.ORDER:
        return ""
    members: dict[Instance, list[int]] = {}
    for rank, head in _heads(graph, root).items():
        members.setdefault(head.instance, []).append(rank)
    named = [
        (_describe(graph, instance, numbered=False), ranks)
        for instance, ranks in sorted(members.items(), key=lambda item: (len(item[1]), item[1]))
    ]
    return disagreements.of_order(named)


def lowered(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The same with at most medium confidence, for an incident that is not fully seen."""
    return [
        replace(suspect, confidence=Confidence.MEDIUM)
        if suspect.confidence is Confidence.HIGH
        else suspect
        for suspect in suspects
    ]


def _onset(graph: Graph, held_up: Sequence[Wait]) -> UncertainTime:
    onsets = [graph.onset(wait) for wait in held_up]
    return min(
        onsets, key=lambda onset: onset.at, default=graph.snapshot.moment(-1, graph.snapshot.now)
    )


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
    if row < 0 or pairs.joined[row] < 0:
        return f"has not joined a collective of {label} yet" if fresh else ""
    return f"last {'joined' if fresh else 'seen at'} seq {pairs.joined[row]} of {label}"
