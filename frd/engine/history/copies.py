"""Copies of what an attempt knows, for readers in other threads.

Made with every view, once a second, so only columns are copied; all else is computed when it is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frd.engine.clocks.clock_lines import ClockLines
from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.history.recent_entries import EntryColumnsBatch
from frd.engine.matching.signature_rules import Signatures
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.lazy import once
from frd.engine.state.snapshot import AT_REST
from frd.engine.state.status_view import Progress
from frd.engine.state.tables import EXITED
from frd.model import AlignedNs, Bools, Float64s, GroupInfo, Int32s, Int64s, Signature, UInt8s


@dataclass(frozen=True, slots=True)
class OpenWaits:
    """The oldest open op of each member that is inside one: one element for each."""

    row: Int64s
    """The pair."""
    seq: Int64s
    since: Int64s
    """Aligned ns."""
    share: Float64s
    """How long it has lasted, as a share of the stall threshold of the group."""

    def lasting(self, share: float = AT_REST) -> OpenWaits:
        """Those that have lasted for this share."""
        last = self.share >= share
        if last.all():
            return self
        return OpenWaits(self.row[last], self.seq[last], self.since[last], self.share[last])


@dataclass(frozen=True, slots=True)
class Copies:
    """Arrays by rank, by group and by signature are indexed by handle."""

    now: AlignedNs
    world_size: int
    progress: Progress
    """By pair."""
    batches: Sequence[EntryColumnsBatch]
    threshold_ns: Int64s
    """By group."""
    label: Int32s
    """By group: index in `labels`."""
    labels: Sequence[str]
    infos: Sequence[GroupInfo]
    """By group."""
    lines: ClockLines
    """By rank."""
    uncertainty_ns: Int64s
    """By rank; `UNKNOWN_NS` while its clock is unknown."""
    state: UInt8s
    """By rank."""
    signatures: Sequence[Signature]
    synchronizing: Bools
    """By signature: no member can complete it before all have joined."""
    waits: Callable[[], OpenWaits]
    """Computed when it is first called."""

    @classmethod
    def of(
        cls,
        tables: AttemptTables,
        signatures: Signatures,
        progress: Progress,
        batches: Sequence[EntryColumnsBatch],
        world_size: int,
        now: AlignedNs,
    ) -> Copies:
        ranks, groups, count = tables.ranks, tables.groups, tables.groups.count
        threshold_ns = groups.threshold_ns[:count].copy()
        lines = ranks.clock_lines(np.arange(ranks.count))
        state = ranks.state[: ranks.count].copy()
        return cls(
            now=now,
            world_size=max(world_size, ranks.count),
            progress=progress,
            batches=batches,
            threshold_ns=threshold_ns,
            label=groups.label[:count].copy(),
            labels=tuple(groups.labels),
            infos=tuple(groups.infos),
            lines=lines,
            uncertainty_ns=ranks.uncertainty_ns[: ranks.count].copy(),
            state=state,
            signatures=tuple(signatures.known),
            synchronizing=signatures.synchronizing[: signatures.count].copy(),
            waits=once(lambda: _open_waits(progress, threshold_ns, lines, state, now)),
        )

    def to_aligned(self, rank: Int32s | Int64s, node_ns: Int64s) -> Int64s:
        """See `RankTable.to_aligned`."""
        return _aligned(self.lines, rank, node_ns, self.now)

    def knows_clock(self, rank: int) -> bool:
        return rank < len(self.uncertainty_ns) and int(self.uncertainty_ns[rank]) < UNKNOWN_NS

    def is_gone(self, rank: Int32s) -> Bools:
        """Which of these ranks have no process any more."""
        gone: Bools = self.state.take(rank, mode="clip") >= EXITED
        return gone & (rank < len(self.state)) if len(self.state) else np.zeros(len(rank), np.bool_)


def _open_waits(
    progress: Progress, threshold_ns: Int64s, lines: ClockLines, state: UInt8s, now: AlignedNs
) -> OpenWaits:
    row = np.flatnonzero((progress.enqueued > progress.marks) & (progress.head > 0))
    if len(state):  # a rank that is gone does not wait
        row = row[state.take(progress.rank[row], mode="clip") < EXITED]
    since = _aligned(lines, progress.rank[row], progress.head[row], now)
    return OpenWaits(
        row=row,
        seq=progress.completed()[row] + 1,
        since=since,
        share=(now - since) / threshold_ns[progress.group[row]],
    )


def _aligned(lines: ClockLines, rank: Int32s | Int64s, node_ns: Int64s, now: AlignedNs) -> Int64s:
    if not len(lines.at):
        return node_ns
    of_rank = ClockLines(
        lines.at.take(rank, mode="clip"),
        lines.aligned.take(rank, mode="clip"),
        lines.rate.take(rank, mode="clip"),
    )
    return of_rank.to_aligned(node_ns, now)
