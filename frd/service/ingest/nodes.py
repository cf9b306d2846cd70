"""Nodes: which agents are connected, when they last reported, which ranks they host, their clocks.

For metrics and the API; the engine does not use it. A node is what one agent watches: usually a
host, or a part of one if several agents share it. A restarted agent is the same node with another
session. A node stays listed while it hosts a rank of an attempt that is remembered, so that a lost
agent is seen as missing. The host of a rank is the node that declared it last: a node whose ranks
continue on other nodes is not missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from frd.engine.state.lazy import MadeOnce
from frd.model import AlignedNs, AttemptKey
from frd.service.clocks.agent_clocks import AgentClock, SessionKey
from frd.service.state import NodeView


@dataclass(slots=True)
class _Node:
    name: str
    clock: AgentClock
    heard_at: AlignedNs
    may_report: Callable[[str], bool]
    """Whether its agent may report ranks of a job."""
    streams: set[int] = field(default_factory=set)
    ranks: dict[AttemptKey, set[int]] = field(default_factory=dict)
    shown: dict[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """`ranks` for views: replaced, never changed."""
    unreadable: tuple[str, ...] = ()
    heir: SessionKey | None = None
    """Another session of the host that has taken over ranks of this one."""

    def show(self) -> None:
        self.ranks = {key: ranks for key, ranks in self.ranks.items() if ranks}
        self.shown = {key: tuple(sorted(ranks)) for key, ranks in self.ranks.items()}


class Nodes:
    """By boot id and session of the agent."""

    def __init__(self) -> None:
        self._nodes: dict[SessionKey, _Node] = {}
        self._of_host: defaultdict[str, dict[SessionKey, None]] = defaultdict(dict)
        """The keys of `_nodes` by boot id, in the same order."""
        self._hosts: dict[tuple[AttemptKey, int], SessionKey] = {}

    def connected(
        self,
        key: SessionKey,
        name: str,
        clock: AgentClock,
        stream: int,
        now: AlignedNs,
        may_report: Callable[[str], bool],
    ) -> None:
        node = self._nodes.get(key)
        if node is None:
            before = self._last_gone(key[0], may_report)
            node = self._nodes[key] = _Node(name, clock, now, may_report)
            self._of_host[key[0]][key] = None
            if before is not None:
                self._inherit(key, before)
        if not node.streams:
            node.unreadable = ()  # the agent sends it again
        node.name, node.clock, node.may_report = name, clock, may_report
        node.streams.add(stream)

    def heard(self, key: SessionKey, now: AlignedNs) -> None:
        self._nodes[key].heard_at = now

    def unreadable(self, key: SessionKey, texts: tuple[str, ...]) -> None:
        self._nodes[key].unreadable = texts

    def hosts(self, key: SessionKey, ranks: Iterable[tuple[AttemptKey, int]]) -> None:
        left: set[SessionKey] = set()
        for attempt, rank in ranks:
            before = self._hosts.get((attempt, rank), key)
            if before != key:
                left.add(before)
                if before[0] == key[0]:
                    self._nodes[before].heir = key
            self._move(attempt, rank, key)
        self._nodes[key].show()
        for before in left:
            self._nodes[before].show()
            self._drop_unless_needed(before)

    def disconnected(self, key: SessionKey, stream: int) -> None:
        node = self._nodes[key]
        node.streams.discard(stream)
        if node.heir is not None and node.heir in self._nodes and not node.streams:
            self._inherit(node.heir, key)
        else:
            self._drop_unless_needed(key)

    def _last_gone(self, boot_id: str, may_report: Callable[[str], bool]) -> SessionKey | None:
        """The disconnected session of the host that a new session most likely replaces. All its
        jobs must be jobs that the new session may report."""
        gone = [
            key
            for key in self._of_host.get(boot_id, ())
            if not (node := self._nodes[key]).streams
            and all(may_report(attempt.job) for attempt, ranks in node.ranks.items() if ranks)
        ]
        return max(gone, key=lambda key: self._nodes[key].heard_at, default=None)

    def _inherit(self, key: SessionKey, before: SessionKey) -> None:
        """Session `key` is the restarted agent of session `before`."""
        for attempt, ranks in self._nodes[before].ranks.items():
            if self._nodes[key].may_report(attempt.job):
                for rank in list(ranks):
                    self._move(attempt, rank, key)
        self._nodes[key].show()
        self._nodes[before].show()
        self._drop_unless_needed(before)

    def _move(self, attempt: AttemptKey, rank: int, to: SessionKey) -> None:
        before = self._hosts.get((attempt, rank))
        if before is not None:
            self._nodes[before].ranks[attempt].discard(rank)
        self._hosts[attempt, rank] = to
        self._nodes[to].ranks.setdefault(attempt, set()).add(rank)

    def _drop_unless_needed(self, key: SessionKey) -> None:
        node = self._nodes[key]
        if not node.ranks and not node.streams:
            del self._nodes[key]
            sessions = self._of_host[key[0]]
            del sessions[key]
            if not sessions:
                del self._of_host[key[0]]

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
                node.unreadable if up else (),
            )
            for key, node in self._nodes.items()
        ]
        return MadeOnce(lambda: [NodeView(*row) for row in rows])
