"""The timeline of a finding from what the engine remembers of its attempt.

Which ranks get a lane: suspects, the witness, and others at even distances, so that the picture of
16,384 ranks is readable. Times are those that the engine has aligned; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from frd.engine.views import AttemptView, RecentOps
from frd.model import AlignedNs, Finding, Kind, SeriesKind
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
)

MAX_LANES: Final = 256
OF_MEMORY: Final = frozenset({Kind.MEMORY_SPIKE, Kind.OOM})
_OPS: Final = 32
"""Ops a lane."""
_SUSPECTS: Final = 8
_CURVES: Final = 16
_PEERS: Final = 5
"""Ranks whose lateness is shown besides that of the suspects."""


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
