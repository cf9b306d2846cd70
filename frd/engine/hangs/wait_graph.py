"""Which rank waits for which: the wait-for graph and the rules that give it edges.

A stuck rank waits in its *head*, its oldest op in flight. All ranks with the same head share one
`Wait` node. The node has edges to the `Member`s that it waits for, and each member has an edge to
the op in which it waits itself. The last node of a chain gets an `Ending`, which says what can be
claimed about it.

Absence is claimed only with proof: the member's own telemetry is fresh and complete, and shows that
it had not joined while others were waiting. Otherwise the edge leads to a `Doubt`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np

from frd.engine.clocks.uncertain_time import UncertainTime
from frd.engine.hangs.ops_in_flight import Attendance, Instance, Op, Waits
from frd.engine.matching.signature_rules import is_synchronizing
from frd.engine.state.snapshot import Snapshot
from frd.model import AlignedNs, Int32s, RankState

GONE_STATES = frozenset({RankState.EXITED, RankState.FINISHED, RankState.SILENT})
"""States in which an agent has positive evidence that the rank no longer takes part."""

_NOTICED_NS = 1_000_000_000
"""How late recorders may notice that a collective completed."""
_MOVED_LATELY_S = 2.0
"""A rank in no op must show no progress for this long: two reports of its agent."""


class Ending(Enum):
    """The last node of a chain of waits."""

    MISMATCH = "members whose signatures disagree"
    ALONE = "members still inside an op that a peer has completed"
    DEVICE = "members whose device never started what their peers' devices started"
    GONE = "a rank with positive evidence that its process exited or stopped"
    IDLE = "a rank that is alive and in no collective"
    ORDER = "ranks that wait for each other in a circle"
    MOVING = "a rank that makes progress elsewhere"
    DOUBT = "a rank of which nothing fresh is known"
    NO_RANK = "an op that all members have joined and none completes"


class Why(Enum):
    """Why nothing can be claimed about a rank."""

    NEVER_SEEN = "no agent has reported it"
    DISCONNECTED = "its agent is not connected"
    LATE = "its telemetry is late"
    GAP = "its telemetry has gaps"
    UNPROVEN = "its telemetry is too old to prove it"


class Wait(NamedTuple):
    """All ranks whose head is one instance: of a collective, those whose device has (not) started
    it; of a P2P channel, the rank at one end."""

    instance: Instance
    started: bool = False
    rank: int = -1


class Member(NamedTuple):
    rank: int


class Doubt(NamedTuple):
    rank: int
    why: Why


Node: TypeAlias = Wait | Member | Doubt
"""Tuples, because a big job has tens of thousands; of different lengths, so that none are equal."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the rules need in addition to the snapshot."""

    threshold_s: Callable[[int], float]
    """The stall threshold of a group, by its index."""
    late_s: float
    """Telemetry older than this proves nothing."""
    mismatched: Collection[Instance] = ()
    """Collectives whose members do not agree."""


@dataclass(slots=True)
class Graph:
    """The wait-for graph as far as it has been explored. `explore` is its only mutator."""

    waits: Waits
    rules: Rules
    edges: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    endings: dict[Node, Ending] = field(default_factory=dict)
    """Of every node without edges."""
    _held_up: dict[Wait, bool] = field(default_factory=dict)
    """Whether a wait is for a rank that provably has not joined."""
    _gone: frozenset[int] = field(init=False)
    _finished_at: dict[int, int] = field(init=False)
    """Of ranks that finished cleanly."""

    def __post_init__(self) -> None:
        snapshot = self.snapshot
        ranks = list(zip(snapshot.rank.tolist(), snapshot.state, strict=True))
        self._gone = frozenset(rank for rank, state in ranks if state in GONE_STATES)
        since = snapshot.state_since.tolist()
        self._finished_at = {
            rank: at
            for (rank, state), at in zip(ranks, since, strict=True)
            if state is RankState.FINISHED
        }

    @property
    def snapshot(self) -> Snapshot:
        return self.waits.snapshot

    def explore(self, starts: Iterable[Node]) -> None:
        """Add `starts` and all that they lead to."""
        todo = list(starts)
        while todo:
            node = todo.pop()
            if node in self.edges:
                continue
            targets, ending = self._expand(node)
            self.edges[node] = targets
            if ending is not None:
                self.endings[node] = ending
            todo.extend(targets)

    def _expand(self, node: Node) -> tuple[tuple[Node, ...], Ending | None]:
        match node:
            case Doubt():
                return (), Ending.DOUBT
            case Member(rank):
                return self._expand_member(rank)
            case Wait(instance) if instance.is_p2p:
                targets, ending = self._expand_channel(node)
            case Wait():
                targets, ending = self._expand_collective(node)
        return self._outlasting(node, targets), ending

    def _expand_member(self, rank: int) -> tuple[tuple[Node, ...], Ending | None]:
        head = self.waits.head(rank)
        if self.is_gone(rank):
            if head is not None and self._hung_with(rank, head):
                return (wait_of(rank, head),), None
            return (), Ending.GONE
        if head is None:
            return (), Ending.MOVING if self._moved_lately(rank) else Ending.IDLE
        if head.since > 0 and self._is_fresh(rank, head.instance.group, head.since):
            return (), Ending.MOVING
        return (wait_of(rank, head),), None

    def _expand_channel(self, wait: Wait) -> tuple[tuple[Node, ...], Ending | None]:
        if absent := self._absent_from(wait):
            return tuple(absent), None
        peer = wait.instance.peer_of(wait.rank)
        head = self.waits.head(peer)
        if self.is_gone(peer) or (head is not None and head.instance != wait.instance):
            return (self._opposite(wait, self.present(peer)),), None
        return (), Ending.NO_RANK

    def _expand_collective(self, wait: Wait) -> tuple[tuple[Node, ...], Ending | None]:
        if wait.instance in self.rules.mismatched:
            return (), Ending.MISMATCH
        those = self.waits.attendance(wait.instance)
        unstarted = those.inside[those.timed & ~those.started]
        targets = self._absent_from(wait)
        if not any(isinstance(target, Member) for target in targets):
            silent = self._silent_inside(those)
            if silent and not self._hung_before(wait, those, silent):
                return (*targets, *silent), None
            if self._is_left(wait.instance, those):
                if self.stuck_inside(those, those.done_at):
                    return (), Ending.ALONE
                return tuple(self._left(those.inside, those.done_at)), None
            if targets and not wait.started and self.stuck_devices(those):
                return (), Ending.DEVICE  # a device starts what is next for it without its peers
        if len(those.behind):
            first = self.onset(wait)
            targets += [self.absentee(int(m), first) for m in those.behind]
        if wait.started:
            targets += self._all_present(unstarted)
        if not targets:
            targets = self._all_present(those.inside[~those.heads])
        if targets:
            return tuple(targets), None
        return self._expand_joined(unstarted, those)

    def _expand_joined(
        self, unstarted: Int32s, those: Attendance
    ) -> tuple[tuple[Node, ...], Ending | None]:
        """All members have joined, and wait in nothing else."""
        if not those.any_started or not len(unstarted):
            return (), Ending.NO_RANK
        if self.stuck_devices(those):
            return (), Ending.DEVICE
        return tuple(Doubt(int(rank), Why.UNPROVEN) for rank in unstarted), None

    def _outlasting(self, wait: Wait, targets: tuple[Node, ...]) -> tuple[Node, ...]:
        """A rank that finished cleanly delays only ranks that waited for a stall threshold after
        it: when a job ends, its ranks exit one by one, and the last are still seen waiting."""
        if not any(target.rank in self._finished_at for target in targets):
            return targets
        instance = wait.instance
        inside = [wait.rank] if instance.is_p2p else self.waits.attendance(instance).inside
        as_of = self.snapshot.as_of[np.isin(self.snapshot.rank, inside)].max(initial=0)
        latest = as_of - self.rules.threshold_s(instance.group) * 1e9
        return tuple(
            Doubt(target.rank, Why.UNPROVEN)
            if self._finished_at.get(target.rank, latest) > latest
            else target
            for target in targets
        )

    def _hung_before(self, wait: Wait, those: Attendance, silent: Sequence[Member | Doubt]) -> bool:
        """True if the op was already overdue when these ranks exited and another live rank delays
        it: one whose device did not start it, or that is still in an older op. The exit is then a
        consequence of the hang, such as a watchdog's abort."""
        ripe_at, started = self._ripe_at(wait), set(those.inside[those.started].tolist())
        if those.last_since <= 0 or any(
            isinstance(n, Doubt) or self._gone_at(n.rank) <= ripe_at for n in silent
        ):
            return False
        if any(not self.is_gone(rank) for rank in those.inside[~those.heads].tolist()):
            return True
        return started.issuperset(n.rank for n in silent) and bool(self.stuck_devices(those))

    def _hung_with(self, rank: int, head: Op) -> bool:
        """True if the rank exited after it had waited long for ranks that have still not joined,
        and did nothing else: these ranks are the cause of the waits for it."""
        gone_at, moved_at = self._gone_at(rank), self.moved_at(rank)
        if moved_at >= gone_at:  # reported afterwards: the time of its last progress is unknown
            moved_at = 0
        since = max(head.since, moved_at)
        ripe_at = since + round(self.rules.threshold_s(head.instance.group) * 1e9)
        if head.since <= 0 or gone_at <= ripe_at or (head.instance.is_p2p and not moved_at):
            return False
        wait = wait_of(rank, head)
        if wait not in self._held_up:
            absent = self._absent_from(wait)
            self._held_up[wait] = any(isinstance(absentee, Member) for absentee in absent)
        return self._held_up[wait]

    def _silent_inside(self, those: Attendance) -> list[Member | Doubt]:
        """Members inside that are provably gone; else those that do not report while others do."""
        gone = [rank for rank in those.inside.tolist() if self.is_gone(rank)]
        if gone:
            return [Member(rank) for rank in gone]
        doubts = [n for n in self._all_present(those.inside) if isinstance(n, Doubt)]
        return [*doubts] if len(doubts) < len(those.inside) else []

    def _is_left(self, collective: Instance, those: Attendance) -> bool:
        """Its members inside were left behind: a member completed an op that only all members can
        complete together; or, for other ops, all members but one did."""
        if not len(those.done) or not np.any(those.heads):
            return False
        op = self.snapshot.groups[collective.group].ops(collective.seq)
        return is_synchronizing(op) or len(those.inside) == 1

    def stuck_inside(self, those: Attendance, since: AlignedNs) -> tuple[int, ...]:
        """Members inside a collective that wait in nothing older and are known to be there still,
        well after others had come further: see `_left`."""
        left = self._left(those.inside[those.heads], since)
        return tuple(n.rank for n in left if isinstance(n, Member) and not self.is_gone(n.rank))

    def stuck_devices(self, those: Attendance) -> tuple[int, ...]:
        """Members whose device has not started the op although it is next and other devices have.
        Not a member that left another op a moment ago: its device had no time to start it."""
        if not those.any_started:
            return ()
        unstarted = set(those.inside[those.timed & ~those.started].tolist())
        stuck = self.stuck_inside(those, those.started_at)
        return tuple(r for r in stuck if r in unstarted and not self._moved_lately(r))

    def _left(self, ranks: Int32s, since: AlignedNs) -> list[Node]:
        """Ranks that are known not to be as far as others were by `since`. A rank whose telemetry
        is hardly newer than `since` may be there by now: it becomes a doubt."""
        return [
            Doubt(node.rank, Why.UNPROVEN)
            if isinstance(node, Member) and not self._is_known_until(node.rank, since + _NOTICED_NS)
            else node
            for node in self._all_present(ranks)
        ]

    def younger_waits(self, rank: int) -> list[Wait]:
        """Other ops of the rank in flight that a member has not joined, or may not have."""
        waits = [wait_of(rank, op) for op in self.waits.ops(rank)[1:]]
        return [wait for wait in waits if self._absent_from(wait)]

    def _absent_from(self, wait: Wait) -> list[Node]:
        if not wait.instance.is_p2p:
            those = self.waits.attendance(wait.instance)
            first = self.onset(wait)
            hidden = set(those.hidden.tolist())
            return [
                Doubt(m, Why.GAP)
                if m in hidden and not self.is_gone(m) and self.why_unknown(m) is None
                else self.absentee(m, first)
                for m in those.absent.tolist()
            ]
        if wait.instance.peer_of(wait.rank) < 0 or self.waits.is_paired(wait.instance, wait.rank):
            return []
        peer = self.absentee(wait.instance.peer_of(wait.rank), self.onset(wait))
        return [self._opposite(wait, peer)]

    def _opposite(self, wait: Wait, peer: Node) -> Node:
        """The other end of a channel, for which `wait` waits. P2P ops have no seq:
        if the peer has moved since the last report of the waiting rank, it may have posted its
        op, and both may be further by now."""
        if isinstance(peer, Member) and not self._is_known_until(
            wait.rank, self.moved_at(peer.rank)
        ):
            return Doubt(peer.rank, Why.UNPROVEN)
        return peer

    # -- what is known of one rank -----------------------------------------------------------

    def absentee(self, rank: int, since: UncertainTime) -> Node:
        """A rank that has not joined an op in which others wait since `since`."""
        if not self.is_gone(rank) and self.why_unknown(rank) is None:
            row = self.waits.row(rank)
            if self.snapshot.gap[row]:
                return Doubt(rank, Why.GAP)
            as_of = self.snapshot.moment(rank, AlignedNs(int(self.snapshot.as_of[row])))
            # An unbounded clock is used as it is: a stall lasts longer than the clock is off.
            if as_of.at < since.at + (as_of.margin_ns(since) or 0):
                return Doubt(rank, Why.UNPROVEN)
        return self.present(rank)

    def present(self, rank: int) -> Node:
        """A rank for which others wait."""
        why = None if self.is_gone(rank) else self.why_unknown(rank)
        return Member(rank) if why is None else Doubt(rank, why)

    def _all_present(self, ranks: Iterable[int] | Int32s) -> list[Node]:
        return [self.present(int(rank)) for rank in ranks]

    def since(self, wait: Wait) -> AlignedNs:
        """When the first waiting rank began to wait."""
        return self.onset(wait).at

    def onset(self, wait: Wait) -> UncertainTime:
        """The same, with the uncertainty of the clock that measured it."""
        if wait.instance.is_p2p:
            ops = self.waits.ops(wait.rank)
            at = next(op.since for op in ops if op.instance == wait.instance)
            return self.snapshot.moment(wait.rank, at)
        those = self.waits.attendance(wait.instance)
        return self.snapshot.moment(those.first, those.first_since)

    def is_ripe(self, wait: Wait) -> bool:
        """True if the last rank joined so long ago that the op should have completed.

        Before that, an op that a rank joined late is about to complete.
        """
        return self._ripe_at(wait) <= self.snapshot.now

    def _ripe_at(self, wait: Wait) -> int:
        if wait.instance.is_p2p:
            ends = (wait.instance.src, wait.instance.dst)
            sinces = [
                op.since for r in ends for op in self.waits.ops(r) if op.instance == wait.instance
            ]
            last = max(sinces)
        else:
            last = self.waits.attendance(wait.instance).last_since
        return last + round(self.rules.threshold_s(wait.instance.group) * 1e9)

    def agents_of(self, ranks: Iterable[int] | Int32s) -> set[int]:
        """Numbers of the agents that report these ranks; one if agents are not distinguished."""
        clocks = self.snapshot.clocks
        return {int(clocks.node[self.waits.row(int(r))]) if clocks else -1 for r in ranks}

    def is_gone(self, rank: int) -> bool:
        return rank in self._gone

    def _gone_at(self, rank: int) -> int:
        """0 if unknown."""
        return int(self.snapshot.state_since[self.waits.row(rank)])

    def why_unknown(self, rank: int) -> Why | None:
        """Why the telemetry of a rank proves nothing now; None if it does."""
        row = self.waits.row(rank)
        if row < 0 or self.snapshot.as_of[row] <= 0:
            return Why.NEVER_SEEN
        if not self.snapshot.connected[row]:
            return Why.DISCONNECTED
        if self.snapshot.now - int(self.snapshot.as_of[row]) > self.rules.late_s * 1e9:
            return Why.LATE
        return None

    def _is_known_until(self, rank: int, until: int) -> bool:
        """Everything is known of the rank up to then, even if its clock is off."""
        as_of = self.snapshot.moment(
            rank, AlignedNs(int(self.snapshot.as_of[self.waits.row(rank)]))
        )
        return self.is_gone(rank) or as_of.at - (as_of.uncertainty_ns or 0) >= until

    def _is_fresh(self, rank: int, group: int, since: int) -> bool:
        age_ns = int(self.snapshot.as_of[self.waits.row(rank)]) - since
        return age_ns < max(0.5, self.rules.threshold_s(group) / 4) * 1e9

    def moved_at(self, rank: int) -> int:
        """When a watermark of the rank last advanced; 0 if never, or unknown."""
        moved_at = self.snapshot.moved_at
        return 0 if moved_at is None else int(moved_at[self.waits.row(rank)])

    def _moved_lately(self, rank: int) -> bool:
        """By its own telemetry, which shows nothing of the time since."""
        moved_at = self.moved_at(rank)
        as_of = int(self.snapshot.as_of[self.waits.row(rank)])
        return moved_at > 0 and as_of - moved_at < _MOVED_LATELY_S * 1e9


def wait_of(rank: int, op: Op) -> Wait:
    """The node in which a rank waits for an op that it has in flight."""
    if op.instance.is_p2p:
        return Wait(op.instance, rank=rank)
    return Wait(op.instance, started=op.started)
