"""Waits that no recorder shows, as facts: what they are in, which of them count, for which ranks.

A rank that waits in a call of torch.distributed that leaves no entry, for a lock or for its device
does nothing else: it waits like a rank in an op. Such a wait is a node of the wait-for graph
(`frd.engine.hangs.wait_graph`). An op in flight of the same rank always counts more.

Where a rank is in a recorded op, that op becomes a stall, and the search starts there. Only a job
without one (`Calls`) starts at these waits themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final

from frd.engine.clocks.alignment import FOREVER, UncertainTime
from frd.engine.findings import text
from frd.engine.policy import Policy
from frd.engine.state.snapshot import AT_REST, EARLY, Snapshot
from frd.engine.state.unrecorded_waits import not_refuted
from frd.model import (
    DEVICE,
    IDLE,
    INITIALIZATION,
    LOCK,
    NATIVE,
    NO_WAIT,
    POLL,
    NodeNs,
    RankState,
    UnrecordedWait,
    WaitSource,
)

FIRST: Final = "init_process_group"
ALIVE: Final = (RankState.LIVE, RankState.SILENT)


class Way(Enum):
    """For which ranks a call waits."""

    MUTUAL = "the members of a group wait for each other: a rank in the same call holds none up"
    JOINT = "all ranks of the job have to make it: one that has not come holds the others up"
    ONE_SIDED = "it waits for the very ranks that it names, wherever they are"
    DOUBTFUL = "the same, but it may wait for no rank at all: alone it proves no hang"


_WAYS: Final = {
    **dict.fromkeys(INITIALIZATION, Way.JOINT),
    **dict.fromkeys(("send", "recv", "store", LOCK), Way.ONE_SIDED),
    **dict.fromkeys((NATIVE, POLL, DEVICE), Way.DOUBTFUL),
}
"""All that is special about calls; others are mutual. A process group of some ranks may be made by
these alone (`split_group`, ``use_local_synchronization``), so that of several ranks that have not
come none is certain, but with `FIRST`."""
ONE_SIDED: Final = {op for op, way in _WAYS.items() if way in (Way.ONE_SIDED, Way.DOUBTFUL)}


def way_of(op: str) -> Way:
    return _WAYS.get(op, Way.MUTUAL)


# -- which sightings count -------------------------------------------------------------------------


def counting(
    snapshot: Snapshot, earliest: UncertainTime | None, but: Collection[int] = ()
) -> dict[int, UnrecordedWait]:
    """The wait of each rank that counts, since the rank last moved; `but` some, which are in ops.

    With `earliest` it was seen then or later, and has lasted, because a rank on its way passes
    through calls too; but initialization is rare, so that one look is enough. Without: no rank is
    in an op, and a rank that was seen in a call is there until it moves or is seen elsewhere.
    """
    rest_ns = snapshot.threshold_ns.min(initial=FOREVER) * AT_REST
    found = {}
    for rank, known in snapshot.unrecorded.items():
        if rank in but or (row := snapshot.row(rank)) < 0 or snapshot.state[row] not in ALIVE:
            continue
        moved_at = int(snapshot.moved_at[row])
        waits = [
            replace(wait, since_ns=NodeNs(max(wait.since_ns, moved_at)))
            for wait in not_over(known)
            if wait.as_of_ns > moved_at
        ]
        if earliest is not None:
            at = earliest.at + (snapshot.margin_ns(rank, earliest) or 0)
            waits = [
                wait
                for wait in waits
                if wait.as_of_ns >= at
                and (wait.op in INITIALIZATION or wait.as_of_ns - wait.since_ns >= rest_ns)
            ]
        if waits:
            best = max(waits, key=_says_most)
            since_ns = min(wait.since_ns for wait in waits if wait.op == best.op)
            found[rank] = replace(best, since_ns=since_ns)
    return found


def not_over(known: Sequence[UnrecordedWait]) -> list[UnrecordedWait]:
    """The waits of a rank but for those that its frames showed before they showed it elsewhere.
    Frames show no lock and no native call, /proc shows no call of torch.distributed."""
    frames = [w for w in known if w.source is not WaitSource.INSPECTION and w.op != NATIVE]
    left_at = max((wait.as_of_ns for wait in frames if wait.op in NO_WAIT), default=-1)
    return [
        wait
        for wait in known
        if wait.op not in NO_WAIT and (wait not in frames or wait.as_of_ns >= left_at)
    ]


def _says_most(wait: UnrecordedWait) -> tuple[bool, int, int]:
    """Of several sightings the most specific one counts, of such the last."""
    order = [NATIVE, DEVICE, POLL, LOCK]
    level = order.index(wait.op) if wait.op in order else len(order)
    return bool(wait.peers), level, wait.as_of_ns


def outside(snapshot: Snapshot) -> dict[int, UnrecordedWait]:
    """The last sighting of each rank that was seen in no wait, as far as is known."""
    return {
        rank: max(not_refuted(known), key=lambda one: (one.op in NO_WAIT, one.as_of_ns))
        for rank, known in snapshot.unrecorded.items()
        if known and not not_over(known)
    }


def threshold_of_call_ns(
    op: str, policy: Policy, threshold_ns: int, learned_ns: Mapping[str, int]
) -> int:
    """How long a call may take. `threshold_ns`: the highest stall threshold of the job's groups;
    `learned_ns`: what calls of the job have shown, by name."""
    least_ns = 0 if op in INITIALIZATION else threshold_ns
    return max(least_ns, round(policy.call_stall_after_s(op) * 1e9), learned_ns.get(op, 0))


# -- a job without a recorded op -------------------------------------------------------------------


@dataclass(frozen=True)
class Calls:
    """The waits of a job of which no living rank is in a recorded op."""

    waiting: Mapping[int, UnrecordedWait]
    """What each rank waits in, since it last moved."""
    overdue: Collection[int]
    """The ranks whose wait takes too long, and is more than a native call, which proves nothing."""
    first: UnrecordedWait
    """Of these waits, the first one that began; one that is not doubtful where there is one."""
    free: Sequence[int]
    """The ranks of the job that do not wait, and have not been through the first call."""
    threshold_ns: int
    """How long the first call may take."""
    outside: Mapping[int, UnrecordedWait]

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy) -> Calls | None:
        """None if nothing takes too long, or if it proves no hang."""
        waiting = counting(snapshot, None)
        highest_ns = int(snapshot.threshold_ns.max(initial=policy.stall_after_ns))
        limit_ns = {
            op: threshold_of_call_ns(op, policy, highest_ns, snapshot.call_threshold_ns)
            for op in {wait.op for wait in waiting.values()}
        }
        late = [w for w in waiting.values() if w.as_of_ns - w.since_ns >= limit_ns[w.op]]
        certain = [wait for wait in late if way_of(wait.op) is not Way.DOUBTFUL]
        starts = [wait for wait in late if wait.op != NATIVE]
        if not starts:
            return None
        first = min(certain or starts, key=lambda wait: (wait.since_ns, wait.rank))
        world = {*range(snapshot.world_size), *snapshot.rank.tolist()}
        members = frozenset(snapshot.pairs.rank.tolist())
        free = sorted(world - waiting.keys() - been_through(first, members))
        overdue, seen = [wait.rank for wait in starts], outside(snapshot)
        calls = cls(waiting, overdue, first, free, limit_ns[first.op], seen)
        is_late = snapshot.is_late(snapshot.as_of, policy.telemetry_late_s) | ~snapshot.connected
        heard = {*free} - set(snapshot.rank[is_late].tolist())
        last_came = len(late) == len(waiting)
        if not certain and not (last_came and calls._is_one_elsewhere(snapshot)):
            return None
        if not free and not (last_came and calls._can_wait_for_each_other()):
            return None
        if way_of(first.op) is not Way.JOINT and (
            len(free) > len(waiting) or any(calls.moves(snapshot, rank) for rank in heard)
        ):
            return None  # most of the job does something else, or it goes on
        return calls

    def _is_one_elsewhere(self, snapshot: Snapshot) -> bool:
        """Exactly one rank was seen elsewhere for as long as all others waited: it is blocked, or
        at work. Where they poll it must not be idle: they may wait for the next request. Nor may it
        be one whose collectives cannot be read: it may wait in one."""
        polls = any(wait.op == POLL for wait in self.waiting.values())
        seen = [self.outside.get(rank) for rank in self.free]
        return len(seen) == 1 and all(
            one is not None
            and one.rank not in snapshot.unread
            and not (polls and one.op == IDLE)
            and one.as_of_ns >= self.seen_from_ns
            and one.as_of_ns - waited_until(snapshot, one.rank) >= self.threshold_ns
            for one in seen
        )

    def _can_wait_for_each_other(self) -> bool:
        """A rank that polls, or waits for its device, may wait for none of the others."""
        ops = {wait.op for wait in self.waiting.values()}
        return not ops & {POLL, DEVICE} and (len(self.waiting) > 1 or not ops & ONE_SIDED)

    @cached_property
    def is_one_call(self) -> bool:
        """All ranks wait in the same."""
        return len({wait.op for wait in self.waiting.values()}) == 1

    @cached_property
    def _order(self) -> Sequence[int]:
        return sorted(self.waiting)

    def after(self, rank: int) -> Sequence[int]:
        """The next rank that waits, in a circle; none if no other one waits."""
        ranks = self._order
        following = ranks[(bisect_left(ranks, rank) + 1) % len(ranks)]
        return () if following == rank else (following,)

    @property
    def seen_from_ns(self) -> int:
        """From then on a sighting of another rank counts."""
        return self.first.since_ns + round(self.threshold_ns * EARLY)

    def moves(self, snapshot: Snapshot, rank: int) -> bool:
        """A living rank has moved a moment ago."""
        if not snapshot.lives(rank):
            return False
        return snapshot.now - int(snapshot.moved_at[snapshot.row(rank)]) < self.threshold_ns


def waited_until(snapshot: Snapshot, rank: int) -> int:
    """When the rank was last seen to wait for another one, as far as is known; 0 never."""
    seen = snapshot.unrecorded.get(rank, ())
    return max((w.left_ns if w.op in NO_WAIT else w.as_of_ns for w in seen), default=0)


def as_seen(snapshot: Snapshot) -> Snapshot:
    """The same, where a rank that was seen in no wait is known up to then."""
    as_of = snapshot.as_of.copy()
    for rank, one in outside(snapshot).items():
        if (row := snapshot.row(rank)) >= 0:
            as_of[row] = max(as_of[row], one.as_of_ns)
    return replace(snapshot, as_of=as_of)


def been_through(wait: UnrecordedWait, members: Set[int]) -> Set[int]:
    """The ranks that need not come to a call any more: those in a group have been through `FIRST`,
    unless the rank that waits is in a group as well, and makes its default group again."""
    return frozenset() if wait.op != FIRST or wait.rank in members else members


# -- the ranks that hold a wait up, and words ----------------------------------------------------


def holders(wait: UnrecordedWait, counted: Mapping[int, UnrecordedWait]) -> Sequence[int]:
    """The ranks that hold a wait up, as far as they are known."""
    others = sorted({*wait.peers} - {wait.rank})
    if wait.op in ONE_SIDED:
        return others
    return [rank for rank in others if rank not in counted or counted[rank].op != wait.op]


_WORDS: Final = {
    LOCK: "for a lock",
    DEVICE: "for its device",
    NATIVE: "in a native call",
    POLL: "for something that it polls",
}


def described(wait: UnrecordedWait) -> str:
    """``waits in recv for rank 2 (train.py:88 in exchange)``"""
    way, joint = _WORDS.get(wait.op, f"in {text.clean(wait.op)}"), "for"
    if wait.peers and wait.op in (LOCK, POLL):
        way, joint = _WORDS[LOCK], "of"
    peers = f" {joint} {text.ranks(wait.peers)}" if wait.peers else ""
    return f"waits {way}{peers}" + (f" ({text.clean(wait.detail)})" if wait.detail else "")


def of_waiters(rank: int, counted: Mapping[int, UnrecordedWait]) -> str:
    """``ranks 1-2 wait for a lock of it (/ckpt/.lock held by pid 991)``: who waits for that rank;
    empty if no rank does."""
    waiters: dict[str, list[int]] = {}
    for waiter, wait in counted.items():
        if rank in holders(wait, counted):
            what = f"in {text.clean(wait.op)} for it"
            if wait.op in (LOCK, POLL):
                what = "for a lock of it" + (f" ({text.clean(wait.detail)})" if wait.detail else "")
            waiters.setdefault(what, []).append(waiter)
    said = [
        f"{text.ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} {what}"
        for what, ranks in sorted(waiters.items())
    ]
    return ", ".join(said)
