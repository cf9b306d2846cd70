"""Which rank waits for which: the wait-for graph and the rules that give it edges.

A stuck rank waits in its *head*, its oldest op in flight. All ranks with the same head share one
`Wait` node. The node has edges to the `Member`s that it waits for, and each member has an edge to
the op in which it waits itself. The last node of a chain gets an `Ending`, which says what can be
claimed about it.

`rank_evidence` decides whether the telemetry of a rank proves its absence. Without proof the edge
leads to an `UnknownRank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from frd.engine.clocks.uncertain_time import UncertainTime
from frd.engine.hangs.ops_in_flight import Attendance, Instance, Op, Waits
from frd.engine.hangs.rank_evidence import RankEvidence
from frd.engine.hangs.wait_nodes import (
    Ending,
    Member,
    Node,
    TelemetryFault,
    UnknownRank,
    Wait,
    wait_of,
)
from frd.engine.matching.signature_rules import is_synchronizing
from frd.engine.state.snapshot import Mismatch, Snapshot
from frd.model import AlignedNs, Int32s

_NOTICED_NS = 1_000_000_000
"""How late recorders may notice that a collective completed."""


@dataclass(slots=True)
class Graph:
    """The wait-for graph as far as it has been explored. `explore` is its only mutator."""

    waits: Waits
    ranks: RankEvidence
    mismatches: Mapping[Instance, Mismatch]
    """Collectives whose members do not agree."""
    edges: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    endings: dict[Node, Ending] = field(default_factory=dict)
    """What each node without edges is."""
    _held_up: dict[Wait, bool] = field(default_factory=dict)
    """Whether the rank that a wait is for has provably not joined."""

    @property
    def snapshot(self) -> Snapshot:
        return self.waits.snapshot

    def threshold_ns(self, instance: Instance) -> int:
        """How long a wait in an op may take before it is a stall."""
        return int(self.snapshot.threshold_ns[instance.group])

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
            case UnknownRank():
                return (), Ending.UNKNOWN
            case Member(rank):
                return self._expand_member(rank)
            case Wait(instance) if instance.is_p2p:
                targets, ending = self._expand_channel(node)
            case Wait():
                targets, ending = self._expand_collective(node)
        return self._outlasting(node, targets), ending

    def _expand_member(self, rank: int) -> tuple[tuple[Node, ...], Ending | None]:
        head = self.waits.head(rank)
        if self.ranks.is_gone(rank):
            if head is not None and self._hung_with(rank, head):
                return (wait_of(rank, head),), None
            return (), Ending.GONE
        if head is None:
            return (), Ending.MOVING if self.ranks.moved_lately(rank) else Ending.IDLE
        if head.since > 0 and self.ranks.is_fresh(rank, head.instance.group, head.since):
            return (), Ending.MOVING
        return (wait_of(rank, head),), None

    def _expand_channel(self, wait: Wait) -> tuple[tuple[Node, ...], Ending | None]:
        if absent := self._absent_from(wait):
            return tuple(absent), None
        peer = wait.instance.peer_of(wait.rank)
        head = self.waits.head(peer)
        if self.ranks.is_gone(peer) or (head is not None and head.instance != wait.instance):
            return (self._opposite(wait, self.ranks.present(peer)),), None
        return (), Ending.NO_RANK

    def _expand_collective(self, wait: Wait) -> tuple[tuple[Node, ...], Ending | None]:
        if wait.instance in self.mismatches:
            return (), Ending.MISMATCH
        attendance = self.waits.attendance(wait.instance)
        unstarted = attendance.inside[attendance.timed & ~attendance.started]
        targets: list[Member | UnknownRank] = self._absent_from(wait)
        if not any(isinstance(target, Member) for target in targets):
            silent = self._silent_inside(attendance)
            if silent and not self._hung_before(wait, attendance, silent):
                return (*targets, *silent), None
            if self._is_left(wait.instance, attendance):
                if self.stuck_inside(attendance, attendance.done_at):
                    return (), Ending.ALONE
                return tuple(self._left(attendance.inside, attendance.done_at)), None
            if targets and not wait.started and self.stuck_devices(attendance):
                return (), Ending.DEVICE  # a device starts what is next for it without its peers
        if len(attendance.behind):
            first = self.onset(wait)
            targets += [self.ranks.absentee(int(m), first) for m in attendance.behind]
        if wait.started:
            targets += self.ranks.all_present(unstarted)
        if not targets:
            targets = self.ranks.all_present(attendance.inside[~attendance.heads])
        if targets:
            return tuple(targets), None
        return self._expand_joined(unstarted, attendance)

    def _expand_joined(
        self, unstarted: Int32s, attendance: Attendance
    ) -> tuple[tuple[Node, ...], Ending | None]:
        """All members have joined, and wait in nothing else."""
        if not attendance.any_started or not len(unstarted):
            return (), Ending.NO_RANK
        if self.stuck_devices(attendance):
            return (), Ending.DEVICE
        return tuple(UnknownRank(int(rank), TelemetryFault.UNPROVEN) for rank in unstarted), None

    def _outlasting(self, wait: Wait, targets: tuple[Node, ...]) -> tuple[Node, ...]:
        """A rank that finished cleanly delays only ranks that waited for a stall threshold after
        it: when a job ends, its ranks exit one by one, and the last are still seen waiting."""
        if not any(target.rank in self.ranks.finished_at for target in targets):
            return targets
        instance = wait.instance
        inside = [wait.rank] if instance.is_p2p else self.waits.attendance(instance).inside
        as_of = self.snapshot.as_of[np.isin(self.snapshot.rank, inside)].max(initial=0)
        latest = as_of - self.threshold_ns(instance)
        return tuple(
            UnknownRank(target.rank, TelemetryFault.UNPROVEN)
            if self.ranks.finished_at.get(target.rank, latest) > latest
            else target
            for target in targets
        )

    def _hung_before(
        self, wait: Wait, attendance: Attendance, silent: Sequence[Member | UnknownRank]
    ) -> bool:
        """True if the op was already overdue when these ranks exited and another live rank delays
        it: one whose device did not start it, or that is still in an older op. The exit is then a
        consequence of the hang, such as a watchdog's abort."""
        ripe_at, started = self._ripe_at(wait), set(attendance.inside[attendance.started].tolist())
        if attendance.last_since <= 0 or any(
            isinstance(n, UnknownRank) or self.ranks.gone_at(n.rank) <= ripe_at for n in silent
        ):
            return False
        in_older_op = attendance.inside[~attendance.heads]
        if not all(self.ranks.is_gone(rank) for rank in in_older_op.tolist()):
            return True
        return started.issuperset(n.rank for n in silent) and bool(self.stuck_devices(attendance))

    def _hung_with(self, rank: int, head: Op) -> bool:
        """True if the rank exited after it had waited long for ranks that have still not joined,
        and did nothing else: these ranks are the cause of the waits for it."""
        gone_at, moved_at = self.ranks.gone_at(rank), self.ranks.moved_at(rank)
        if moved_at >= gone_at:  # reported afterwards: the time of its last progress is unknown
            moved_at = 0
        since = max(head.since, moved_at)
        ripe_at = since + self.threshold_ns(head.instance)
        if head.since <= 0 or gone_at <= ripe_at or (head.instance.is_p2p and not moved_at):
            return False
        wait = wait_of(rank, head)
        if wait not in self._held_up:
            absent = self._absent_from(wait)
            self._held_up[wait] = any(isinstance(absentee, Member) for absentee in absent)
        return self._held_up[wait]

    def _silent_inside(self, attendance: Attendance) -> list[Member | UnknownRank]:
        """Members inside that are provably gone; else those that do not report while others do."""
        gone = [rank for rank in attendance.inside.tolist() if self.ranks.is_gone(rank)]
        if gone:
            return [Member(rank) for rank in gone]
        nodes = self.ranks.all_present(attendance.inside)
        unknown: list[Member | UnknownRank] = [n for n in nodes if isinstance(n, UnknownRank)]
        return unknown if len(unknown) < len(nodes) else []

    def _is_left(self, collective: Instance, attendance: Attendance) -> bool:
        """Its members inside were left behind: a member completed an op that only all members can
        complete together; or, for other ops, all members but one did."""
        if not len(attendance.done) or not np.any(attendance.heads):
            return False
        op = self.snapshot.op(*collective[:2])
        return is_synchronizing(op) or len(attendance.inside) == 1

    def stuck_inside(self, attendance: Attendance, since: AlignedNs) -> tuple[int, ...]:
        """Members inside a collective that wait in nothing older and are known to be there still,
        well after others had come further: see `_left`."""
        left = self._left(attendance.inside[attendance.heads], since)
        return tuple(
            n.rank for n in left if isinstance(n, Member) and not self.ranks.is_gone(n.rank)
        )

    def stuck_devices(self, attendance: Attendance) -> tuple[int, ...]:
        """Members whose device has not started the op although it is next and other devices have.
        Not a member that left another op a moment ago: its device had no time to start it."""
        if not attendance.any_started:
            return ()
        unstarted = set(attendance.inside[attendance.timed & ~attendance.started].tolist())
        stuck = self.stuck_inside(attendance, attendance.started_at)
        return tuple(r for r in stuck if r in unstarted and not self.ranks.moved_lately(r))

    def _left(self, ranks: Int32s, since: AlignedNs) -> list[Member | UnknownRank]:
        """Ranks that are known not to be as far as others were by `since`. A rank whose telemetry
        is hardly newer than `since` may be there by now: it becomes an `UnknownRank`."""
        return [
            UnknownRank(node.rank, TelemetryFault.UNPROVEN)
            if isinstance(node, Member)
            and not self.ranks.is_known_until(node.rank, since + _NOTICED_NS)
            else node
            for node in self.ranks.all_present(ranks)
        ]

    def younger_waits(self, rank: int) -> list[Wait]:
        """Other ops of the rank in flight that a member has not joined, or may not have."""
        waits = [wait_of(rank, op) for op in self.waits.ops(rank)[1:]]
        return [wait for wait in waits if self._absent_from(wait)]

    def _absent_from(self, wait: Wait) -> list[Member | UnknownRank]:
        """Members that have not joined the op of a wait, or may not have."""
        if not wait.instance.is_p2p:
            attendance = self.waits.attendance(wait.instance)
            first = self.onset(wait)
            hidden = set(attendance.hidden.tolist())
            return [
                UnknownRank(m, TelemetryFault.GAP)
                if m in hidden
                and not self.ranks.is_gone(m)
                and self.ranks.telemetry_fault(m) is None
                else self.ranks.absentee(m, first)
                for m in attendance.absent.tolist()
            ]
        if wait.instance.peer_of(wait.rank) < 0 or self.waits.is_paired(wait.instance, wait.rank):
            return []
        peer = self.ranks.absentee(wait.instance.peer_of(wait.rank), self.onset(wait))
        return [self._opposite(wait, peer)]

    def _opposite(self, wait: Wait, peer: Member | UnknownRank) -> Member | UnknownRank:
        """The other end of a channel, for which `wait` waits. P2P ops have no seq:
        if the peer has moved since the last report of the waiting rank, it may have posted its
        op, and both may be further by now."""
        if isinstance(peer, Member) and not self.ranks.is_known_until(
            wait.rank, self.ranks.moved_at(peer.rank)
        ):
            return UnknownRank(peer.rank, TelemetryFault.UNPROVEN)
        return peer

    def since(self, wait: Wait) -> AlignedNs:
        """When the first waiting rank began to wait."""
        return self.onset(wait).at

    def onset(self, wait: Wait) -> UncertainTime:
        """The same, with the uncertainty of the clock that measured it."""
        if wait.instance.is_p2p:
            ops = self.waits.ops(wait.rank)
            at = next(op.since for op in ops if op.instance == wait.instance)
            return self.snapshot.moment(wait.rank, at)
        attendance = self.waits.attendance(wait.instance)
        return self.snapshot.moment(attendance.first, attendance.first_since)

    def is_ripe(self, wait: Wait) -> bool:
        """True if the last rank joined so long ago that the op should have completed.

        Before that, an op that a rank joined late is about to complete.
        """
        return self._ripe_at(wait) <= self.snapshot.now

    def _ripe_at(self, wait: Wait) -> int:
        if wait.instance.is_p2p:
            ends = (wait.instance.src, wait.instance.dst)
            last = max(
                op.since for r in ends for op in self.waits.ops(r) if op.instance == wait.instance
            )
        else:
            last = self.waits.attendance(wait.instance).last_since
        return last + self.threshold_ns(wait.instance)
