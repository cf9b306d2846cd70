"""First causes: one diagnosis per incident, from the ends of a snapshot's wait-for graph.

Starts at the ranks whose wait is confirmed or, where no rank is in a recorded op, at those that
wait too long in something that no recorder shows (`frd.engine.hangs.unrecorded.Calls`). It follows
the edges of `frd.engine.hangs.wait_graph` to the roots of `frd.engine.hangs.root_causes`, and
`frd.engine.hangs.attribution` names the ranks there. Pure: a snapshot in, diagnoses out; the live
engine and offline analysis ask the same way.

It never guesses: if only missing telemetry is left, no rank is named but one that does not answer;
if all ranks have joined and none completes, no rank at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np

from frd.engine.clocks.alignment import UncertainTime
from frd.engine.findings import builder
from frd.engine.findings.builder import NEVER
from frd.engine.hangs.attribution import Dated, disagree, lowered, op_of, suspects_of
from frd.engine.hangs.facts import GONE, RankFacts, unequal_pairs
from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.engine.hangs.root_causes import DEFINITE, Incident, Root, Start, incidents
from frd.engine.hangs.unrecorded import ALIVE, Calls, as_seen, counting
from frd.engine.hangs.wait_graph import Ending, Graph, Member, Node, UnknownRank, Wait
from frd.engine.policy import Policy
from frd.engine.state.snapshot import EARLY, Mismatch, Snapshot, StalledOp, StallTable
from frd.model import UNKNOWN_SEQ, AlignedNs, CollectiveRef, Int32s, Kind, Reason, Suspect

_UNSHOWN = "whether the others wait is not known: no entry of theirs shows when an op ends"
_FOREMOST = (
    frozenset({Ending.MISMATCH}),
    DEFINITE,
    frozenset({Ending.MOVING}),
    frozenset({Ending.UNKNOWN}),
    frozenset({Ending.WAITING}),
    frozenset({Ending.NO_RANK}),
)
"""Of all endings of an incident, those in the first of these sets that matches are reported."""

_FOREMOST_OF_CALLS = (DEFINITE | {Ending.MOVING, Ending.UNKNOWN}, *_FOREMOST[4:])
"""Of a job without a recorded op: for which of several ranks a call waits is not known."""
_ON_ITS_WAY = frozenset({Ending.ALONE, Ending.DEVICE, Ending.NO_RANK})
"""Endings that also show for a moment when a late rank joins and all is well again."""


NO_ENTRY: Final = Instance(-1, UNKNOWN_SEQ)
_OF_DUMPS: Final = Policy(telemetry_late_s=NEVER)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One incident as a snapshot shows it."""

    kind: Kind
    reason: Reason | None
    """The reason of the whole incident if there is no suspect."""
    instance: Instance
    """What it is about: the oldest stalled op that waits directly for a suspect, a collective
    where there is one; `NO_ENTRY` for a call that no recorder shows."""
    collective: CollectiveRef
    """The same for people."""
    since: AlignedNs
    """When the first rank began to wait in it."""
    stalled: tuple[StalledOp, ...]
    """All that is stalled in the incident, oldest first."""
    suspects: tuple[Suspect, ...]
    """Sorted by onset; empty if no rank can be named."""
    onsets: Mapping[int, UncertainTime]
    """When each suspect began, by rank; see `attribution.Dated`."""
    victims: tuple[int, ...]
    cleared: tuple[int, ...]
    """Victims in no op that provably wait in something that no recorder shows."""
    unknown: tuple[int, ...]
    """Ranks that are waited for and about which nothing can be claimed."""
    disagreement: str = ""
    """A sentence on what each rank did, if ranks disagree."""


def diagnose(
    snapshot: Snapshot, stalled: StallTable, policy: Policy = _OF_DUMPS
) -> list[Diagnosis]:
    """The incidents of a snapshot, oldest first.

    All mismatches of the snapshot count; leave out those that are not to be reported yet.
    """
    mismatches, waits = _first_mismatches(snapshot.mismatches), Waits(snapshot)
    alive = snapshot.rank[snapshot.in_state(*ALIVE)]
    if not mismatches and not np.isin(alive, waits.waiting).any():
        return _of_calls(as_seen(snapshot), stalled, policy) if snapshot.unrecorded else []
    stalled_at = snapshot.stalled_at(stalled)
    of = waits, policy.telemetry_late_s, stalled_at
    asked_at, in_ops = snapshot.stalled_at(stalled, EARLY), waits.waiting.tolist()
    known = counting(snapshot, asked_at, but=frozenset(in_ops))
    pairs = unequal_pairs(waits)
    graph = Graph(waits, RankFacts(*of, known), mismatches, pairs)
    starts = _starts(graph, stalled.rank)
    for instance in mismatches:
        starts.setdefault(Wait(instance), set())
    found = [(graph, incident) for incident in incidents(graph, starts)]
    if graph.facts.exited_waiting:  # the earliest proven root stays; without one, the exits are it
        graph = Graph(waits, RankFacts(*of, known, name_exits=True), mismatches, pairs)
        unproven = [wait for _, one in found if not one.is_proven for wait in one.starts]
        found = [(of, one) for of, one in found if one.is_proven]
        found += [(graph, incident) for incident in incidents(graph, unproven)]
    diagnoses = [
        diagnosis
        for graph, incident in found
        if (diagnosis := _judge(graph, incident, stalled, starts)) is not None
    ]
    return _merged_by_rank(
        sorted(diagnoses, key=lambda diagnosis: (diagnosis.since, diagnosis.instance))
    )


def _of_calls(snapshot: Snapshot, stalled: StallTable, policy: Policy) -> list[Diagnosis]:
    """At most one: ranks of a job wait for each other, so that its calls hang together."""
    if (calls := Calls.of(snapshot, policy)) is None:
        return []
    waits, any_time = Waits(snapshot), snapshot.moment(calls.first.rank, AlignedNs(0))
    facts = RankFacts(waits, policy.telemetry_late_s, any_time, calls.waiting, name_exits=True)
    graph = Graph(waits, facts, {}, calls=calls)
    alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank in sorted(calls.overdue):  # those in one call wait for the same
        alike.setdefault((calls.waiting[rank].op, calls.waiting[rank].peers), []).append(rank)
    starts: dict[Start, set[int]] = {Member(ranks[0]): {*ranks} for ranks in alike.values()}
    found = (_judge(graph, one, stalled, starts) for one in incidents(graph, starts))
    return [reduce(_joined, diagnoses)] if (diagnoses := [one for one in found if one]) else []


def _first_mismatches(mismatches: Sequence[Mismatch]) -> dict[Instance, Mismatch]:
    """The first mismatch of each group: what does not match after it is its consequence."""
    first: dict[int, Mismatch] = {}
    for mismatch in sorted(mismatches, key=lambda one: one.seq):
        first.setdefault(mismatch.group, mismatch)
    return {Instance(mismatch.group, mismatch.seq): mismatch for mismatch in first.values()}


def _starts(graph: Graph, stalled: Int32s) -> dict[Start, set[int]]:
    """What the stalled ranks wait in, each with its ranks. Ranks that are gone do not wait."""
    alive = graph.snapshot.rank[~graph.snapshot.in_state(*GONE)]
    starts: dict[Start, set[int]] = {}
    for instance, started, ranks in graph.waits.by_head(stalled[np.isin(stalled, alive)]):
        of = set(ranks.tolist())
        waits = graph.waits_of(min(of)) if instance.is_p2p else (Wait(instance, started),)
        starts |= dict.fromkeys(waits, of)
    return starts


def _judge(
    graph: Graph, incident: Incident, stalled: StallTable, starts: Mapping[Start, set[int]]
) -> Diagnosis | None:
    """None if all endings of the incident are too young to be reported, or the wait is not certain
    and no rank explains it."""
    roots = _foremost(graph, incident)
    if not roots:
        return None
    held_up = _held_up(graph, incident)
    starting = set().union(*(starts[wait] for wait in incident.starts))
    dated = _suspects(graph, roots, held_up)
    suspects = [suspect for suspect, _ in dated]
    onsets = {suspect.rank: began for suspect, began in dated}
    unknown = {n.rank for n in incident.nodes if isinstance(n, UnknownRank)} - onsets.keys()
    passed = (graph.came_and_missing(node)[0] for node in incident.nodes if isinstance(node, Wait))
    of = {n.rank for n in incident.nodes if isinstance(n, Member)} if graph.calls is None else None
    waiting = {rank for rank in graph.facts.unrecorded if of is None or rank in of}
    cleared = waiting - onsets.keys()
    ranks = np.fromiter(starting, np.int64, len(starting))
    stalled_ops = tuple(stalled.ops(np.isin(stalled.rank, ranks)))
    instance, collective, since = _subject(graph, roots, held_up, stalled_ops)
    victims = starting.union(cleared, *passed) - onsets.keys() - unknown
    if instance.group in graph.snapshot.unshown and _kind(roots) is not Kind.MISMATCH:
        if all(one.reason is Reason.UNREACHABLE for one in suspects):
            return None  # they may have joined all that the others have
        suspects = [
            one
            if one.reason is Reason.EXITED
            else replace(*lowered([one]), evidence=f"{one.evidence}; {_UNSHOWN}")
            for one in suspects
        ]
    return Diagnosis(
        kind=_kind(roots),
        reason=Reason.NETWORK_OR_DEVICE if roots[0].ending is Ending.NO_RANK else None,
        instance=instance,
        collective=collective,
        since=since,
        stalled=stalled_ops,
        suspects=tuple(lowered(suspects) if unknown else suspects),
        onsets=onsets,
        victims=tuple(sorted(victims)),
        cleared=tuple(sorted(cleared)),
        unknown=tuple(sorted(unknown)),
        disagreement=next(filter(None, (disagree(graph, root) for root in roots)), ""),
    )


def _subject(
    graph: Graph,
    roots: Sequence[Root],
    held_up: Mapping[Node, list[Wait]],
    stalled: Collection[StalledOp],
) -> tuple[Instance, CollectiveRef, AlignedNs]:
    """What an incident is about, for people as well, and since when."""
    if (calls := graph.calls) is None:
        wait = _about(graph, roots, held_up, stalled)
        return wait.instance, _collective(graph, wait), graph.onset(wait).at
    waiting = sorted(rank for rank, one in calls.waiting.items() if one.op == calls.first.op)
    size, op = graph.snapshot.world_size, calls.first.op
    ref = CollectiveRef("", "", size, UNKNOWN_SEQ, op, tuple(waiting), tuple(calls.free), 0.0)
    return NO_ENTRY, ref, AlignedNs(calls.first.since_ns)


def _collective(graph: Graph, wait: Wait) -> CollectiveRef:
    """If members disagree, its op is what most of them called, whichever was seen first."""
    group, seq, *_ = wait.instance
    mismatch = graph.mismatches.get(wait.instance)
    op = op_of(graph, wait.instance) if mismatch is None else mismatch.classes[0][0].op
    waiting, missing = graph.came_and_missing(wait)
    return builder.collective_ref(graph.snapshot.groups[group], seq, op, waiting, missing)


def _foremost(graph: Graph, incident: Incident) -> list[Root]:
    ripe = [
        root
        for root in incident.roots
        if root.ending not in _ON_ITS_WAY
        or all(graph.is_ripe(node) for node in root.nodes if isinstance(node, Wait))
    ]
    for endings in _FOREMOST if graph.calls is None else _FOREMOST_OF_CALLS:
        if foremost := [root for root in ripe if root.ending in endings]:
            return foremost
    return []


def _kind(roots: Sequence[Root]) -> Kind:
    endings = {root.ending for root in roots}
    if endings <= {Ending.MISMATCH, Ending.UNEQUAL}:
        return Kind.MISMATCH
    return Kind.ORDER if endings == {Ending.ORDER} else Kind.STALL


def _held_up(graph: Graph, incident: Incident) -> dict[Node, list[Wait]]:
    """For each node the waits that lead directly to it, the most informative first; then those that
    lead to it only by way of ranks whose wait no recorder shows."""
    waits = [node for node in incident.nodes if isinstance(node, Wait)]
    waits.sort(key=lambda wait: _order(graph, wait))
    found: dict[Node, dict[Wait, None]] = {}
    for wait in waits:
        for target in graph.edges[wait]:
            found.setdefault(target, {})[wait] = None
    todo = list(found)
    while todo:
        node = todo.pop()
        if isinstance(node, Member) and node.rank in graph.facts.unrecorded:
            for target in graph.edges[node]:
                if not found[node].keys() <= (leading := found.setdefault(target, {})).keys():
                    leading |= found[node]
                    todo.append(target)
    return {node: list(leading) for node, leading in found.items()}


def _suspects(
    graph: Graph, roots: Sequence[Root], held_up: Mapping[Node, list[Wait]]
) -> list[Dated]:
    """Sorted by onset. A rank that several roots name is listed once, with its earliest onset."""
    found = [
        dated
        for root in roots
        for dated in suspects_of(graph, root, held_up.get(root.nodes[0], []))
    ]
    by_rank: dict[int, Dated] = {}
    for dated in sorted(found, key=lambda dated: (dated[1].at, dated[0].rank)):
        by_rank.setdefault(dated[0].rank, dated)
    return list(by_rank.values())


def _about(
    graph: Graph,
    roots: Sequence[Root],
    held_up: Mapping[Node, list[Wait]],
    stalled: Collection[StalledOp],
) -> Wait:
    """The first stalled op that waits directly for a root; else the first op that does."""
    direct = [
        wait
        for root in roots
        for node in root.nodes
        for wait in ([node] if isinstance(node, Wait) else held_up.get(node, []))
    ]
    confirmed = [
        w for w in direct if StalledOp(w.instance.group, w.instance.seq, w.rank) in stalled
    ]
    return min(confirmed or direct, key=lambda w: _order(graph, w))


def _order(graph: Graph, wait: Wait) -> tuple[bool, int, Instance, bool, int]:
    """Collectives first, because their seq shows how far a rank came; the oldest of them."""
    return wait.instance.is_p2p, graph.onset(wait).at, wait.instance, wait.started, wait.rank


def _merged_by_rank(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Diagnoses that name the same rank are one incident; the oldest is kept."""
    kept: list[Diagnosis] = []
    for one in diagnoses:
        same = [at for at, other in enumerate(kept) if one.onsets.keys() & other.onsets.keys()]
        if same:
            kept[same[0]] = _joined(kept[same[0]], one)
        else:
            kept.append(one)
    return kept


def _joined(first: Diagnosis, second: Diagnosis) -> Diagnosis:
    others = (suspect for suspect in second.suspects if suspect.rank not in first.onsets)
    suspects = (*first.suspects, *others)
    onsets = {**second.onsets, **first.onsets}
    return replace(
        first,
        stalled=tuple(dict.fromkeys((*first.stalled, *second.stalled))),
        suspects=suspects,
        onsets=onsets,
        victims=tuple(sorted({*first.victims, *second.victims} - onsets.keys())),
        cleared=tuple(sorted({*first.cleared, *second.cleared} - onsets.keys())),
        unknown=tuple(sorted({*first.unknown, *second.unknown} - onsets.keys())),
    )
