"""The verdict on a folder of dumps: findings, and the collectives, groups and ranks behind them.

`analyze` uses the wait graph and the match rules of the live service; this package only turns dump
files into a snapshot for them. All results are frozen values. A `Collective` is made on request
from columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frd.engine.findings import text
from frd.engine.hangs.ops_in_flight import Op, Waits
from frd.engine.state.snapshot import Snapshot
from frd.flight.trace import RankTrace, Trace
from frd.forms import finding_json, utc_text
from frd.model import Finding, GroupInfo, Kind, RankInfo
from frd.offline.analysis.clocks import clock_findings, clocks_of
from frd.offline.analysis.collectives import Collectives, collectives_of
from frd.offline.analysis.durations import STALL_AFTER_S, dump_times_of, last_dump_ns
from frd.offline.analysis.incident import of_other_times, without
from frd.offline.analysis.matching import matched_collectives, with_ends
from frd.offline.analysis.rows import RankRows, Rows, rows_of
from frd.offline.analysis.verdict import Waiting, judge
from frd.offline.analysis.watermarks import pair_watermarks


@dataclass(frozen=True, slots=True)
class DumpReport:
    """One dump of all ranks."""

    folder: str
    taken_by_ns: int
    """When it was taken; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The verdict on a folder of dumps. `findings` are of the class that the service uses."""

    trace: Trace
    findings: Sequence[Finding]
    """Oldest first; findings about clocks are last."""
    groups: Sequence[GroupReport]
    """Parallel to `Trace.groups`."""
    ranks: Mapping[int, RankReport]
    """By global rank; a rank without a readable dump is absent."""
    missing_ranks: tuple[int, ...]
    """Ranks of the world without a readable dump."""
    collectives: Collectives
    clock_offsets_ns: Mapping[int, int]
    """By rank: added to its node's times to get aligned ones."""
    clock_uncertainties_ns: Mapping[int, int | None]
    """By rank: bound on the error of aligned times; None if nothing bounds it."""
    clock_source: str
    """Source of the offsets and how exact they are, for people."""
    fault: bool
    """False: the dumps show no communication fault."""
    summary: str
    """The verdict in one line."""
    waiting: Sequence[Waiting] = field(default=())
    """How long the waits of a finding had lasted when dumped; parallel to the findings about the
    job, which are the first of `findings`."""
    not_proven: Sequence[str] = field(default=())
    """Waits too young to be a hang when the dumps were taken, and backends whose waits the dumps
    cannot show, for people."""
    stall_after_s: float = STALL_AFTER_S
    """How long a wait must have lasted to be a hang."""
    dumps: Sequence[DumpReport] = field(default=())
    """All dumps of the job that were read, oldest first; the last one is judged."""
    warnings: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The object that `frd analyze --json` prints; see docs/commands.md."""
        return {
            "findings": [finding_json(finding) for finding in self.findings],
            "not_proven": list(self.not_proven),
            "waited": [
                {"finding": f.id, "at_least_s": w.at_least_s, "at_most_s": w.at_most_s}
                for f, w in zip(self.findings, self.waiting, strict=False)
            ],
            "ranks": {
                str(rank): _fields(report, "entries", "first_record_id", "last_record_id")
                for rank, report in sorted(self.ranks.items())
            },
            "groups": [
                {
                    "group": g.label,
                    "group_id": g.info.group_id,
                    "ranks": list(g.info.ranks),
                    **_fields(g, "first_seq", "last_seq", "matched", "open", "mismatched"),
                }
                for g in self.groups
            ],
            "missing_ranks": list(self.missing_ranks),
            "dumps": [
                {"folder": d.folder, "taken_by": utc_text(d.taken_by_ns) if d.taken_by_ns else None}
                for d in self.dumps
            ],
            "stall_after_s": self.stall_after_s,
            "clocks": {
                "source": self.clock_source,
                "offset_s": {str(r): ns / 1e9 for r, ns in self.clock_offsets_ns.items()},
                "uncertainty_s": {
                    str(r): None if ns is None else ns / 1e9
                    for r, ns in self.clock_uncertainties_ns.items()
                },
            },
            "warnings": list(self.warnings),
            "fault": self.fault,
            "summary": self.summary,
        }


def _fields(report: RankReport | GroupReport, *names: str) -> dict[str, Any]:
    return {name: getattr(report, name) for name in names}


def analyze(
    trace: Trace, *, stall_after_s: float | None = None, earlier: Sequence[Trace] = ()
) -> Analysis:
    """The verdict on the dumps of a trace.

    Args:
        stall_after_s: how long a wait must have lasted to be a hang; by default the threshold of
            the service that took the dumps, else `STALL_AFTER_S`.
        earlier: older dumps of the same job, oldest first.
    """
    if stall_after_s is None:
        stall_after_s = STALL_AFTER_S if trace.stall_after_s is None else trace.stall_after_s
    rows = rows_of(trace)
    while left_out := of_other_times(rows):
        trace = without(trace, left_out)
        rows = rows_of(trace)
    clocks = clocks_of(rows)
    calls = rows.calls
    offset = np.array([clocks.offset_ns.get(int(r), 0) for r in rows.pair_rank.tolist()], np.int64)
    created = np.where(calls.created_ns > 0, calls.created_ns + offset[calls.pair], 0)
    matched = matched_collectives(rows, created)
    watermarks = pair_watermarks(rows, created, clocks, matched.misfit[matched.of_call])
    matched = with_ends(matched, rows, watermarks)
    dump_times = dump_times_of(rows, clocks)
    verdict = judge(
        rows, watermarks, matched, clocks, dump_times, stall_after_s=stall_after_s, earlier=earlier
    )
    findings = (*verdict.findings, *clock_findings(rows, clocks, dump_times.known_at))
    collectives = collectives_of(rows, watermarks, matched)
    expected = set(range(trace.world_size)).union(*(info.ranks for info in trace.groups))
    missing = tuple(sorted(expected - set(trace.ranks)))
    return Analysis(
        trace=trace,
        findings=findings,
        groups=group_reports(trace, collectives),
        ranks=rank_reports(rows, verdict.snapshot),
        missing_ranks=missing,
        collectives=collectives,
        clock_offsets_ns=clocks.offset_ns,
        clock_uncertainties_ns=clocks.uncertainty_ns,
        clock_source=clocks.source,
        fault=bool(verdict.findings),
        summary=_summary(trace, findings, verdict.unproven, missing),
        waiting=verdict.waiting,
        not_proven=verdict.unproven,
        stall_after_s=stall_after_s,
        dumps=[DumpReport(one.folder, last_dump_ns(one)) for one in (*earlier, trace)],
        warnings=trace.warnings,
    )


def _summary(
    trace: Trace, findings: Sequence[Finding], unproven: Sequence[str], missing: Sequence[int]
) -> str:
    """The first finding is the summary, because the others are younger."""
    without = f"; no dump of {text.ranks(missing)}" if missing else ""
    if not trace.ranks:
        return "there are no dumps"
    if not any(len(one) or one.status for one in trace.ranks.values()):
        return f"the dumps hold no entries{without}"
    verb = "prove" if unproven else "show"
    judged = "the dumps"
    if trace.outside:
        judged = "the judged ops"
        without += (
            f"; ops of {text.ranks([*trace.outside])} in groups that exclude them are not judged"
        )
    if not findings:
        return f"{judged} {verb} no communication fault{without}"
    first = findings[0].summary
    if findings[0].kind is Kind.CLOCK_UNSYNCHRONIZED:
        return (
            f"{judged} {verb} no communication fault, but {first[:1].lower()}{first[1:]}{without}"
        )
    more = f" ({len(findings) - 1} more below)" if len(findings) > 1 else ""
    return f"{first}{more}{without}"


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
