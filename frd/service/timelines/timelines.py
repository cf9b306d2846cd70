"""Timelines of all findings: those of open ones as they are now, those of closed ones as kept.

The engine remembers the last ops of an attempt only, and a job that goes on, or ends, replaces
them. So the timeline of a finding is stored when it opens, again while late reports come in or its
curves go on, and for a last time when it closes. Nothing waits for this, and a store that fails
costs a picture.

Which ranks get a lane: suspects, the witness, and others at even distances, so that the picture of
16,384 ranks is readable. Times are those that the engine has aligned; nothing is guessed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from frd.engine.views import AttemptView, RecentOps, StatusView
from frd.errors import StoreError
from frd.model import AlignedNs, AttemptKey, Change, Finding, FindingEvent, Kind, SeriesKind
from frd.service.state import ServiceState
from frd.service.timelines.timeline import (
    MAX_LATENESS,
    MOMENT_NS,
    Bar,
    Curve,
    Gap,
    Lane,
    Late,
    Reached,
    Timeline,
    closed,
    merged,
)
from frd.store.timelines import TimelineStore

LOOK_EVERY_S: Final = 2.0
_SETTLED_AFTER_S: Final = 30.0
"""By then, the rows about the time of the opening have come."""
_AGAIN_AFTER_S: Final = 5.0
_MOST_A_LOOK: Final = 8
_AFTER_OPENING_NS: Final = 2_000_000_000
MAX_LANES: Final = 256
OF_MEMORY: Final = frozenset({Kind.MEMORY_SPIKE, Kind.OOM})
_GROWING: Final = OF_MEMORY | {Kind.STRAGGLER}
"""Their curves go on as long as they are open."""
_OPS: Final = 32
"""Ops a lane."""
_SUSPECTS: Final = 8
_CURVES: Final = 16
_PEERS: Final = 5
"""Ranks whose lateness is shown besides that of the suspects."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Timelines:
    """`state` is the published state of the service."""

    store: TimelineStore
    state: Callable[[], ServiceState]
    clock: Callable[[], AlignedNs]
    _kept_at: dict[str, AlignedNs] = field(default_factory=dict)
    """When the timeline of each open finding was last stored."""
    _closing: dict[str, Finding] = field(default_factory=dict)
    store_errors: int = 0

    def see(self, events: Iterable[FindingEvent]) -> None:
        """The next look takes up what has opened or closed."""
        for event in events:
            if event.change is Change.CLOSED:
                self._closing[event.finding.id] = event.finding

    async def look(self) -> None:
        """Store the timelines that are due. What is cut off here is due at the next look."""
        now, still_open = self.clock(), self.state().open_findings()
        closing = list(self._closing.values())[:_MOST_A_LOOK]
        utc = self.state().utc(now)
        due = [finding for finding in still_open if self._is_due(finding, now, utc)]
        due.sort(key=lambda finding: self._kept_at.get(finding.id, 0))
        for finding in (*closing, *due[:_MOST_A_LOOK]):
            await asyncio.to_thread(self._keep, finding)
            self._kept_at[finding.id] = now
            self._closing.pop(finding.id, None)
        ids = {finding.id for finding in still_open}
        self._kept_at = {id_: at for id_, at in self._kept_at.items() if id_ in ids}

    def _is_due(self, finding: Finding, now: AlignedNs, utc: AlignedNs) -> bool:
        kept_at = self._kept_at.get(finding.id)
        if kept_at is None:
            return True
        changes = finding.kind in _GROWING or utc - finding.opened_at < _SETTLED_AFTER_S * 1e9
        return changes and now - kept_at >= _AGAIN_AFTER_S * 1e9

    def _keep(self, finding: Finding) -> None:
        """The event loop must not hold a publication, whose arrays it would free."""
        state = self.state()
        view = _view(state, finding)
        try:
            timeline = self.of(finding, view, state.status_view, None, goes_on=False)
            is_final = finding.closed_at is not None
            self.store.save(finding.id, finding.opened_at, timeline.encode(), is_final=is_final)
        except StoreError as error:
            if not self.store_errors:
                log.error("%s", error)
            self.store_errors += 1

    def now(self, finding: Finding, ranks: Collection[int] | None) -> Timeline:
        """As `of`, from what is published."""
        state = self.state()
        # Later, the job does other things.
        lives = finding.closed_at is None or finding.id in self._closing
        view = _view(state, finding) if lives else None
        return self.of(finding, view, state.status_view, ranks)

    def of(
        self,
        finding: Finding,
        view: AttemptView | None,
        seen: StatusView,
        ranks: Collection[int] | None,
        *,
        goes_on: bool = True,
    ) -> Timeline:
        """The timeline of a finding, with lanes for `ranks` (None: for those that matter most).
        Reads the disk. `view`, a part of `seen`, is of its attempt; None if that does other things
        by now. A straggler is late all the time: if it `goes_on`, what it does now is worth as much
        as what it did.

        Raises:
            StoreError: the store cannot be read.
        """
        ahead_ns, at = seen.utc_ahead_ns, int(seen.at)
        found = self._kept(finding.id) or Timeline(at=at).later(ahead_ns)
        if finding.id in self._kept_at:  # by this process, which has the same aligned time
            found = found.later(ahead_ns - found.utc_ahead_ns)
        if view is not None:
            is_endless = goes_on and finding.kind is Kind.STRAGGLER
            until = None if is_endless else AlignedNs(_end(finding) - ahead_ns)
            found = merged(found, drawn(finding, view, at, ranks, until=until).later(ahead_ns))
        found = msgspec.structs.replace(found, lanes=placed(finding, found.lanes))
        if ranks is not None:
            found = found.of(ranks)
        return found if finding.closed_at is None else closed(found, finding.closed_at)

    def lanes(self, finding: Finding, most: int) -> list[int] | None:
        """The ranks of an open finding that matter most; None if its attempt is not known. Reads
        the disk."""
        view = _view(self.state(), finding)
        if view is None or finding.closed_at is not None:
            return None
        kept = self._kept(finding.id)
        stored = {lane.rank for lane in kept.lanes} if kept is not None else set()
        ranks = sorted(stored.union(view.rank_columns.rank.tolist()))
        return lanes_of(finding, ranks, most)

    def keeps(self, finding_id: str) -> bool:
        """Whether the last timeline of this closed finding is stored. Reads the disk."""
        return self.store.is_final(finding_id)

    def _kept(self, finding_id: str) -> Timeline | None:
        body = self.store.get(finding_id)
        if body is None:
            return None
        try:
            return Timeline.decode(body)
        except (ValueError, RecursionError) as error:
            log.warning("timelines: %s: %s: %s: it is replaced", self.store.path, finding_id, error)
            self.store_errors += 1
            return None


def _end(finding: Finding) -> AlignedNs:
    """Ops that all ranks enqueued later are of another time. This bounds what is stored, too."""
    return AlignedNs(finding.opened_at + _AFTER_OPENING_NS)


def _view(state: ServiceState, finding: Finding) -> AttemptView | None:
    key = AttemptKey(finding.job, finding.attempt)
    return next((view for view in state.status_view.attempts if view.key == key), None)


def lanes_of(finding: Finding, ranks: Sequence[int], most: int) -> list[int]:
    """At most so many of `ranks` (sorted, of the whole attempt), the most important first."""
    known = frozenset(ranks)
    suspects = [s.rank for s in finding.suspects if s.rank in known]
    chosen = dict.fromkeys(suspects[:_SUSPECTS])
    collective = finding.collective
    missing = collective.missing_ranks if collective else ()
    if finding.witness is not None and finding.witness.rank in known:
        chosen[finding.witness.rank] = None
    chosen |= dict.fromkeys(_sample([r for r in missing if r in known], most // 4))
    involved = [r for r in _involved(finding) if r in known and r not in chosen]
    chosen |= dict.fromkeys(_sample(involved, most - len(chosen)))
    if len(chosen) < most:
        others = [rank for rank in ranks if rank not in chosen]
        chosen |= dict.fromkeys(_sample(others, most - len(chosen)))
    return list(chosen)[:most]


def _sample(ranks: Sequence[int], most: int) -> list[int]:
    """At even distances."""
    if most <= 0 or not ranks:
        return []
    at = np.unique(np.linspace(0, len(ranks) - 1, min(most, len(ranks))).round().astype(int))
    return [ranks[i] for i in at.tolist()]


def _involved(finding: Finding) -> list[int]:
    collective = finding.collective
    waiting = collective.waiting_ranks if collective else ()
    return sorted({*waiting, *finding.victims, *finding.unknown})


def roles_of(finding: Finding, ranks: Iterable[int]) -> dict[int, str]:
    """The role of each rank; see `Lane`."""
    collective = finding.collective
    by_rank = dict.fromkeys(ranks, "other")
    of = [
        ("member", collective.missing_ranks if collective else ()),
        ("member", finding.unknown),
        ("waiting", collective.waiting_ranks if collective else ()),
        ("waiting", finding.victims),
        ("witness", (finding.witness.rank,) if finding.witness else ()),
        ("suspect", [suspect.rank for suspect in finding.suspects]),
    ]
    for role, members in of:
        by_rank |= {rank: role for rank in members if rank in by_rank}
    return by_rank


def placed(finding: Finding, lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    """Lanes with the roles that the finding gives their ranks by now: suspects first."""
    by_rank = {lane.rank: lane for lane in lanes}
    roles = roles_of(finding, by_rank)
    suspects = [suspect.rank for suspect in finding.suspects if suspect.rank in by_rank]
    order = dict.fromkeys([*suspects, *sorted(by_rank)])
    return tuple(msgspec.structs.replace(by_rank[rank], role=roles[rank]) for rank in order)


def drawn(
    finding: Finding,
    view: AttemptView,
    at: int,
    ranks: Collection[int] | None,
    *,
    until: AlignedNs | None = None,
) -> Timeline:
    """The lanes of `ranks` (None: of up to `MAX_LANES` that matter most), with the last ops of
    those that any of them had enqueued by `until` (None: by now)."""
    all_ranks = view.rank_columns.rank.tolist()
    if ranks is None:
        chosen = lanes_of(finding, all_ranks, MAX_LANES)
    else:
        known = set(all_ranks)
        chosen = [rank for rank in ranks if rank in known]
    suspects = [suspect.rank for suspect in finding.suspects if suspect.rank in chosen]
    chosen = list(dict.fromkeys([*suspects, *sorted(chosen)]))
    if view.history is None:
        return Timeline(at=at, all_ranks=len(all_ranks))
    ops = view.history.ops(chosen, _OPS, until)
    roles, nodes = roles_of(finding, chosen), _nodes(view, chosen)
    is_of_memory = finding.kind in OF_MEMORY
    shown = np.union1d(ops.group, ops.missing.group)
    return Timeline(
        at=at,
        lanes=tuple(
            Lane(rank, nodes.get(rank, ""), roles[rank], ops.uncertainty_ns.get(rank))
            for rank in chosen
        ),
        groups={ops.groups[i].group_id: ops.groups[i].label for i in shown.tolist()},
        bars=tuple(_bars(ops)),
        gaps=tuple(_gaps(ops)),
        curves=tuple(_curves(finding, view)) if is_of_memory else (),
        lateness=tuple(_lateness(finding, view)) if finding.kind is Kind.STRAGGLER else (),
        all_ranks=len(all_ranks),
        reached=tuple(
            Reached(rank, ops.groups[group].group_id, *seqs)
            for (rank, group), seqs in ops.reached.items()
        ),
    )


def _nodes(view: AttemptView, ranks: Iterable[int]) -> dict[int, str]:
    rows = np.searchsorted(view.rank_columns.rank, np.array([*ranks], np.int64))
    return {(rank := view.ranks[row]).info.rank: rank.info.node for row in rows.tolist()}


def _bars(ops: RecentOps) -> Iterator[Bar]:
    ids = {i: ops.groups[i].group_id for i in np.unique(ops.group).tolist()}
    columns = (ops.rank, ops.group, ops.seq, ops.op, ops.enqueued, ops.started)
    for rank, group, seq, op, enqueued, started, ended_from, ended, failed in zip(
        *(column.tolist() for column in (*columns, ops.ended_from, ops.ended, ops.failed)),
        strict=True,
    ):
        name = ops.ops[op] if op >= 0 else ""
        yield Bar(rank, ids[group], seq, name, enqueued, started, ended_from, ended, failed)


def _gaps(ops: RecentOps) -> Iterator[Gap]:
    missing = ops.missing
    columns = (missing.rank, missing.group, missing.seq, missing.op, missing.since)
    for rank, group, seq, op, since in zip(*(c.tolist() for c in columns), strict=True):
        name = ops.ops[op] if op >= 0 else ""
        yield Gap(rank, ops.groups[group].group_id, seq, name, since, None)


def _curves(finding: Finding, view: AttemptView) -> Iterator[Curve]:
    """All series of the suspects (of some victims, if there are none), and those of the same kinds
    of some other ranks."""
    memory, suspects = view.memory, {suspect.rank for suspect in finding.suspects}
    if not memory.recent.size:
        return
    suspects = suspects or set(_sample(finding.victims, _PEERS))
    others = set(_sample([r for r in view.rank_columns.rank.tolist() if r not in suspects], _PEERS))
    rows = [i for i, of in enumerate(memory.series) if of.rank in suspects]
    kinds = {memory.series[i].kind for i in rows} - {SeriesKind.CGROUP_USED}
    rows += [i for i, of in enumerate(memory.series) if of.rank in others and of.kind in kinds]
    for i in rows[:_CURVES]:
        of = memory.series[i]
        known = memory.recent[i][memory.recent[i] >= 0]
        at = np.linspace(memory.first_at[i], memory.last_at[i], len(known))
        moments = (at // MOMENT_NS).astype(np.int64).tolist()
        values = dict(zip(moments, known.tolist(), strict=True))
        yield Curve(of.rank, of.kind.value, of.device, int(memory.capacity[i]), values)


def _lateness(finding: Finding, view: AttemptView) -> Iterator[Late]:
    """Of the suspects and some others, for each op that several of the group's ranks joined."""
    assert view.history is not None
    suspects = [suspect.rank for suspect in finding.suspects]
    peers = _sample([r for r in finding.victims if r not in suspects], MAX_LANES // 4)
    if not suspects or not peers:
        return
    ops = view.history.ops([*suspects, *peers], MAX_LATENESS)
    if not len(ops.rank):
        return
    keys, of = np.unique(np.stack((ops.group, ops.seq)), axis=1, return_inverse=True)
    of = of.reshape(-1)
    first = np.full(keys.shape[1], np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, of, ops.enqueued)
    joined = np.bincount(of, minlength=keys.shape[1])
    by_suspect = np.zeros(keys.shape[1], np.bool_)
    by_suspect[of[np.isin(ops.rank, suspects)]] = True
    shown = (joined > 1)[of] & by_suspect[of] & np.isin(ops.rank, [*suspects, *peers[:_PEERS]])
    columns = (ops.rank, ops.group, ops.seq, first[of], ops.enqueued - first[of])
    for rank, group, seq, at, late in zip(
        *(column[shown].tolist() for column in columns), strict=True
    ):
        yield Late(rank, ops.groups[group].group_id, seq, at, late)
