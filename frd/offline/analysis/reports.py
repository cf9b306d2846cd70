"""Reports on the ranks and groups of a trace: counts, and the state of each at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.engine.findings import text
from frd.engine.hangs.ops_in_flight import Op, Waits
from frd.engine.state.snapshot import Snapshot
from frd.flight.trace import RankTrace, Trace
from frd.model import GroupInfo, RankInfo
from frd.offline.analysis.collectives import Collectives
from frd.offline.analysis.rows import RankRows, Rows


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's dump, and the rank's state at its end."""

    rank: int
    source: str
    """The file."""
    version: str
    info: RankInfo | None
    """Identity, if the folder has it."""
    entries: int
    first_record_id: int
    """-1 when the dump has no entries."""
    last_record_id: int
    overran: bool
    """Entries before the first one were overwritten."""
    active_only: bool
    """The dump has only the ops that were in flight."""
    resets: int
    """Resets of the recorder within the dump; only entries after the last reset count."""
    waiting_in: str
    """``all_reduce #7 on default_pg``: its oldest op in flight, empty when there is none."""
    missing_fields: tuple[str, ...] = ()
    """Optional fields that no entry of this dump has, e.g. ``frames``."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One process group over all dumps."""

    index: int
    """In `Trace.groups`."""
    info: GroupInfo
    label: str
    size: int
    """0 if no dump has the membership."""
    first_seq: int
    """Lowest collective seq that any dump holds, -1 for none."""
    last_seq: int
    matched: int
    """Collectives in the dumps that all members joined and completed and that agree."""
    open: int
    """Collectives in the dumps that some member joined and some member has not completed."""
    mismatched: int


def group_reports(trace: Trace, collectives: Collectives) -> list[GroupReport]:
    """A report per group of the trace; the backends of a group are counted together."""
    c, count = collectives, len(trace.groups)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, -1, np.int64)
    np.minimum.at(first, c.group, c.seq)
    np.maximum.at(last, c.group, c.seq)
    matched = (c.joined == c.expected) & (c.completed == c.expected) & ~c.mismatch
    is_open = (c.joined > c.completed) | (c.missing > 0)
    counts = [np.bincount(c.group[of], minlength=count) for of in (matched, is_open, c.mismatch)]
    return [
        GroupReport(
            index=at,
            info=info,
            label=text.clean(info.label),
            size=len(info.ranks),
            first_seq=int(first[at]) if last[at] >= 0 else -1,
            last_seq=int(last[at]),
            matched=int(counts[0][at]),
            open=int(counts[1][at]),
            mismatched=int(counts[2][at]),
        )
        for at, info in enumerate(trace.groups)
    ]


def rank_reports(rows: Rows, snapshot: Snapshot) -> dict[int, RankReport]:
    waits = Waits(snapshot)
    return {rank: _rank(one, snapshot, waits.head(rank)) for rank, one in rows.ranks.items()}


def _rank(one: RankRows, snapshot: Snapshot, head: Op | None) -> RankReport:
    trace = one.trace
    ids = trace.record_id
    return RankReport(
        rank=trace.rank,
        source=trace.source,
        version=trace.version,
        info=trace.info,
        entries=len(trace),
        first_record_id=int(ids[0]) if len(ids) else -1,
        last_record_id=int(ids[-1]) if len(ids) else -1,
        overran=one.overran,
        active_only=one.active_only,
        resets=one.resets,
        waiting_in=_waiting_in(snapshot, head) if head is not None else "",
        missing_fields=_missing_fields(trace),
    )


def _waiting_in(snapshot: Snapshot, head: Op) -> str:
    of = head.instance
    label = snapshot.groups[of.group].label
    if not of.is_p2p:
        return text.collective(snapshot.op(*of[:2]), of.seq, label)
    ends = (str(end) if end >= 0 else "?" for end in (of.src, of.dst))
    return text.collective(f"send {'->'.join(ends)}", of.seq, label)


def _missing_fields(trace: RankTrace) -> tuple[str, ...]:
    """Optional fields that the whole dump lacks."""
    if not len(trace):
        return ()
    lacking = {
        "frames": bool((trace.stack < 0).all()),
        "time_created_ns": not trace.created_ns.any(),
        "time_discovered_started_ns": not trace.started_ns.any(),
        "time_discovered_completed_ns": not trace.completed_ns.any(),
        "duration_ms": bool(np.isnan(trace.duration_ms).all()),
        "pg_status": not trace.status,
    }
    return tuple(name for name, lacks in lacking.items() if lacks)
