"""Agents that have spoken: who is up, how fresh, which ranks they host, what their clocks are like.

Bookkeeping for people and metrics; the engine gets none of it. What is called a node is what one
agent watches: a host as a rule, half of one where two agents share it. An agent process that was
started again is the same node, though its session is another. A node stays listed while it hosts a
rank of an attempt that is remembered, so that a vanished agent is seen as missing. The host of a
rank is the node that declared it last: one whose ranks went on elsewhere is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from frd.model import AlignedNs, AttemptKey
from frd.service.clocks.agent_clocks import AgentClock, SessionKey
from frd.service.state import NodeView


@dataclass(slots=True)
class _Node:
    name: str
    clock: AgentClock
    heard_at: AlignedNs
    may_report: Callable[[str], bool]
    """Whether its agent may host ranks of a job."""
    streams: set[int] = field(default_factory=set)
    ranks: dict[AttemptKey, set[int]] = field(default_factory=dict)
    shown: dict[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """`ranks` as views carry them: replaced, never changed."""
    heir: SessionKey | None = None
    """Another session of the host that has taken over ranks of this one."""

    def show(self) -> None:
        self.ranks = {key: ranks for key, ranks in self.ranks.items() if ranks}
        self.shown = {key: tuple(sorted(ranks)) for key, ranks in self.ranks.items()}


class Nodes:
    """By boot id and session of the agent."""

    def __init__(self) -> None:
        self._nodes: dict[SessionKey, _Node] = {}
        self._hosts: dict[tuple[AttemptKey, int], SessionKey] = {}

    def connected(
        self,
        key: SessionKey,
        name: str,
        clock: AgentClock,
        stream: int,
        now: AlignedNs,
        may_report: Callable[[str], bool] = lambda job: True,
    ) -> None:
        node = self._nodes.get(key)
        if node is None:
            before = self._last_gone(key[0], may_report)
            node = self._nodes[key] = _Node(name, clock, now, may_report)
            if before is not None:
                self._inherit(key, before)
        node.name, node.clock, node.may_report = name, clock, may_report
        node.streams.add(stream)

    def heard(self, key: SessionKey, now: AlignedNs) -> None:
        self._nodes[key].heard_at = now

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
        """The session of that host which a new one most likely follows: none of a job that is not
        the new one may report."""
        gone = [
            key
            for key, node in self._nodes.items()
            if key[0] == boot_id
            and not node.streams
            and all(may_report(attempt.job) for attempt, ranks in node.ranks.items() if ranks)
        ]
        return max(gone, key=lambda key: self._nodes[key].heard_at, default=None)

    def _inherit(self, key: SessionKey, before: SessionKey) -> None:
        """`key` is the agent that was `before`, started again."""
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

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all attempts but these, and nodes that are gone and hosted nothing else."""
        self._hosts = {of: key for of, key in self._hosts.items() if of[0] in attempts}
        for key, node in list(self._nodes.items()):
            if any(attempt not in attempts for attempt in node.ranks):
                node.ranks = {a: ranks for a, ranks in node.ranks.items() if a in attempts}
                node.show()
            self._drop_unless_needed(key)

    def views(self, now: AlignedNs, late_s: float) -> tuple[NodeView, ...]:
        """All nodes; one that was not heard of for `late_s` does not count as reporting."""
        late_at = now - int(late_s * 1e9)
        return tuple(
            [
                NodeView(
                    node=node.name,
                    boot_id=boot_id,
                    connected=bool(node.streams),
                    reporting=bool(node.streams) and node.heard_at >= late_at,
                    last_message_at=node.heard_at,
                    clock=node.clock.view(now),
                    ranks=node.shown,
                )
                for (boot_id, _), node in self._nodes.items()
            ]
        )
