"""What a snapshot says about waiting: each rank's oldest op, and which ranks joined a collective.

Columns of the snapshot only. `frd.engine.hangs.facts` decides which of them count as evidence;
nothing here knows about thresholds, telemetry or causes. Ranks that wait in the same op are handled
together, so that 16,384 ranks in a few hundred collectives cost a few numpy calls and a few hundred
Python objects.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from frd.engine.clocks.alignment import UncertainTime
from frd.engine.state.snapshot import Snapshot, run_starts
from frd.model import UNKNOWN_SEQ, AlignedNs, Bools, Int32s, Int64s

_UNKNOWN_AGE = np.int64(np.iinfo(np.int64).max)
"""Sort key of an op in flight of unknown age: any op of known age counts as older."""


class Instance(NamedTuple):
    """What a rank can wait in: one collective of a group, or one direction of a P2P channel."""

    group: int
    """Index into `Snapshot.groups`."""
    seq: int
    """`UNKNOWN_SEQ` for P2P."""
    src: int = -1
    """P2P only: the sender's global rank, -1 when the receiver takes any."""
    dst: int = -1

    @property
    def is_p2p(self) -> bool:
        return self.dst >= 0

    def peer_of(self, rank: int) -> int:
        """The other end of the channel, -1 when it is any."""
        return self.dst if rank == self.src else self.src


Ends: TypeAlias = tuple[list[int], list[int]]
"""Rows of the receives and of the sends on one channel, in order of posting."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op that a rank has in flight."""

    instance: Instance
    since: AlignedNs
    """0 when unknown."""
    started: bool
    """The rank's device has started it; false for P2P and where no starts are recorded."""
    batch: int = 0
    """P2P ops of one rank and group with the same number are one call; 0 for others."""
    is_matched: bool = False
    """P2P: as many ops are in flight at the other end."""
    is_served: bool = False
    """P2P: it is matched, and the op at the other end is over."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """Members of one collective (global ranks) by how far they came with it. Times are 0 when they
    are unknown."""

    absent: Int32s
    """Not known to have joined."""
    doubtful: Bools
    """Over `absent`: the member may have joined, or joined and the op may be over."""
    behind: Int32s
    """Joined, but are still inside an earlier collective of the same group."""
    inside: Int32s
    """In it, nothing older of this group outstanding."""
    done: Int32s
    """Completed it."""
    heads: Bools
    """Over `inside`: this is the member's oldest op of all."""
    started: Bools
    """Over `inside`: the member's device has started it."""
    timed: Bools
    """Over `inside`: the member's recorder records starts."""
    any_started: bool
    """Some member's device started (or finished) it."""
    first_since: UncertainTime
    """When the first of `inside` joined."""
    last_since: AlignedNs
    """When the last of `inside` joined."""
    started_at: UncertainTime
    """By when the first member's device had started it."""
    done_at: UncertainTime
    """By when the first of `done` had completed it."""

    @property
    def unstarted(self) -> Int32s:
        """Those of `inside` whose device has not started it."""
        return self.inside[self.timed & ~self.started]


class Waits:
    """Lookups over one snapshot; answers that are asked for often are kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        pairs = self._pairs = snapshot.pairs
        self._group, self._rank = pairs.groups(), pairs.rank
        self._may_be_over = pairs.completed_most > pairs.completed
        in_doubt = self._may_be_over
        if snapshot.unshown:
            in_doubt = in_doubt | np.isin(self._group, [*snapshot.unshown])
        self._in_doubt = (
            frozenset(self._rank[in_doubt].tolist()) | snapshot.hidden | snapshot.unread
        )
        self._attendances: dict[Instance, Attendance] = {}
        self._ops: dict[int, tuple[Op, ...]] = {}
        self._calls: dict[int, dict[Instance, Op]] = {}
        self._first_ops: dict[int, dict[Instance, Op]] = {}
        self._index_ops()
        self._timed = np.isin(self._rank, self._rank[pairs.started > UNKNOWN_SEQ])

    def _index_ops(self) -> None:
        """Sort all ops in flight by rank, oldest first; an op is a row of the pairs or, counted on
        from their end, a row of the channels."""
        pairs, channels = self._pairs, self.snapshot.channels
        inside = np.flatnonzero(pairs.inside)
        flying = np.flatnonzero(channels.in_flight > 0)
        rank = np.concatenate([self._rank[inside], channels.rank[flying]])
        since = np.concatenate([pairs.head_since[inside], channels.since[flying]])
        source = np.concatenate([inside, flying + len(self._rank)])
        order = np.lexsort((source, np.where(since > 0, since, _UNKNOWN_AGE), rank))
        self._op_source = source[order]
        self._op_since = since[order]
        self._op_rank, self._op_first = np.unique(rank[order], return_index=True)
        self._op_ranks = self._op_rank.tolist()  # lists: `_rows` looks for single ranks
        self._op_bounds = [*self._op_first.tolist(), len(order)]
        self._is_head = np.zeros(len(self._rank) + len(channels.rank), dtype=np.bool_)
        self._is_head[self._op_source[self._op_first]] = True

    # -- ops of a rank -----------------------------------------------------------------------

    def head(self, rank: int) -> Op | None:
        """The oldest op that the rank has in flight; of a batch a send that is not matched, or else
        such a receive, if there is one."""
        return min(
            self.call(rank).values(),
            key=lambda op: (op.is_matched, op.instance.src != rank, op.instance),
            default=None,
        )

    def call(self, rank: int) -> Mapping[Instance, Op]:
        """The oldest op that the rank has in flight, with all others of its batch: a batch is one
        call, so the order in which the program lists its ops means nothing."""
        if rank not in self._calls:
            ops = self.ops(rank)
            mine = [op for op in ops if op.batch and _call_of(op) == _call_of(ops[0])] or ops[:1]
            call = self._calls[rank] = {}
            for op in sorted(mine, key=lambda op: (op.instance, op.is_matched)):
                call.setdefault(op.instance, op)
        return self._calls[rank]

    def op(self, rank: int, instance: Instance) -> Op:
        """What the rank has in flight there: of its call, or else the oldest."""
        if rank not in self._first_ops:
            first = {op.instance: op for op in reversed(self.ops(rank))}
            self._first_ops[rank] = {**first, **self.call(rank)}
        return self._first_ops[rank][instance]

    def last_since(self, channel: Instance) -> int:
        """When the newest op in flight on a P2P channel was posted."""
        rows = [*itertools.chain(*self.ends[channel])]
        since, in_flight = self.snapshot.channels.since, self.snapshot.channels.in_flight
        return int((since[rows] * (in_flight[rows] > 0)).max())

    def ops(self, rank: int) -> tuple[Op, ...]:
        """All that the rank waits in, oldest first: its head in each group, each channel."""
        if rank not in self._ops:
            self._ops[rank] = tuple(
                self._op(int(self._op_source[row]), int(self._op_since[row]))
                for row in self._rows(rank)
            )
        return self._ops[rank]

    def _rows(self, rank: int) -> range:
        at = bisect_left(self._op_ranks, rank)
        is_there = at < len(self._op_ranks) and self._op_ranks[at] == rank
        return range(self._op_bounds[at], self._op_bounds[at + 1]) if is_there else range(0)

    def may_be_elsewhere(self, rank: int) -> bool:
        """In some group it is unknown which op the rank is in, or whether it has completed it, or
        whether it waits in one."""
        return rank in self._in_doubt

    @property
    def waiting(self) -> Int64s:
        """All ranks that have an op in flight, sorted."""
        return self._op_rank

    def by_head(self, ranks: Int32s) -> Iterator[tuple[Instance, bool, Int32s]]:
        """Ranks with something in flight, by their head and whether their device started it."""
        is_wanted = np.isin(self._op_rank, ranks)
        wanted = self._op_rank[is_wanted].astype(np.int64)
        heads = self._op_source[self._op_first[is_wanted]]
        is_pair = heads < len(self._rank)
        rows = heads[is_pair]
        seq = self._pairs.completed[rows] + 1
        group, started = self._group[rows], self._pairs.started[rows] >= seq
        order = np.lexsort((started, seq, group))  # stable: ranks stay in order
        keys = np.stack([group, seq, started])[:, order]
        firsts = run_starts(*keys)
        for (number, at, begun), some in zip(
            keys[:, firsts].T.tolist(), np.split(wanted[is_pair][order], firsts[1:]), strict=False
        ):
            yield Instance(number, at), bool(begun), some.astype(np.int32)
        for rank, source in zip(wanted[~is_pair].tolist(), heads[~is_pair].tolist(), strict=True):
            yield self._op(source, 0).instance, False, np.asarray([rank], dtype=np.int32)

    def _op(self, source: int, since: int) -> Op:
        if source < len(self._rank):
            seq = int(self._pairs.completed[source]) + 1
            instance = Instance(int(self._group[source]), seq)
            return Op(instance, AlignedNs(since), bool(self._pairs.started[source] >= seq))
        row = source - len(self._rank)
        batch, at = int(self.snapshot.channels.batch[row]), self._channel_of[row]
        is_served = row in self._served
        return Op(at, AlignedNs(since), False, batch, is_served or self._matched[row], is_served)

    # -- P2P ---------------------------------------------------------------------------------

    @cached_property
    def _channel_of(self) -> list[Instance]:
        """Of each row of the channels."""
        c = self.snapshot.channels
        src, dst = np.where(c.is_send, (c.rank, c.peer), (c.peer, c.rank)).tolist()
        rows = zip(c.group.tolist(), src, dst, strict=True)
        return [Instance(group, UNKNOWN_SEQ, *ends) for group, *ends in rows]

    @cached_property
    def ends(self) -> Mapping[Instance, Ends]:
        """The rows of each channel."""
        ends: dict[Instance, Ends] = {}
        ways = self.snapshot.channels.is_send.tolist()
        for row, (channel, is_send) in enumerate(zip(self._channel_of, ways, strict=True)):
            ends.setdefault(channel, ([], []))[is_send].append(row)
        return ends

    @cached_property
    def _served(self) -> set[int]:
        """Rows of the channels whose counterparts are over, by their numbers. A peer has done its
        part in such an op; it waits only for the rest of its batch."""
        c, served = self.snapshot.channels, set()
        in_flight, posted = c.in_flight.tolist(), c.posted.tolist()
        for both in self.ends.values():
            for mine, theirs in (both, both[::-1]):
                over = min((posted[row] for row in theirs), default=-1)
                served |= {row for row in mine if 0 <= posted[row] <= over - in_flight[row]}
        return served

    @cached_property
    def _matched(self) -> list[bool]:
        """Over the channels: the ops of the row that are of one call have counterparts in flight.
        Sends pair by count, in order of posting, also with receives from any source. Receives are
        not counted, because the first ones may belong to sends that completed early."""
        c = self.snapshot.channels
        in_flight, batch = c.in_flight.tolist(), c.batch.tolist()
        matched = [peer < 0 for peer in c.peer.tolist()]
        for channel, (receives, sends) in self.ends.items():
            from_any, _ = self.ends.get(channel._replace(src=-1), ([], []))
            left = sum(in_flight[row] for row in [*receives, *from_any])
            for row in receives:
                matched[row] |= any(in_flight[send] for send in sends)
            for row in sends:
                matched[row] = (in_flight[row] if batch[row] else 1) <= left
                left -= in_flight[row]
        return matched

    # -- members of an instance --------------------------------------------------------------

    def attendance(self, collective: Instance) -> Attendance:
        if collective not in self._attendances:
            self._attendances[collective] = self._attend(collective)
        return self._attendances[collective]

    def _attend(self, collective: Instance) -> Attendance:
        pairs, seq = self._pairs.of(collective.group), collective.seq
        rows = self._pairs.rows(collective.group)
        done = pairs.completed >= seq
        may_be_over = (pairs.joined >= seq) & ~done & self._may_be_over[rows]
        came = (pairs.joined >= seq) & ~done & ~may_be_over
        inside = came & (pairs.completed + 1 == seq)
        absent = ~done & ~came
        begun = pairs.started >= seq
        return Attendance(
            absent=pairs.rank[absent],
            doubtful=(may_be_over | (pairs.joined_most >= seq))[absent],
            behind=pairs.rank[came & ~inside],
            inside=pairs.rank[inside],
            done=pairs.rank[done],
            heads=self._is_head[rows][inside],
            started=begun[inside],
            timed=self._timed[rows][inside],
            any_started=bool(np.any(begun)),
            first_since=self._first(pairs.rank[inside], pairs.head_since[inside]),
            last_since=AlignedNs(int(pairs.head_since[inside].max(initial=0))),
            started_at=self._first(pairs.rank[begun], pairs.moved_at[begun]),
            done_at=self._first(pairs.rank[done], pairs.moved_at[done]),
        )

    def _first(self, ranks: Int32s, times: Int64s) -> UncertainTime:
        """The first of the times that are known, on the clock of its rank."""
        known = times > 0
        if not known.any():
            return self.snapshot.moment(-1, AlignedNs(0))
        at = int(np.where(known, times, _UNKNOWN_AGE).argmin())
        return self.snapshot.moment(int(ranks[at]), AlignedNs(int(times[at])))


def _call_of(op: Op) -> tuple[int, int]:
    return op.instance.group, op.batch
