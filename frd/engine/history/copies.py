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
    """Aligned ns from which the wait counts, as in `snapshot_parts.stalls`."""
    share: Float64s
    """For how long the rank's own telemetry confirms it, as a share of the stall threshold of the
    group."""

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
    as_of: Int64s
    """By rank: aligned ns up to which all is known of it."""
    lossy: Bools
    """By rank: rows of it are known to be missing."""
    late_ns: int
    """A rank without a report for so long is not known."""
    signatures: Sequence[Signature]
    synchronizing: Bools
    """By signature: no member can complete it before all have joined."""
    waits: Callable[[], OpenWaits]
    """Computed when it is first called, as the next one."""
    begun: Callable[[], Bools]
    """By group: some member has completed an op."""

    @classmethod
    def of(
        cls,
        tables: AttemptTables,
        signatures: Signatures,
        progress: Progress,
        batches: Sequence[EntryColumnsBatch],
        world_size: int,
        late_s: float,
        now: AlignedNs,
    ) -> Copies:
        ranks, groups, count = tables.ranks, tables.groups, tables.groups.count
        threshold_ns = groups.threshold_ns[:count].copy()
        lines = ranks.clock_lines(np.arange(ranks.count))
        state = ranks.state[: ranks.count].copy()
        as_of = lines.to_aligned(ranks.as_of[: ranks.count], now)
        idle_until = tables.pairs.idle_until[: tables.pairs.count].copy()
        waits = once(
            lambda: _open_waits(progress, idle_until, threshold_ns, lines, state, as_of, now)
        )
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
            as_of=as_of,
            lossy=ranks.gap_at[: ranks.count] >= ranks.as_of[: ranks.count],
            late_ns=round(late_s * 1e9),
            signatures=tuple(signatures.known),
            synchronizing=signatures.synchronizing[: signatures.count].copy(),
            waits=waits,
            begun=once(lambda: _begun(progress, count)),
        )

    def to_aligned(self, rank: Int32s | Int64s, node_ns: Int64s) -> Int64s:
        """See `RankTable.to_aligned`."""
        return _aligned(self.lines, rank, node_ns, self.now)

    def knows_clock(self, rank: int) -> bool:
        return rank < len(self.uncertainty_ns) and int(self.uncertainty_ns[rank]) < UNKNOWN_NS

    def has_not_joined(self, row: Int64s, seq: Int64s | int, since: Int64s | int) -> Bools:
        """Which of these members are known not to have joined an op that others wait in since then.
        Absence proves nothing of a rank that no agent has declared, whose rows are missing, or of
        which nothing is known since; nor of one without any op, if its group has completed some:
        they were before its first report."""
        progress, rank = self.progress, self.progress.rank[row]
        if not len(self.as_of):
            return np.zeros(len(row), np.bool_)
        inside = rank < len(self.as_of)
        rank = np.where(inside, rank, 0)
        heard = progress.known[rank] & ~self.lossy[rank] & (self.as_of[rank] >= since) & inside
        unheard = (progress.enqueued[row] < 0) & self.begun()[progress.group[row]]
        absent: Bools = (progress.enqueued[row] < seq) & heard & ~unheard
        return absent

    def is_unknown(self, rank: Int32s) -> Bools:
        """Ranks that no agent has declared, or has reported lately."""
        if not len(self.as_of):
            return np.ones(len(rank), np.bool_)
        inside = rank < len(self.as_of)
        rank = np.where(inside, rank, 0).astype(np.int32)
        late = self.now - self.as_of[rank] > self.late_ns
        unknown: Bools = late | ~self.progress.known[rank] | ~inside
        return unknown

    def is_gone(self, rank: Int32s) -> Bools:
        """Which of these ranks have no process any more."""
        gone: Bools = self.state.take(rank, mode="clip") >= EXITED
        return gone & (rank < len(self.state)) if len(self.state) else np.zeros(len(rank), np.bool_)


def _begun(progress: Progress, groups: int) -> Bools:
    begun = np.zeros(groups, np.bool_)
    begun[progress.group[progress.marks >= 0]] = True
    return begun


def _open_waits(
    progress: Progress,
    idle_until: Int64s,
    threshold_ns: Int64s,
    lines: ClockLines,
    state: UInt8s,
    as_of: Int64s,
    now: AlignedNs,
) -> OpenWaits:
    row = np.flatnonzero((progress.enqueued > progress.marks) & (progress.head > 0))
    if not len(state):
        row = row[:0]
    rank = progress.rank[row]
    row = row[state.take(rank, mode="clip") < EXITED]  # a rank that is gone does not wait
    rank = progress.rank[row]
    begun = np.maximum(progress.head[row], idle_until[row])
    until = as_of.take(rank, mode="clip")
    since = _aligned(lines, rank, begun, now)
    share = np.maximum(until - since, 0) / threshold_ns[progress.group[row]]
    return OpenWaits(row, progress.completed()[row] + 1, since, share)


def _aligned(lines: ClockLines, rank: Int32s | Int64s, node_ns: Int64s, now: AlignedNs) -> Int64s:
    if not len(lines.at):
        return node_ns
    return lines.take(rank).to_aligned(node_ns, now)
