"""What the service shows, by hand: views of ranks, groups, attempts and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from frd.engine.views import (
    STATES,
    AttemptView,
    Attribution,
    GroupColumns,
    GroupView,
    Histogram,
    RankColumns,
    RankView,
    Rise,
    RiseSuspect,
)
from frd.model import (
    AlignedNs,
    AttemptKey,
    Confidence,
    NodeNs,
    RankState,
    RankStatus,
    SeriesKind,
)
from frd.service.clocks.agent_clocks import AgentClock, guess
from frd.service.clocks.real_time import RealTime
from frd.service.state import NodeView
from tests.world.observe import rank_info

SECOND = 1_000_000_000
NOW = AlignedNs(1_800_000_000 * SECOND)
TRAIN = AttemptKey("train", 0)


def rank_view(
    rank: int,
    state: RankState = RankState.LIVE,
    *,
    world: int = 4,
    per_node: int = 1,
    detail: str = "",
    as_of: int = NOW,
    waiting_in: str = "",
    waiting_s: float = 0.0,
) -> RankView:
    info = rank_info(rank, world, per_node=per_node)
    status = RankStatus(rank, state, NodeNs(NOW), detail)
    return RankView(info, status, AlignedNs(as_of), AlignedNs(NOW), waiting_in, waiting_s)


def group_view(
    label: str = "default_pg",
    *,
    group_id: str = "",
    size: int = 4,
    open_collectives: int = 2,
    stall_s: float = 0.0,
    matched: int = 10,
    enqueued: int = 12,
    completed: int = 10,
    threshold_s: float = 25.0,
) -> GroupView:
    return GroupView(
        group_id or f"id of {label}", label, size, open_collectives, int(stall_s > 0), stall_s,
        matched, enqueued, completed, threshold_s,
    )  # fmt: skip


def rise(
    *suspects: int,
    ranks: Sequence[int] = (),
    size: int = 1 << 30,
    fell_back: bool = False,
    alarming: bool = False,
    common_cause: bool = False,
) -> Rise:
    """Of host memory, two seconds ago; `ranks`: if there are others than the suspects."""
    ranks = ranks or suspects
    return Rise(
        ranks=tuple(ranks),
        suspects=tuple(RiseSuspect(rank, Confidence.HIGH) for rank in suspects),
        series=SeriesKind.HOST_USED,
        device="",
        onset=(NOW - 2 * SECOND, NOW - 2 * SECOND + 100_000_000),
        end_ns=NOW,
        bytes=size,
        took_s=1.5,
        peak_bytes=3 << 30,
        fell_back=fell_back,
        alarming=alarming,
        common_cause=common_cause,
        next_rank=None,
        lead_ns=0,
        unknown=(),
        attribution=Attribution.HOST,
        text=f"host memory of rank {ranks[0]} rose first: +1.0 GiB in 1.5 s",
    )


def attempt_view(
    ranks: Sequence[RankView],
    *,
    key: AttemptKey = TRAIN,
    world: int | None = None,
    groups: Sequence[GroupView] = (),
    skew: dict[str, Histogram] | None = None,
    ended: bool = False,
    gap_entries: int = 0,
) -> AttemptView:
    return AttemptView(
        key=key,
        world_size=len(ranks) if world is None else world,
        ended=ended,
        ranks=ranks,
        groups=groups,
        rank_columns=_rank_columns(ranks),
        group_columns=lambda: _group_columns(groups),
        skew=skew or {},
        gap_entries=gap_entries,
    )


def _rank_columns(ranks: Sequence[RankView]) -> RankColumns:
    rows = [(r.info.rank, STATES.index(r.status.state), r.as_of) for r in ranks]
    rank, state, as_of = np.array(rows, np.int64).reshape(-1, 3).T
    return RankColumns(rank.astype(np.int32), state.astype(np.uint8), as_of)


def _group_columns(groups: Sequence[GroupView]) -> GroupColumns:
    return GroupColumns(
        label=[group.label for group in groups],
        open_collectives=np.array([group.open_collectives for group in groups], np.int64),
        stalled_collectives=np.array([group.stalled_collectives for group in groups], np.int64),
        stall_s=np.array([group.stall_s for group in groups], np.float64),
        matched=np.array([group.matched for group in groups], np.int64),
        threshold_s=np.array([group.threshold_s for group in groups], np.float64),
    )


def node_view(
    name: str,
    ranks: Mapping[AttemptKey, tuple[int, ...]],
    *,
    connected: bool = True,
    reporting: bool = True,
    heard_s: float = 0.0,
    behind_ns: int = 0,
    boot: str = "",
) -> NodeView:
    """`behind_ns`: by how much its wall clock is behind the service's."""
    clock = AgentClock("", guess(NOW - behind_ns, NOW), RealTime())
    clock.wall.read([NOW - behind_ns], [NOW - behind_ns], [0])
    heard = AlignedNs(NOW - round(heard_s * SECOND))
    return NodeView(
        name, boot or f"boot-{name}", connected, reporting, heard, clock.view(NOW), ranks
    )
