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
from frd.flight.trace import Trace
from frd.forms import finding_json, utc_text
from frd.model import Finding, Kind
from frd.offline.analysis.clocks import clock_findings, clocks_of
from frd.offline.analysis.collectives import Collectives, collectives_of
from frd.offline.analysis.durations import STALL_AFTER_S, dump_times_of, last_dump_ns
from frd.offline.analysis.incident import of_other_times, without
from frd.offline.analysis.matching import matched_collectives, with_ends
from frd.offline.analysis.reports import GroupReport, RankReport, group_reports, rank_reports
from frd.offline.analysis.rows import rows_of
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
