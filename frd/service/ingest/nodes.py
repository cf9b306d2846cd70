"""Nodes: which agents are connected, when they last reported, which ranks they host, their clocks.

For metrics and the API; the engine does not use it. A node is what one agent process watches:
usually a host, or a part of one if several agents share it. A node stays listed while it hosts a
rank of an attempt that is remembered, so that a lost agent is seen as missing. The host of a rank
is the node that declared it last: a restarted agent takes over the ranks that it still finds, and a
node whose ranks continue on other nodes is not missing. Nothing else makes one agent the successor
of another: an agent of another job on the same host watches other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from frd.engine.state.lazy import MadeOnce
from frd.model import AlignedNs, AttemptKey
from frd.service.clocks.agent_clocks import AgentClock, SessionKey
from frd.service.state import NodeView
from frd.wire.messages import Hello


@dataclass(slots=True)
class _Node:
    name: str
    clock: AgentClock
    heard_at: AlignedNs
    streams: set[int] = field(default_factory=set)
    ranks: dict[AttemptKey, set[int]] = field(default_factory=dict)
    shown: dict[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """`ranks` for views: replaced, never changed."""
    unreadable: tuple[str, ...] = ()
    stopped: bool = False
    metrics: str = ""
    closing: set[int] = field(default_factory=set)
    """Streams with a goodbye."""

    def show(self) -> None:
        self.ranks = {key: ranks for key, ranks in self.ranks.items() if ranks}
        self.shown = {key: tuple(sorted(ranks)) for key, ranks in self.ranks.items()}


class Nodes:
    """By boot id and session of the agent."""

    def __init__(self) -> None:
        self._nodes: dict[SessionKey, _Node] = {}
        self._hosts: dict[tuple[AttemptKey, int], SessionKey] = {}

    def connected(
        self, key: SessionKey, hello: Hello, clock: AgentClock, stream: int, now: AlignedNs
    ) -> None:
        node = self._nodes.setdefault(key, _Node(hello.node, clock, now))
        if not node.streams:  # the agent sends these again
            node.unreadable, node.stopped, node.closing = (), False, set()
        node.name, node.clock, node.metrics = hello.node, clock, hello.metrics
        node.streams.add(stream)

    def heard(self, key: SessionKey, now: AlignedNs) -> None:
        self._nodes[key].heard_at = now

    def unreadable(self, key: SessionKey, texts: tuple[str, ...]) -> None:
        self._nodes[key].unreadable = texts

    def asked_to_stop(self, key: SessionKey) -> None:
        self._nodes[key].stopped = True

    def said_goodbye(self, key: SessionKey, stream: int) -> None:
        """The stream of one job may end while others go on."""
        node = self._nodes[key]
        node.closing.add(stream)
        node.stopped |= node.streams <= node.closing

    def hosts(self, key: SessionKey, ranks: Iterable[tuple[AttemptKey, int]]) -> None:
        left: set[SessionKey] = set()
        for attempt, rank in ranks:
            before = self._hosts.get((attempt, rank), key)
            if before != key:
                left.add(before)
                self._nodes[before].ranks[attempt].discard(rank)
            self._hosts[attempt, rank] = key
            self._nodes[key].ranks.setdefault(attempt, set()).add(rank)
        self._nodes[key].show()
        for before in left:
            self._nodes[before].show()
            self._drop_unless_needed(before)

    def disconnected(self, key: SessionKey, stream: int) -> None:
        self._nodes[key].streams.discard(stream)
        self._drop_unless_needed(key)

    def _drop_unless_needed(self, key: SessionKey) -> None:
        node = self._nodes[key]
        if not node.ranks and not node.streams:
            del self._nodes[key]

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all other attempts, and disconnected nodes that hosted nothing else."""
        self._hosts = {of: key for of, key in self._hosts.items() if of[0] in attempts}
        for key, node in list(self._nodes.items()):
            if any(attempt not in attempts for attempt in node.ranks):
                node.ranks = {a: ranks for a, ranks in node.ranks.items() if a in attempts}
                node.show()
            self._drop_unless_needed(key)

    def views(self, now: AlignedNs, late_s: float) -> Sequence[NodeView]:
        """All nodes; a node without a message for `late_s` is not reporting.

        What changes is copied now, the views are made when they are read."""
        late_at = now - int(late_s * 1e9)
        rows = [
            (
                *(node.name, key[0], (up := bool(node.streams)), up and node.heard_at >= late_at),
                *(node.heard_at, node.clock.view(now), node.shown, key[1]),
                *(node.unreadable if up else (), node.stopped, node.metrics if up else ""),
            )
            for key, node in self._nodes.items()
        ]
        return MadeOnce(lambda: [NodeView(*row) for row in rows])
