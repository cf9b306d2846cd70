"""Which rank waits for which: the wait-for graph and the rules that give it edges.

A stuck rank waits in its *head*, its oldest op in flight; if that is of a batch of sends and
receives, in each op of the batch that is held up. All ranks with the same head share one `Wait`
node. The node has edges to the ranks that hold the op up, and each of them has an edge to
the op in which it waits itself. An edge to a `Member` is certain: the member's own telemetry
refutes that it joined (`RankFacts`), or proves that it is stuck. An edge to an `UnknownRank` is
only possible, and leads no further. A member in no op may wait in something that no recorder shows
(`unrecorded`): then it has edges to the ranks for which it waits; if they are not known, to those
that it can mean. The last node of a chain gets an `Ending`, which says what can be claimed about
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from frd.engine.clocks.alignment import FOREVER, UncertainTime
from frd.engine.hangs.facts import NOTICED_NS, Fact, RankFacts, UnequalPair
from frd.engine.hangs.ops_in_flight import Attendance, Instance, Op, Waits
from frd.engine.hangs.unrecorded import Calls, Way, been_through, holders, way_of
from frd.engine.matching.signature_rules import is_synchronizing
from frd.engine.state.snapshot import Mismatch, Snapshot
from frd.model import Int32s, Int64s, UnrecordedWait


class Ending(Enum):
    """What the last node of a chain of waits is."""

    MISMATCH = "members whose signatures disagree"
    UNEQUAL = "two ends of a P2P channel whose sizes or dtypes disagree"
    ALONE = "members still inside an op that a peer has completed"
    DEVICE = "members whose device never started what their peers' devices started"
    GONE = "a rank with positive evidence that its process exited or stopped"
    IDLE = "a rank that is alive and in no collective"
    ORDER = "ranks that wait for each other in a circle"
    MOVING = "a rank that makes progress elsewhere"
    WAITING = "a rank that waits unrecorded, for peers that are not known"
    UNKNOWN = "a rank of which nothing fresh is known"
    NO_RANK = "an op that all members have joined and none completes"


class Wait(NamedTuple):
    """All ranks whose oldest op in flight (their *head*) is this one.

    Ranks whose device has started a collective, and ranks whose device has not, are two nodes. So
    are the two ends of a P2P channel.
    """

    instance: Instance
    started: bool = False
    rank: int = -1


class Member(NamedTuple):
    """A member that provably holds other ranks up."""

    rank: int


class UnknownRank(NamedTuple):
    """A rank that may hold other ranks up; its telemetry does not show what it does."""

    rank: int
    fact: Fact


Node: TypeAlias = Wait | Member | UnknownRank
"""Tuples, because a big job has tens of thousands of them. Each class has its own number of fields,
so that nodes of different classes are never equal."""
Target: TypeAlias = Member | UnknownRank
Expansion: TypeAlias = tuple[tuple[Node, ...], Ending | None]


def wait_of(rank: int, op: Op) -> Wait:
    """The node in which a rank waits for an op that it has in flight."""
    return Wait(op.instance, op.started, rank if op.instance.is_p2p else -1)


@dataclass
class Graph:
    """The wait-for graph as far as it has been explored. `explore` is its only mutator."""

    waits: Waits
    facts: RankFacts
    mismatches: Mapping[Instance, Mismatch]
    """Collectives whose members do not agree."""
    pairs: Mapping[Instance, UnequalPair] = field(default_factory=dict)
    """P2P channels whose two ends do not agree."""
    calls: Calls | None = None
    """Of a job of which no living rank is in a recorded op."""
    edges: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    endings: dict[Node, Ending] = field(default_factory=dict)
    """What each node without edges is."""
    _came: dict[Wait, tuple[list[int], int]] = field(default_factory=dict)
    _waits_of: dict[int, tuple[Wait, ...]] = field(default_factory=dict)
    _late: dict[tuple[str, bool], Sequence[int]] = field(default_factory=dict)

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
            self.edges[node], ending = self._expand(node)
            if ending is not None:
                self.endings[node] = ending
            todo.extend(self.edges[node])

    def _expand(self, node: Node) -> Expansion:
        match node:
            case UnknownRank():
                return (), Ending.UNKNOWN
            case Member(rank):
                return self._expand_member(rank)
            case Wait(instance) if instance.is_p2p:
                return self._expand_channel(node)
            case Wait():
                return self._expand_collective(node)

    def _expand_member(self, rank: int) -> Expansion:
        facts, head = self.facts, self.waits.head(rank)
        is_silent_in_call = self.calls is not None and rank in facts.unrecorded
        if facts.is_gone(rank) and not is_silent_in_call:
            return (), Ending.GONE
        if head is None and rank in facts.unrecorded:
            return self._expand_unrecorded(facts.unrecorded[rank])
        if head is None:
            return (), Ending.IDLE if self._rests(rank) else Ending.MOVING
        if head.since > 0 and not facts.is_at_rest(rank, head.since, head.instance.group):
            return (), Ending.MOVING
        return self.waits_of(rank), None

    def waits_of(self, rank: int) -> tuple[Wait, ...]:
        """What the rank waits in: its oldest op; of a batch each op that its peer holds up, if
        there is any, because the ops of a batch are one call."""
        if rank not in self._waits_of:
            head = self.waits.head(rank)
            is_p2p = head is not None and head.instance.is_p2p
            held = self._held(rank) if is_p2p else []
            first = () if head is None else (wait_of(rank, head),)
            self._waits_of[rank] = tuple(Wait(at, rank=rank) for at in held) or first
        return self._waits_of[rank]

    def _held(self, rank: int) -> list[Instance]:
        """The ops of the batch of a rank that their peers hold up."""
        call = self.waits.call(rank)
        alone = [at for at, op in call.items() if not op.is_matched]
        sends = {at for at in alone if at.src == rank}
        held = [at for at in call if at in sends or self._is_unequal(at)]
        held = held or alone  # the send of a receive may have completed early
        return held or [
            at
            for at, op in call.items()
            if not op.is_served and self._is_elsewhere(at.peer_of(rank), at)
        ]

    def _is_unequal(self, channel: Instance) -> bool:
        """The two ends do not agree, and both were in their ops at one moment."""
        if (pair := self.pairs.get(channel)) is None:
            return False
        sender, receiver = (
            self.facts.interval(rank, self.onset(Wait(end, rank=rank)).at)
            for rank, end in pair.ends
        )
        return sender.meets(receiver)

    def _is_elsewhere(self, peer: int, channel: Instance) -> bool:
        """The peer is gone, or waits in another call than that in which it uses the channel."""
        call = self.waits.call(peer)
        is_there = channel in call or channel._replace(src=-1) in call
        return self.facts.is_gone(peer) or (len(call) > 0 and not is_there)

    def _expand_unrecorded(self, wait: UnrecordedWait) -> Expansion:
        ranks, latest = np.asarray(self._awaited(wait), np.int32), FOREVER
        if self.calls is None:
            latest = wait.as_of_ns - self.facts.least_ns
        targets = self._targets(ranks, self.facts.presence(ranks), latest)
        if targets:
            return tuple(targets), None
        is_whole = self.calls is not None and way_of(wait.op) in (Way.MUTUAL, Way.JOINT)
        return (), Ending.NO_RANK if is_whole else Ending.WAITING

    def _awaited(self, wait: UnrecordedWait) -> Sequence[int]:
        """The ranks for which an unrecorded wait is. Each chain of waits has to end: if its peers
        are not known, it is for the only rank of the job that waits for nothing. Where no rank is
        in an op, it may be for each of several. If all ranks wait, they wait for each other, unless
        all are in one call: an edge to the next one is enough for a circle."""
        counted, way, calls = self.facts.unrecorded, way_of(wait.op), self.calls
        if way is Way.JOINT:
            return self._late_for(wait)
        if wait.peers:
            return holders(wait, counted)
        free = self.free
        if calls is None:
            is_meant = len(free) == 1 and (way is not Way.DOUBTFUL or self._rests(free[0]))
            return free if is_meant else ()
        if free or (way is Way.MUTUAL and calls.is_one_call):
            return free
        return calls.after(wait.rank)

    def _late_for(self, wait: UnrecordedWait) -> Sequence[int]:
        """The ranks that have to come to a call: the same for all that are in it, but that members
        of groups make their default group again."""
        key, counted = (wait.op, wait.rank in self._members), self.facts.unrecorded
        if key not in self._late:
            left = self._world - been_through(wait, self._members)
            self._late[key] = sorted(
                rank for rank in left if rank not in counted or counted[rank].op != wait.op
            )
        return self._late[key]

    @cached_property
    def _members(self) -> frozenset[int]:
        """The ranks that are in a group."""
        return frozenset(self.snapshot.pairs.rank.tolist())

    def _rests(self, rank: int) -> bool:
        """A rank in no op, which has done nothing for a while, or is gone."""
        facts = self.facts
        is_known = self.snapshot.row(rank) >= 0
        return is_known and facts.is_at_rest(rank, facts.moved_at(rank))

    def is_last(self, rank: int) -> bool:
        """All other ranks of the job are in ops, or wait for ranks that are known."""
        waits = self.facts.unrecorded.items()
        return not {*self.free, *(one for one, wait in waits if not wait.peers)} - {rank}

    @cached_property
    def _world(self) -> set[int]:
        """The ranks of the job, seen or not."""
        return {*range(self.snapshot.world_size), *self.snapshot.rank.tolist()}

    @cached_property
    def free(self) -> Sequence[int]:
        """The ranks of the job that are neither in an op nor in another wait."""
        if self.calls is not None:
            return self.calls.free
        return sorted(self._world.difference(self.waits.waiting.tolist(), self.facts.unrecorded))

    def _expand_channel(self, wait: Wait) -> Expansion:
        if self._is_unequal(wait.instance):
            return (), Ending.UNEQUAL
        if absent := self._absent(wait):
            return tuple(absent), None
        # All ops of the call are matched: it waits for the calls at their other ends.
        call = self.waits.call(wait.rank)
        ends = {at.peer_of(wait.rank) for at, op in call.items() if not op.is_served}
        calls = {other for end in ends for other in self.waits_of(end)} - {wait}
        return tuple(sorted(calls)), None if calls else Ending.NO_RANK

    def _expand_collective(self, wait: Wait) -> Expansion:
        if wait.instance in self.mismatches:
            return (), Ending.MISMATCH
        attendance = self.waits.attendance(wait.instance)
        targets = self._absent(wait)
        if not any(isinstance(target, Member) for target in targets):
            silent = self._silent(wait, attendance)
            is_device = bool(self.stuck_devices(attendance))
            if silent and (not is_device or isinstance(silent[0], Member)):
                return (*targets, *silent), None
            if self._is_left(wait.instance, attendance):
                if self.stuck_inside(attendance, attendance.done_at):
                    return (), Ending.ALONE
                inside = attendance.inside
                left = self._not_beyond(inside, attendance.done_at)
                return tuple(self._nodes(wait, inside, left)), None
            if is_device and not wait.started and (targets or silent):
                return (), Ending.DEVICE
        behind, unstarted = attendance.behind, attendance.unstarted
        targets += self._nodes(wait, behind, self.facts.absence(behind, attendance.first_since))
        if wait.started:
            targets += self._present(wait, unstarted)
        targets = targets or self._present(wait, attendance.inside[~attendance.heads])
        if targets:
            return tuple(targets), None
        # All members have joined, and wait in nothing else.
        suspects = unstarted.tolist() if attendance.any_started else []
        if suspects and self.stuck_devices(attendance):
            return (), Ending.DEVICE
        suspects = suspects or [*self.facts.exited_waiting.intersection(attendance.inside.tolist())]
        if not suspects:
            return (), Ending.NO_RANK
        return tuple(UnknownRank(rank, Fact.UNPROVEN) for rank in sorted(suspects)), None

    # -- who holds an op up --------------------------------------------------------------------

    def _absence(self, wait: Wait) -> tuple[Int32s, Int64s]:
        """The members that are not known to have joined the op of a wait, and for each whether that
        is so, at a moment when others waited in it."""
        if not wait.instance.is_p2p:
            attendance = self.waits.attendance(wait.instance)
            absent, doubtful = attendance.absent, attendance.doubtful
            return absent, self.facts.absence(absent, attendance.first_since, doubtful)
        peer, onset = wait.instance.peer_of(wait.rank), self.onset(wait)
        op = self.waits.op(wait.rank, wait.instance)
        is_matched = op.is_matched
        is_there = op.is_served or (is_matched and not self._is_elsewhere(peer, wait.instance))
        ranks = np.array([] if is_there else [peer], np.int32)
        facts = self.facts.presence(ranks)
        if not is_matched:
            facts = self.facts.absence(ranks, onset, self.facts.has_gap(ranks))
        if np.any(facts == Fact.REFUTED):
            # P2P ops have no seq: that the peer has no such op is known from its last move on. If
            # the last report of the waiting rank is older, the peer may have posted its op
            # meanwhile, and both may be further by now.
            idle = self.facts.interval(peer, self.facts.moved_at(peer))
            if not idle.meets(self.facts.interval(wait.rank, onset.at)):
                facts[:] = Fact.UNPROVEN
        return ranks, facts

    def _absent(self, wait: Wait) -> list[Target]:
        """Members that have not joined the op of a wait, or may not have."""
        return self._nodes(wait, *self._absence(wait))

    def _present(self, wait: Wait, ranks: Int32s) -> list[Target]:
        """Ranks that have joined an op, as far as their last reports count."""
        return self._nodes(wait, ranks, self.facts.presence(ranks))

    def _nodes(self, wait: Wait, ranks: Int32s, facts: Int64s) -> list[Target]:
        """Ranks that hold up an op: certainly where that is `REFUTED`, possibly otherwise."""
        latest = 0
        if np.any(np.isin(ranks, [*self.facts.finished_at])):
            latest = self._waited_until(wait) - self.facts.threshold_ns(wait.instance.group)
        return self._targets(ranks, facts, latest)

    def _targets(self, ranks: Int32s, facts: Int64s, latest: int) -> list[Target]:
        """The same. A rank that finished cleanly, but later than `latest`, is not certain: it holds
        up only ranks that waited for a stall threshold after it, because when a job ends, its ranks
        exit one by one, and the last are still seen waiting.
        """
        finished_at = self.facts.finished_at
        if len(finished := ranks[np.isin(ranks, [*finished_at])]):
            late = [rank for rank in finished.tolist() if finished_at[rank] > latest]
            facts = np.where(np.isin(ranks, late), Fact.UNPROVEN, facts)
        return [
            Member(rank) if fact == Fact.REFUTED else UnknownRank(rank, Fact(fact))
            for rank, fact in zip(ranks.tolist(), facts.tolist(), strict=True)
        ]

    def _waited_until(self, wait: Wait) -> int:
        """The newest report of a rank that waits in the op."""
        instance = wait.instance
        inside = [wait.rank] if instance.is_p2p else self.waits.attendance(instance).inside
        return int(self.snapshot.as_of[np.isin(self.snapshot.rank, inside)].max(initial=0))

    def _silent(self, wait: Wait, attendance: Attendance) -> list[Target]:
        """Members inside that left before the op was overdue; else those that do not report while
        others do. A rank that waited in this very op for long is no cause of it."""
        inside = attendance.inside
        ripe_at = self._ripe_at(wait) if attendance.last_since > 0 else FOREVER
        left = inside[np.isin(inside, [*self.facts.left])].tolist()
        waiting = inside[attendance.heads].tolist()
        gone = [
            rank
            for rank in left
            if self.facts.is_gone(rank)
            or (self.facts.gone_at(rank) <= ripe_at and rank not in waiting)
        ]
        if gone:
            return self._present(wait, np.asarray(gone, np.int32))
        unknown = inside[self.facts.presence(inside) != Fact.REFUTED]
        return self._present(wait, unknown) if len(unknown) < len(inside) else []

    def _is_left(self, collective: Instance, attendance: Attendance) -> bool:
        """Its members inside were left behind: a member completed an op that only all members can
        complete together; or, for other ops, all members but one did."""
        if not len(attendance.done) or not np.any(attendance.heads):
            return False
        op = self.snapshot.op(*collective[:2])
        return is_synchronizing(op) or len(attendance.inside) == 1

    def stuck_inside(self, attendance: Attendance, since: UncertainTime) -> list[int]:
        """Members inside a collective that wait in nothing older and are known to be there still,
        well after `since`, when others had come further."""
        ranks = attendance.inside[attendance.heads]
        stuck = ranks[self._not_beyond(ranks, since) == Fact.REFUTED]
        return [rank for rank in stuck.tolist() if rank not in self.facts.left]

    def stuck_devices(self, attendance: Attendance) -> list[int]:
        """Members whose device has not started the op although it is next and other devices have: a
        device needs no peers to start it, but time if its rank left another op a moment ago."""
        if not attendance.any_started:
            return []
        unstarted = set(attendance.unstarted.tolist())
        stuck = self.stuck_inside(attendance, attendance.started_at)
        return [
            rank
            for rank in stuck
            if rank in unstarted and self.facts.is_at_rest(rank, self.facts.moved_at(rank))
        ]

    def _not_beyond(self, ranks: Int32s, since: UncertainTime) -> Int64s:
        """Whether ranks are known not to be as far as others were by `since`; recorders notice
        progress late."""
        return self.facts.absence(ranks, since.later(NOTICED_NS))

    def all_waits(self, rank: int) -> list[Wait]:
        """All ops of the rank in flight that a member has not joined, or may not have."""
        ops = {op.instance: self.waits.op(rank, op.instance) for op in self.waits.ops(rank)}
        waits = [wait_of(rank, op) for op in ops.values() if not op.is_matched]
        return [wait for wait in waits if len(self._absence(wait)[0])]

    def came_of_known(self, wait: Wait) -> tuple[list[int], int]:
        """The members that have joined an op, and how many there are with those alive that provably
        have not."""
        if wait not in self._came:
            attendance, (absent, facts) = self.waits.attendance(wait.instance), self._absence(wait)
            came = [*attendance.done, *attendance.inside, *attendance.behind]
            absent = np.setdiff1d(absent[facts == Fact.REFUTED], [*self.facts.left])
            self._came[wait] = sorted(map(int, came)), len(came) + len(absent)
        return self._came[wait]

    def came_and_missing(self, wait: Wait) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks that wait in it and the ranks that are missing, sorted."""
        if wait.instance.is_p2p:
            peer = wait.instance.peer_of(wait.rank)
            came = self.waits.op(wait.rank, wait.instance).is_matched
            return (wait.rank,), () if came else (peer,)
        attendance = self.waits.attendance(wait.instance)
        inside = np.sort(np.concatenate([attendance.inside, attendance.behind]))
        return tuple(inside.tolist()), tuple(attendance.absent.tolist())

    # -- since when ----------------------------------------------------------------------------

    def onset(self, wait: Wait) -> UncertainTime:
        """When the first waiting rank began to wait."""
        if not wait.instance.is_p2p:
            return self.waits.attendance(wait.instance).first_since
        return self.snapshot.moment(wait.rank, self.waits.op(wait.rank, wait.instance).since)

    def is_ripe(self, wait: Wait) -> bool:
        """The last rank joined so long ago that the op is not just about to complete."""
        return self._ripe_at(wait) <= self.snapshot.now

    def _ripe_at(self, wait: Wait) -> int:
        if wait.instance.is_p2p:
            last = self.waits.last_since(wait.instance)
        else:
            last = self.waits.attendance(wait.instance).last_since
        return last + self.facts.threshold_ns(wait.instance.group)
