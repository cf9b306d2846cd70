"""Nodes (clock domains) whose agents have spoken: who is up, how fresh, which ranks they host.

Bookkeeping for people and metrics; the engine gets none of it. A node stays listed while it hosts
a rank of an attempt that is remembered, so that a vanished agent is seen as missing. The host of a
rank is the node that declared it last: one whose ranks went on elsewhere is not missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from frd.model import AlignedNs, AttemptKey
from frd.service.clocks import Clocks
from frd.service.view import NodeView


@dataclass(slots=True)
class _Node:
    name: str
    heard_at: AlignedNs
    streams: set[int] = field(default_factory=set)
    ranks: dict[AttemptKey, set[int]] = field(default_factory=dict)
    shown: dict[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """`ranks` as views carry them: replaced, never changed."""

    def show(self) -> None:
        self.ranks = {key: ranks for key, ranks in self.ranks.items() if ranks}
        self.shown = {key: tuple(sorted(ranks)) for key, ranks in self.ranks.items()}


class Nodes:
    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._nodes: dict[str, _Node] = {}
        self._hosts: dict[tuple[AttemptKey, int], str] = {}

    def connected(self, boot_id: str, name: str, stream: int, now: AlignedNs) -> None:
        node = self._nodes.setdefault(boot_id, _Node(name, now))
        node.name = name
        node.streams.add(stream)

    def heard(self, boot_id: str, now: AlignedNs) -> None:
        self._nodes[boot_id].heard_at = now

    def hosts(self, boot_id: str, ranks: Iterable[tuple[AttemptKey, int]]) -> None:
        node = self._nodes[boot_id]
        left: set[str] = set()
        for key, rank in ranks:
            before = self._hosts.get((key, rank), boot_id)
            if before != boot_id:
                self._nodes[before].ranks[key].discard(rank)
                left.add(before)
            self._hosts[key, rank] = boot_id
            node.ranks.setdefault(key, set()).add(rank)
        node.show()
        for before in left:
            self._nodes[before].show()
            self._drop_unless_needed(before)

    def disconnected(self, boot_id: str, stream: int) -> None:
        self._nodes[boot_id].streams.discard(stream)
        self._drop_unless_needed(boot_id)

    def _drop_unless_needed(self, boot_id: str) -> None:
        node = self._nodes[boot_id]
        if not node.ranks and not node.streams:
            del self._nodes[boot_id]

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all attempts but these, and nodes that are gone and hosted nothing else."""
        self._hosts = {of: boot_id for of, boot_id in self._hosts.items() if of[0] in attempts}
        for boot_id, node in list(self._nodes.items()):
            if any(key not in attempts for key in node.ranks):
                node.ranks = {key: ranks for key, ranks in node.ranks.items() if key in attempts}
                node.show()
            self._drop_unless_needed(boot_id)

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
                    clock_offset_s=_seconds(self._clocks.offset_ns(boot_id)),
                    clock_uncertainty_s=_seconds(self._clocks.uncertainty_ns(boot_id)),
                    ranks=node.shown,
                )
                for boot_id, node in self._nodes.items()
            ]
        )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
