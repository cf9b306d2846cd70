"""/metrics as a projection: one immutable `ServiceState` in, metric families out.

Nothing here counts or remembers, and every metric is defined in `frd.service.metrics.table`. The
number of series is bounded, whatever users call their jobs and groups: only the newest attempt of a
job is exported, label values have a maximum length, groups and ops beyond a limit share one series,
only suspects have a label `rank`, and only open findings one that is text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from frd.engine.findings.text import clean
from frd.engine.views import AttemptView, GroupColumns, Histogram
from frd.model import Kind, Severity
from frd.service.clocks.pings import REASONS as CLOCK_REASONS
from frd.service.evidence.asker import RAS_REPORT, WAIT_REPORT
from frd.service.ingest.job_runs import REASON as JOB_NAME
from frd.service.ingest.session import ROWS, SAMPLES
from frd.service.metrics.table import MAX_SUSPECTS, METRICS, OF_FINDINGS
from frd.service.state import (
    RANK_STATES,
    CellState,
    ClusterState,
    NodeView,
    ServiceState,
    alive_ranks,
    rank_states,
    unread_ranks,
)
from frd.wire.messages import REASONS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_GROUPS: Final = 256
"""Distinct group labels of one job; further groups share `OTHER`."""
MAX_OPS: Final = 64
"""Distinct op labels of one job; further ops share `OTHER`."""
MAX_LABEL_CHARS: Final = 128
OTHER: Final = "(other)"
NODE_STATES: Final = ("reporting", "late", "disconnected")
REFUSED: Final = (*REASONS, "aborted", SAMPLES, ROWS, JOB_NAME, WAIT_REPORT, RAS_REPORT)
HTTP_REFUSED: Final = ("token", "role", "slow", "connections")
STORES: Final = ("findings", "journal", "dumps", "timelines")
_BY_ENGINE: Final = (
    *("collectives", "rows", "mismatches", "attempts", "findings", "findings_not_opened"),
    *("memory_series", "pauses", "earlier_attempts"),
)
TAKEOVERS: Final = ("start", "dead", "released")
EVICTED: Final = (*_BY_ENGINE, "dumps", "journal_segments", "stored_findings")

_TIME: Final = re.compile(r" for [0-9.]+ (s|min|h|d)( [0-9]+ (min|h))?\b")
"""How long an effect has lasted: a label that changes each second would be a series each second."""
_PROCESS: Final = ProcessCollector(registry=None)
"""The ``process_*`` metrics of the service's process."""

Labels: TypeAlias = tuple[str, ...]
"""Label values, in the order of the metric's label names."""
Values: TypeAlias = Mapping[str, defaultdict[Labels, float]]
"""By metric. Labels that are cut to equal text share one value, so values are added up."""
Histograms: TypeAlias = defaultdict[str, dict[Labels, Histogram]]


def render(state: ServiceState, *, of_findings: bool = False) -> bytes:
    """The text that a scrape of `state` gets; `of_findings`: only the series of findings, which
    cost little however many ranks there are."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StateCollector(state, of_findings))
    if not of_findings:
        registry.register(_PROCESS)
    return exposition.generate_latest(registry)


class _StateCollector(Collector):
    def __init__(self, state: ServiceState, of_findings: bool) -> None:
        self._state = state
        self._of_findings = of_findings

    def collect(self) -> Iterator[Metric]:
        state, latest = self._state, self._state.latest_attempts()
        values: Values = {name: defaultdict(float) for name in METRICS}
        histograms: Histograms = defaultdict(dict)
        _add_findings(values, state, latest)
        if not self._of_findings:
            self._add_others(values, histograms, latest)
        for name, samples in values.items():
            if name.startswith(OF_FINDINGS) or not self._of_findings:
                yield _family(name, samples, histograms[name])

    def _add_others(
        self, values: Values, histograms: Histograms, latest: Mapping[str, AttemptView]
    ) -> None:
        state = self._state
        for name, view in latest.items():
            _add_job(values, state, name, view)
            _add_groups(values, label(name), view.group_columns())
            _merge(histograms["frd_collective_skew_seconds"], label(name), view.skew)
            _merge(histograms["frd_collective_duration_seconds"], label(name), view.duration)
            _merge(histograms["frd_collective_transfer_seconds"], label(name), view.transfer)
        namespaces = _namespaces(state, latest)
        for refused in state.refused_ranks:
            values["frd_refused_ranks"][of_job(refused.job, namespaces)] += refused.ranks
        _add_clocks(values, state.nodes)
        _add_own_health(values, state)
        if state.cluster is not None:
            _add_cluster(values, state.cluster)


# -- the parts of the state ------------------------------------------------------------------


def _add_job(values: Values, state: ServiceState, name: str, view: AttemptView) -> None:
    """Nodes, agents and ranks of the newest attempt of a job."""
    job = label(name)
    hosts = [node for node in state.nodes if view.key in node.ranks]
    alive = alive_ranks(view)
    needed = [n for n in hosts if n.connected or alive.intersection(n.ranks[view.key])]
    if all(node.stopped and not node.connected for node in needed):
        needed = []  # a job whose agents were all stopped is about to be lost
    nodes = Counter(_node_state(node) for node in hosts)
    for node_state in NODE_STATES:
        values["frd_nodes"][job, node_state] += nodes[node_state]
    ranks = rank_states(view, state.nodes)
    for rank_state in RANK_STATES:
        values["frd_ranks"][job, rank_state] += ranks[rank_state]
    unsynchronized = [n for n in hosts if n.connected and not n.clock.is_synchronized]
    for metric, value in {
        "frd_job_name_conflicts": state.name_conflicts.get(name, 0),
        "frd_job_failed": view.failure is not None,
        "frd_telemetry_gap_entries_total": view.gap_entries,
        "frd_unread_ranks": sum(map(len, unread_ranks(view, state.nodes).values())),
        "frd_agents_expected": 0 if view.ended else state.expected_agents.get(name, len(needed)),
        "frd_agents_reporting": 0 if view.ended else nodes["reporting"],
    }.items():
        values[metric][of_job(name, {name: view.namespace})] += value
    values["frd_collectives_untimed_total"][job,] += view.untimed
    values["frd_nodes_unsynchronized"][job,] += len(unsynchronized)


def _add_groups(values: Values, job: str, groups: GroupColumns) -> None:
    """Collectives by group label: sums of counts, the maximum of ages."""
    numbers: dict[str, int] = {}
    of = np.array([_number(numbers, label(name)) for name in groups.label], np.int64)
    keys = [(job, name) for name in numbers]
    for metric, counts in (
        ("frd_group_open_collectives", groups.open_collectives),
        ("frd_stalled_collectives", groups.stalled_collectives),
        ("frd_collectives_matched_total", groups.matched),
    ):
        sums = np.bincount(of, counts, len(keys)).tolist()
        for key, value in zip(keys, sums, strict=True):
            values[metric][key] += value
    for metric, ages in (
        ("frd_stall_seconds", groups.stall_s),
        ("frd_stall_threshold_seconds", groups.threshold_s),
    ):
        longest = np.zeros(len(keys))
        np.maximum.at(longest, of, ages)
        for key, value in zip(keys, longest.tolist(), strict=True):
            values[metric][key] = max(values[metric][key], value)


def _number(numbers: dict[str, int], name: str) -> int:
    """The number of a group's name; those that are one too many share one."""
    if name not in numbers and len(numbers) >= MAX_GROUPS:
        name = OTHER
    return numbers.setdefault(name, len(numbers))


def _add_findings(values: Values, state: ServiceState, latest: Mapping[str, AttemptView]) -> None:
    namespaces = _namespaces(state, latest)
    # Jobs with an attempt or a remembered finding: a bounded set.
    for name in sorted({*latest, *(f.job for f in state.status_view.findings)}):
        for kind in Kind:
            key = (*of_job(name, namespaces), kind.value)
            values["frd_findings_open"][key] += 0
            values["frd_findings_closed_by_hand"][key] += 0
            values["frd_findings_total"][key] += state.counters.findings.get((name, kind), 0)
    for finding in state.status_view.going_on:
        key = (*of_job(finding.job, namespaces), finding.kind.value)
        values["frd_findings_closed_by_hand"][key] += 1
    values["frd_findings_corrected_total"][()] = state.counters.corrected
    now = state.utc(state.status_view.at)
    for finding in state.open_findings():
        key = (*of_job(finding.job, namespaces), finding.kind.value)
        values["frd_findings_open"][key] += 1
        # All numbers of a straggler's effect grow.
        effect = "" if finding.kind is Kind.STRAGGLER else _TIME.sub("", finding.effect)
        texts = clean(finding.headline), clean(effect)
        values["frd_finding_info"][label(finding.job), finding.id, *map(label, texts)] = 1
        if finding.is_silenced(now):
            values["frd_finding_silenced"][label(finding.job), finding.id] = 1
        is_critical = finding.severity is Severity.CRITICAL
        values["frd_finding_opened_timestamp_seconds"][*key, finding.id] = finding.opened_at / 1e9
        values["frd_finding_critical"][*key, finding.id] = is_critical
        sure = [s for s in finding.suspects if s.confidence is finding.suspects[0].confidence]
        for suspect in sure[:MAX_SUSPECTS]:
            waits_for = suspect.waits_for.kind.value if suspect.waits_for is not None else ""
            of_suspect = str(suspect.rank), label(suspect.node), suspect.reason.value, waits_for
            values["frd_suspect"][*key, finding.id, *of_suspect] = 1
    for name, view in latest.items():
        if not view.ended:
            _add_rises(values, label(name), view)


def _add_rises(values: Values, job: str, view: AttemptView) -> None:
    """The largest rises, of the ranks that may have been first."""
    found: defaultdict[Labels, float] = defaultdict(float)
    for rise in view.memory.rises:
        if not rise.fell_back and not rise.common_cause:
            ranks = [one.rank for one in rise.suspects] or rise.ranks
            for rank in ranks[:MAX_SUSPECTS]:
                key = (job, str(rank), label(view.node_of(rank)), rise.series.value)
                found[key] = max(found[key], rise.bytes)
    largest = sorted(found, key=lambda key: -found[key])[:MAX_SUSPECTS]
    values["frd_memory_rise"].update({key: found[key] for key in largest})


def _add_clocks(values: Values, nodes: Iterable[NodeView]) -> None:
    """A node that was rebooted has two clocks: the one that reported last is exported."""
    for node in sorted(nodes, key=lambda node: node.last_message_at):
        name = (label(node.node),)
        if (offset_s := node.clock.offset_s) is not None:
            values["frd_clock_offset_seconds"][name] = offset_s
        if (uncertainty_s := node.clock.uncertainty_s) is not None:
            values["frd_clock_uncertainty_seconds"][name] = uncertainty_s
        values["frd_clock_steps_total"][name] += node.clock.steps
        if node.unreadable:
            values["frd_node_unreadable"][name] = 1


def _add_own_health(values: Values, state: ServiceState) -> None:
    counters = state.counters
    values["frd_build_info"][state.version,] = 1
    for metric, value in {
        "frd_ingest_entries_total": counters.entries,
        "frd_ingest_duplicate_entries_total": counters.duplicates,
        "frd_ingest_throttled_total": counters.throttled,
        "frd_ingest_lag_seconds": state.ingest_lag_s,
        "frd_handshakes_failed_total": counters.handshakes_failed,
        "frd_loop_lag_seconds": state.loop_lag_s,
        "frd_last_evaluation_timestamp_seconds": (
            (state.evaluated_at and state.utc(state.evaluated_at)) or 0
        )
        / 1e9,
    }.items():
        values[metric][()] = value
    evicted = Counter(state.status_view.evicted) + Counter(counters.evicted)
    for metric, known, counts in (
        ("frd_ingest_refused_total", REFUSED, counters.refused),
        ("frd_http_refused_total", HTTP_REFUSED, counters.http_refused),
        ("frd_clock_refused_total", CLOCK_REASONS, counters.clock_refused),
        ("frd_evicted_total", EVICTED, evicted),
        ("frd_store_errors_total", STORES, counters.store_errors),
    ):
        for name in (*known, *counts):
            values[metric][label(name),] = counts.get(name, 0)
    for (target, result), count in counters.notifications.items():
        values["frd_notifications_total"][label(target), result] = count


def _add_cluster(values: Values, cluster: ClusterState) -> None:
    for metric, value in {
        "frd_replicas": len(cluster.view.replicas),
        "frd_cluster_connected": cluster.view.connected,
        "frd_cluster_durable": cluster.view.durable,
        "frd_cluster_sure": cluster.sure,
        "frd_fenced_total": cluster.fenced,
    }.items():
        values[metric][()] = value
    for state in CellState:
        values["frd_cells"][state.value,] = cluster.cells.get(state, 0)
    for why in (*TAKEOVERS, *cluster.takeovers):
        values["frd_takeovers_total"][label(why),] = cluster.takeovers.get(why, 0)


# -- labels and families -----------------------------------------------------------------------


def of_job(name: str, namespaces: Mapping[str, str]) -> Labels:
    """The values of `frd.service.metrics.table.JOB`."""
    return label(name), label(namespaces.get(name, "")), label(name)


def _namespaces(state: ServiceState, latest: Mapping[str, AttemptView]) -> Mapping[str, str]:
    """By job. After a restart its findings know more than its agents have said yet: with another
    label each alert would be sent again."""
    suspects = ((f.job, one.address) for f in state.lasting_findings() for one in f.suspects)
    known = {job: address.namespace for job, address in suspects if address and address.namespace}
    return known | {name: view.namespace for name, view in latest.items() if view.namespace}


def label(text: str) -> str:
    """`text` as a label value: valid UTF-8 of a bounded length."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_LABEL_CHARS else f"{clean[: MAX_LABEL_CHARS - 1]}…"


def _node_state(node: NodeView) -> str:
    if node.reporting:
        return "reporting"
    return "late" if node.connected else "disconnected"


def _merge(into: dict[Labels, Histogram], job: str, by_op: Mapping[str, Histogram]) -> None:
    for position, (op, histogram) in enumerate(by_op.items()):
        key = (job, label(op) if position < MAX_OPS else OTHER)
        known = into.get(key)
        into[key] = histogram if known is None else _sum(known, histogram)


def _sum(one: Histogram, other: Histogram) -> Histogram:
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Histogram(one.bounds, counts, one.total + other.total)


def _family(
    name: str, values: Mapping[Labels, float], histograms: Mapping[Labels, Histogram]
) -> Metric:
    spec = METRICS[name]
    family = spec.family(name, spec.help, labels=spec.labels)
    if isinstance(family, HistogramMetricFamily):
        for labels, histogram in histograms.items():
            bounds = (*map(repr, histogram.bounds), "+Inf")
            buckets = [*zip(bounds, map(float, accumulate(histogram.counts)), strict=True)]
            family.add_metric(labels, buckets, histogram.total)
    else:
        for labels, value in values.items():
            family.add_metric(labels, float(value))
    return family
