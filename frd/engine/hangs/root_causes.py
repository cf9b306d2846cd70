"""Ends of the wait-for graph, and the confirmed waits that lead to them.

A *root* is a strongly connected component without a way out. Roots that one confirmed wait leads
to, or that concern the same rank or op, belong to one *incident*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from frd.engine.graph import components
from frd.engine.hangs.wait_graph import Ending, Graph, Member, Node, UnknownRank, Wait

DEFINITE = frozenset(Ending) - {Ending.MOVING, Ending.WAITING, Ending.UNKNOWN, Ending.NO_RANK}
"""Endings that name a cause; the others say that a rank moves, or that too little is known."""
_UNNAMED = frozenset({Ending.UNKNOWN, Ending.NO_RANK})
"""Ends that name no rank."""


Start: TypeAlias = Wait | Member
"""Where a search starts: a recorded op, or a rank in a wait that no recorder shows."""


@dataclass(frozen=True, slots=True)
class Root:
    nodes: tuple[Node, ...]
    ending: Ending


@dataclass(frozen=True, slots=True)
class Incident:
    roots: tuple[Root, ...]
    starts: tuple[Start, ...]
    """The confirmed waits that lead to the roots."""
    nodes: frozenset[Node]
    """All that they lead through."""

    @property
    def is_proven(self) -> bool:
        """Some root is what certainly holds the waits up, a rank or not."""
        return any(root.ending in DEFINITE | {Ending.NO_RANK} for root in self.roots)


def incidents(graph: Graph, starts: Collection[Start]) -> list[Incident]:
    """The incidents that confirmed waits belong to. Explores `graph` further where needed."""
    graph.explore(starts)
    parts = components(graph.edges)
    if _widen_cycles(graph, parts):
        parts = components(graph.edges)
    sinks = [part for part in parts if _is_sink(graph, part) or _is_deadlock(graph, part)]
    leads_to = _reachable_sinks(graph, parts, sinks)
    connected: list[tuple[int, Hashable]] = [
        (at, _whose(start)) for start in starts for at in leads_to[start]
    ]
    connected += [(at, _concerns(node)) for at, sink in enumerate(sinks) for node in sink]
    neighbours: dict[Hashable, list[Hashable]] = defaultdict(list)
    for at, other in connected:
        neighbours["sink", at].append(other)
        neighbours[other].append(("sink", at))
    incident_of = {node: at for at, part in enumerate(components(neighbours)) for node in part}

    grouped: dict[int, tuple[list[Start], set[int]]] = {}
    for start in starts:
        some, ends = grouped.setdefault(incident_of[_whose(start)], ([], set()))
        some.append(start)
        ends.update(leads_to[start])
    roots = [Root(tuple(sink), _ending(graph, sink)) for sink in sinks]
    return [
        Incident(tuple(roots[at] for at in sorted(ends)), tuple(some), _reach(graph, some))
        for some, ends in grouped.values()
    ]


def hub(graph: Graph, root: Root) -> int:
    """The only rank through which all circles of a root lead: no circle is left without it. -1 if
    no rank is so, or several are, as in a single circle."""
    found = (rank for rank in _circle(graph, root) if not _circle(graph, root, but=rank))
    first, *others = [*islice(found, 2)] or [-1]
    return -1 if others else first


def _circle(graph: Graph, root: Root, but: int | None = None) -> set[int]:
    """The ranks of some circle of a root, without one rank; empty if there is none."""
    inside = {node for node in root.nodes if node.rank != but}
    edges = {node: [to for to in graph.edges[node] if to in inside] for node in inside}
    part = next((part for part in components(edges) if len(part) > 1), [])
    node, inside, path = next(iter(part), None), set(part), dict[Node, int]()
    while node is not None and node not in path:
        path[node] = len(path)
        node = next(to for to in edges[node] if to in inside)
    return {one.rank for one, at in path.items() if node and at >= path[node]} - {-1}


def _ending(graph: Graph, sink: Sequence[Node]) -> Ending:
    """Calls whose sends and receives are all matched by each other wait for no rank."""
    if len(sink) == 1:
        return graph.endings[sink[0]]
    return Ending.ORDER if any(isinstance(n, Member) for n in sink) else Ending.NO_RANK


def _is_sink(graph: Graph, part: Sequence[Node]) -> bool:
    inside = set(part)
    return all(target in inside for node in part for target in graph.edges[node])


def _is_deadlock(graph: Graph, part: Sequence[Node]) -> bool:
    """True for a circle of collectives that can never complete, whatever unknown ranks do: all
    members have to join a collective, and none of them can. Not if a younger op delays one of
    them, or if it leads through a wait that no recorder shows."""
    unrecorded = graph.facts.unrecorded
    if len(part) == 1 or any(
        n.rank in unrecorded if isinstance(n, Member) else isinstance(n, Wait) and n.instance.is_p2p
        for n in part
    ):
        return False
    ends = {graph.endings.get(node, Ending.UNKNOWN) for node in _reach(graph, part)}
    if not ends <= _UNNAMED:
        return False
    inside = set(part)
    others = [
        wait
        for node in part
        if isinstance(node, Member)
        for wait in graph.all_waits(node.rank)
        if wait not in inside
    ]
    graph.explore(others)
    return not any(node in graph.endings for node in _reach(graph, others, inside))


def _widen_cycles(graph: Graph, parts: Iterable[Sequence[Node]]) -> bool:
    """Before a circle is called the cause, or matched sends and receives without one, look at all
    that their ranks wait for.

    The oldest op in flight may be a receive posted long ahead, while the program is stuck in a
    younger one; if that leads to a definite end elsewhere, the circle is not where it ends.
    """
    widened = False
    for part in parts:
        if len(part) == 1 or not _is_sink(graph, part):
            continue
        for node in part:
            if isinstance(node, Member | Wait) and node.rank >= 0:
                others = graph.all_waits(node.rank)
                graph.explore(others)
                if any(graph.endings.get(n) in DEFINITE for n in _reach(graph, others)):
                    graph.edges[node] = (*graph.edges[node], *others)
                    widened = True
    return widened


def _reach(graph: Graph, starts: Iterable[Node], but: Collection[Node] = ()) -> frozenset[Node]:
    """All nodes that `starts` lead to without passing through `but`."""
    seen: set[Node] = set(but)
    todo = list(starts)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(graph.edges[node])
    return frozenset(seen.difference(but))


def _reachable_sinks(
    graph: Graph, parts: Sequence[Sequence[Node]], sinks: Sequence[Sequence[Node]]
) -> dict[Node, frozenset[int]]:
    """For every node the indexes of the sinks that it leads to; `parts` successors first."""
    number = {sink[0]: at for at, sink in enumerate(sinks)}
    leads_to: dict[Node, frozenset[int]] = {}
    for part in parts:
        inside = set(part)
        outward = {t for node in part for t in graph.edges[node] if t not in inside}
        ends = frozenset[int]().union(*(leads_to[target] for target in outward))
        if part[0] in number:
            ends |= {number[part[0]]}
        for node in part:
            leads_to[node] = ends
    return leads_to


def _whose(start: Start) -> Hashable:
    """All sends and receives in which a rank waits are one wait."""
    return (start.rank,) if start.rank >= 0 else start


def _concerns(node: Node) -> Hashable:
    match node:
        case Wait(instance, _, rank):
            return instance
        case Member(rank) | UnknownRank(rank, _):
            return rank
