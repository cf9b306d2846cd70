"""Hangs in calls that no recorder shows: initialization, sends and receives of Gloo, barriers.

A rank that was seen in such a call (`frd.engine.unrecorded`) waits. A rank that is in no call and
in no op does not wait, so it may be what others wait for:

- Calls that all ranks of the job have to make (`init_process_group`, `new_group`): each rank that
  has not come holds the others up. A `new_group` with `use_local_synchronization` and a
  `split_group` are calls of some ranks only, so of several absent ranks none is certain there.
- Other calls: for which rank they wait is not always known. If all ranks wait but one, that one is
  the cause, because each chain of waits has to end. If several do not wait, none of them is
  certain.
- All ranks wait, each for too long: they came and it does not complete, or they wait for each
  other.

Where a rank is in a recorded op nothing is decided here: its wait becomes a stall, and then
`frd.engine.hangs.wait_graph` decides, with these waits as a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from frd.engine import unrecorded
from frd.engine.clocks.uncertain_time import UncertainTime
from frd.engine.findings import builder, disagreements
from frd.engine.findings.claim import Claim, anchor_of
from frd.engine.hangs.attribution import confidence_of
from frd.engine.hangs.claims import status_of, surest_of
from frd.engine.hangs.ops_in_flight import Waits
from frd.engine.losses.exits import Exit, Manner, how_it_ended, manner_of, was_asked
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.model import (
    INITIALIZATION,
    NATIVE,
    UNKNOWN_SEQ,
    AlignedNs,
    CollectiveRef,
    Kind,
    NodeNs,
    RankState,
    Reason,
    Suspect,
    UnrecordedWait,
)

_FIRST: Final = "init_process_group"
_LEFT: Final = (RankState.EXITED, RankState.FINISHED)


def claims_of_calls(snapshot: Snapshot, policy: Policy, gone: Sequence[Exit] = ()) -> list[Claim]:
    """At most one claim: ranks of a job wait for each other, so that its calls hang together.

    `gone`: all exits of the snapshot. None opens anything while it is judged, however clean it is:
    the ranks of a job that ends leave one by one, and the last are still seen waiting.
    """
    claim = _Calls(snapshot, policy).claim() if snapshot.unrecorded else None
    if claim is None:
        return []
    judged = [replace(one, manner=_manner(snapshot, snapshot.row(one.rank))) for one in gone]
    status = status_of(snapshot.now, claim.kind, claim.suspects, policy, judged)
    bad = [one.rank for one in gone if one.is_bad]
    is_of_exited = bool(claim.named) and claim.named.issubset(bad)
    return [replace(claim, status=status, is_of_exited=is_of_exited)]


def threshold_of_call_ns(
    op: str, policy: Policy, threshold_ns: int, learned_ns: Mapping[str, int]
) -> int:
    """How long a call may take. `threshold_ns`: the highest stall threshold of the job's groups;
    `learned_ns`: what calls of the job have shown, by name."""
    least_ns = 0 if op in INITIALIZATION else threshold_ns
    return max(least_ns, round(policy.call_stall_after_s(op) * 1e9), learned_ns.get(op, 0))


def seen_outside(snapshot: Snapshot) -> dict[int, int]:
    """When each rank was last seen in no call, of those that are in none as far as is known."""
    return {
        rank: max(wait.as_of_ns for wait in known)
        for rank, known in snapshot.unrecorded.items()
        if known and all(wait.op in unrecorded.NO_CALL for wait in known)
    }


class _Calls:
    """The ranks of one snapshot: in calls, in ops, and in neither."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._ops = Waits(snapshot)
        self.waiting: dict[int, UnrecordedWait] = {}
        """What each rank waits in, since it last moved."""
        self.outside = seen_outside(snapshot)
        for rank, known in snapshot.unrecorded.items():
            if (row := snapshot.row(rank)) < 0 or snapshot.state[row] not in unrecorded.ALIVE:
                continue
            moved_at = int(snapshot.moved_at[row])
            calls = [
                replace(wait, since_ns=NodeNs(max(wait.since_ns, moved_at)))
                for wait in known
                if wait.op not in unrecorded.NO_CALL and wait.as_of_ns > moved_at
            ]
            if calls:
                last = max(calls, key=lambda wait: (bool(wait.peers), wait.as_of_ns))
                since_ns = min(wait.since_ns for wait in calls if wait.op == last.op)
                self.waiting[rank] = replace(last, since_ns=since_ns)

    # -- who waits, and who does not -----------------------------------------------------------

    @cached_property
    def _highest_ns(self) -> int:
        """The highest threshold of the job's groups."""
        return int(self._snapshot.threshold_ns.max(initial=self._policy.stall_after_ns))

    def _threshold_ns(self, op: str) -> int:
        """How long a call may take."""
        return threshold_of_call_ns(
            op, self._policy, self._highest_ns, self._snapshot.call_threshold_ns
        )

    @cached_property
    def first(self) -> UnrecordedWait | None:
        """Of the waits that take too long, the first one that began. A native call alone proves no
        hang: it may wait for anything."""
        overdue = [wait for wait in self.waiting.values() if self._is_overdue(wait)]
        known = [wait for wait in overdue if wait.op != NATIVE]
        return min(known, key=lambda wait: (wait.since_ns, wait.rank), default=None)

    def _is_overdue(self, wait: UnrecordedWait) -> bool:
        return wait.as_of_ns - wait.since_ns >= self._threshold_ns(wait.op)

    @cached_property
    def absent(self) -> list[int]:
        """The ranks of the job that do not wait, and have not been through the call. Those that are
        in a group have been through `init_process_group`, unless the first one that waits is in a
        group as well: then it is not their first initialization."""
        snapshot = self._snapshot
        world = {*range(snapshot.world_size), *snapshot.rank.tolist()}
        members = set(snapshot.pairs.rank.tolist())
        first = self.first
        is_first = first is not None and first.op == _FIRST and first.rank not in members
        through = members if is_first else set()
        return sorted(world - self.waiting.keys() - through)

    def _is_unknown(self, rank: int) -> bool:
        """Its agent does not say what it does."""
        snapshot, row = self._snapshot, self._snapshot.row(rank)
        if row < 0 or snapshot.state[row] is not RankState.LIVE:
            return False
        as_of = max(int(snapshot.as_of[row]), self.outside.get(rank, 0))
        is_late = snapshot.is_late(as_of, self._policy.telemetry_late_s)
        return bool(not snapshot.connected[row] or is_late)

    def _moved_lately(self, rank: int) -> bool:
        row = self._snapshot.row(rank)
        assert self.first is not None
        since_ns = self._snapshot.now - int(self._snapshot.moved_at[row]) if row >= 0 else 0
        is_alive = row >= 0 and self._snapshot.state[row] is RankState.LIVE
        return is_alive and since_ns < self._threshold_ns(self.first.op)

    # -- the claim -----------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        first, snapshot = self.first, self._snapshot
        alive = snapshot.rank[snapshot.in_state(*unrecorded.ALIVE)].tolist()
        if first is None or any(self._ops.head(rank) is not None for rank in alive):
            return None
        is_joint = first.op in INITIALIZATION
        unknown = [rank for rank in self.absent if self._is_unknown(rank)]
        others = [rank for rank in self.absent if rank not in unknown]
        if not is_joint and (
            len(self.absent) > len(self.waiting) or any(map(self._moved_lately, others))
        ):
            return None  # most of the job does something else, or it goes on
        if not self.absent and not all(map(self._is_overdue, self.waiting.values())):
            return None  # the last has just come
        suspects = [self._suspect(rank, unknown) for rank in others]
        kind, reason, disagreement = Kind.STALL, None, ""
        if not self.absent:
            if len({wait.op for wait in self.waiting.values()}) == 1 and (
                first.op not in unrecorded.ONE_SIDED
            ):
                reason = Reason.NETWORK_OR_DEVICE
            else:
                kind, disagreement = Kind.ORDER, self._orders()
                suspects = [self._in_circle(rank) for rank in sorted(self.waiting)]
        began = self._began(first)
        named = frozenset(one.rank for one in suspects)
        ref = self._call(first)
        return Claim(
            kind=kind,
            about=f"call/{ref.op}",
            anchors=frozenset({anchor_of(ref)}),
            since=began.at,
            reason=reason,
            collective=ref,
            suspects=surest_of(suspects, dict.fromkeys(named, began), self._policy.max_suspects),
            named=named,
            victims=tuple(sorted(self.waiting.keys() - named)),
            unknown=tuple(unknown),
            disagreement=disagreement,
        )

    def _began(self, wait: UnrecordedWait) -> UncertainTime:
        return self._snapshot.moment(wait.rank, AlignedNs(wait.since_ns))

    def _call(self, first: UnrecordedWait) -> CollectiveRef:
        waiting = [rank for rank, wait in self.waiting.items() if wait.op == first.op]
        return CollectiveRef(
            group="",
            group_id="",
            group_size=self._snapshot.world_size,
            seq=UNKNOWN_SEQ,
            op=first.op,
            waiting_ranks=tuple(sorted(waiting)),
            missing_ranks=tuple(self.absent),
            waited_s=(self._snapshot.now - first.since_ns) / 1e9,
        )

    def _suspect(self, rank: int, unknown: Sequence[int]) -> Suspect:
        """A rank that does not wait. It is certain if it was seen in no call when the others had
        waited for the threshold, has done nothing else, and the others can wait for no other."""
        snapshot, row = self._snapshot, self._snapshot.row(rank)
        assert self.first is not None
        op, moment = self.first.op, self._began(self.first)
        is_only = (op == _FIRST or len(self.absent) == 1) and not unknown
        come = f"has not come to {op}" if op in INITIALIZATION else "waits in no call"
        if row < 0:
            words = (
                "no agent has ever seen it: its process has not started, ended or stalled before "
                "it imported torch, or runs without `frd-agent exec`"
            )
            return builder.suspect(
                snapshot, rank, Reason.UNREACHABLE, confidence_of(is_only or None, None), words
            )
        state, since = snapshot.state[row], int(snapshot.state_since[row])
        at = f" at {snapshot.clock_text(since)}" if since > 0 else ""
        detail = snapshot.detail[row]
        if state is RankState.SILENT:
            words = detail or f"it has not answered since{at.removeprefix(' at')}"
            return builder.suspect(
                snapshot, rank, Reason.UNREACHABLE, confidence_of(None), words, come
            )
        if state in _LEFT:
            is_cause = _manner(snapshot, row) not in (Manner.REACTED, Manner.ASKED)
            words = f"{_left(state, is_known=rank in snapshot.exits)}{at}"
            return builder.suspect(
                *(snapshot, rank, Reason.EXITED, confidence_of(is_cause or None, is_only or None)),
                *(words, detail),
            )
        stalled = moment.later(self._threshold_ns(op))
        margin_ns = snapshot.margin_ns(rank, stalled)
        is_seen = margin_ns is not None and self.outside.get(rank, 0) >= stalled.at + margin_ns
        premises = (
            is_only or None,
            is_seen or None,
            not self._moved_lately(rank) or None,
            not self._ops.may_be_elsewhere(rank) or None,
        )
        return builder.suspect(
            snapshot, rank, Reason.CPU_STUCK, confidence_of(*premises), come, detail
        )

    def _in_circle(self, rank: int) -> Suspect:
        words = unrecorded.described(self.waiting[rank])
        return builder.suspect(self._snapshot, rank, Reason.ORDER, confidence_of(None), words)

    def _orders(self) -> str:
        ranks: dict[str, list[int]] = {}
        for rank, wait in sorted(self.waiting.items()):
            ranks.setdefault(wait.op, []).append(rank)
        return disagreements.of_order(
            sorted(ranks.items(), key=lambda item: (len(item[1]), item[1]))
        )


def _manner(snapshot: Snapshot, row: int) -> Manner:
    """Why a rank left. One that has never had a process group counts as finished whatever ended it:
    the detail of its status says what that was."""
    rank = int(snapshot.rank[row])
    if rank not in snapshot.exits and was_asked(snapshot.detail[row]):
        return Manner.ASKED
    return manner_of(how_it_ended(snapshot, row), rank)


def _left(state: RankState, *, is_known: bool) -> str:
    """How a rank left the job. One that has never had a process group comes without an exit: what
    is known of it is the detail of its status."""
    if state is RankState.EXITED:
        return "process exited"
    return "finished cleanly" if is_known else "left the job"
