"""/metrics as a projection: one immutable `ServiceState` in, metric families out.

Nothing here counts or remembers, and no name is made up here (see `metric_table`). Labels are
bounded whatever users call their jobs and groups: of each job the newest attempt is shown, names
are cut to a length, groups and ops beyond a limit share one series, and no rank is a label but a
suspect's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from frd.model import Kind, Severity
from frd.service.clocks.pings import REASONS as CLOCK_REASONS
from frd.service.ingest.job_runs import REASON as JOB_NAME
from frd.service.metrics.table import MAX_SUSPECTS, METRICS
from frd.service.state import RANK_STATES, UNWATCHED, NodeView, ServiceState, unwatched
from frd.views import AttemptView, GroupView, Histogram
from frd.wire.messages import REASONS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_GROUPS: Final = 256
"""Distinct group labels of one job; the groups beyond share `OTHER`."""
MAX_OPS: Final = 64
"""Distinct op labels of one job; the ops beyond share `OTHER`."""
MAX_LABEL_CHARS: Final = 128
OTHER: Final = "(other)"
NODE_STATES: Final = ("reporting", "late", "disconnected")
EVICTED: Final = (
    *(
        "collectives",
        "rows",
        "mismatches",
        "attempts",
        "findings",
        "memory_series",
        "pauses",
    ),  # engine
    *("dumps", "journal_segments", "stored_findings"),
)
REFUSED: Final = (*REASONS, "aborted", "memory", JOB_NAME)
HTTP_REFUSED: Final = ("token", "role", "slow", "connections")
STORES: Final = ("findings", "journal", "dumps")

_PROCESS: Final = ProcessCollector(registry=None)
"""The ``process_*`` metrics of this very process."""

Samples: TypeAlias = Mapping[tuple[str, ...], float]


class StateCollector(Collector):
    """Projects whatever state is current when a scrape comes."""

    def __init__(self, state: Callable[[], ServiceState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        latest = state.latest_attempts()
        jobs = _jobs(state, latest)
        yield _family("frd_build_info", {(state.version,): 1})
        yield from _cluster(state, latest)
        yield from _groups(latest)
        yield from _findings(state, jobs)
        yield from _clocks(state.nodes)
        yield from _own_health(state)


def render(state: ServiceState) -> bytes:
    """The text that a scrape of `state` gets."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: state))
    registry.register(_PROCESS)
    return exposition.generate_latest(registry)


# -- the parts of the state ------------------------------------------------------------------


def _cluster(state: ServiceState, latest: Mapping[str, AttemptView]) -> Iterator[Metric]:
    """Nodes, agents and ranks of the newest attempt of every job."""
    nodes: Counter[tuple[str, ...]] = Counter()
    ranks: Counter[tuple[str, ...]] = Counter()
    expected: Counter[tuple[str, ...]] = Counter()
    reporting: Counter[tuple[str, ...]] = Counter()
    gaps: Counter[tuple[str, ...]] = Counter()
    unsynchronized: Counter[tuple[str, ...]] = Counter()
    conflicts: Counter[tuple[str, ...]] = Counter()
    for name, view in latest.items():
        job = label(name)
        nodes.update(dict.fromkeys(((job, word) for word in NODE_STATES), 0))
        ranks.update(dict.fromkeys(((job, word) for word in RANK_STATES), 0))
        conflicts[job,] += state.name_conflicts.get(name, 0)
        blind = unwatched(view, state.nodes)
        expected[job,] += 0
        seen = 0
        reporting[job,] += 0
        unsynchronized[job,] += 0
        gaps[job,] += view.gap_entries
        for rank in view.ranks:
            shown = UNWATCHED if rank.info.rank in blind else rank.status.state.value
            ranks[job, shown] += 1
        for node in state.nodes:
            if view.key in node.ranks:
                nodes[job, _node_state(node)] += 1
                seen += 1
                reporting[job,] += node.reporting and not view.ended
                unsynchronized[job,] += node.connected and not node.clock.is_synchronized
        if not view.ended:
            expected[job,] += state.expected_agents.get(name, seen)
    yield _family("frd_nodes", nodes)
    yield _family("frd_ranks", ranks)
    yield _family("frd_job_name_conflicts", conflicts)
    yield _family("frd_agents_expected", expected)
    yield _family("frd_agents_reporting", reporting)
    yield _family("frd_telemetry_gap_entries_total", gaps)
    yield _family("frd_nodes_unsynchronized", unsynchronized)


def _groups(latest: Mapping[str, AttemptView]) -> Iterator[Metric]:
    """Collectives by group label: sums of counts, the maximum of ages."""
    opened: Counter[tuple[str, ...]] = Counter()
    stalled: Counter[tuple[str, ...]] = Counter()
    matched: Counter[tuple[str, ...]] = Counter()
    age: dict[tuple[str, ...], float] = {}
    threshold: dict[tuple[str, ...], float] = {}
    skew: dict[tuple[str, ...], Histogram] = {}
    duration: dict[tuple[str, ...], Histogram] = {}
    for name, view in latest.items():
        job = label(name)
        for group, members in _by_label(view.groups).items():
            key = (job, group)
            opened[key] += sum(member.open_collectives for member in members)
            stalled[key] += sum(member.stalled_collectives for member in members)
            matched[key] += sum(member.matched for member in members)
            age[key] = max(age.get(key, 0.0), *(member.stall_s for member in members))
            threshold[key] = max(member.threshold_s for member in members)
        _merge(skew, job, view.skew)
        _merge(duration, job, view.duration)
    yield _family("frd_group_open_collectives", opened)
    yield _family("frd_stalled_collectives", stalled)
    yield _family("frd_stall_seconds", age)
    yield _family("frd_stall_threshold_seconds", threshold)
    yield _family("frd_collectives_matched_total", matched)
    yield _histograms("frd_collective_skew_seconds", skew)
    yield _histograms("frd_collective_duration_seconds", duration)


def _findings(state: ServiceState, jobs: Iterable[str]) -> Iterator[Metric]:
    opened: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    suspects: dict[tuple[str, ...], float] = {}
    since: dict[tuple[str, ...], float] = {}
    critical: dict[tuple[str, ...], float] = {}
    for name in jobs:
        for kind in Kind:
            opened[label(name), kind.value] += 0
            total[label(name), kind.value] += state.counters.findings.get((name, kind), 0)
    for finding in state.open_findings():
        job, kind = label(finding.job), finding.kind
        opened[job, kind.value] += 1
        since[job, kind.value, finding.id] = finding.opened_at / 1e9
        critical[job, kind.value, finding.id] = finding.severity is Severity.CRITICAL
        for suspect in finding.suspects[:MAX_SUSPECTS]:
            node, reason = label(suspect.node), suspect.reason.value
            suspects[job, kind.value, finding.id, str(suspect.rank), node, reason] = 1
    yield _family("frd_findings_open", opened)
    yield _family("frd_findings_total", total)
    yield _family("frd_suspect", suspects)
    yield _family("frd_finding_opened_timestamp_seconds", since)
    yield _family("frd_finding_critical", critical)


def _clocks(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    """Of a node that was rebooted, the clock that was heard of last."""
    offset: dict[tuple[str, ...], float] = {}
    uncertainty: dict[tuple[str, ...], float] = {}
    steps: Counter[tuple[str, ...]] = Counter()
    for node in sorted(nodes, key=lambda node: node.last_message_at):
        name = (label(node.node),)
        offset[name] = node.clock.offset_s
        if (uncertainty_s := node.clock.uncertainty_s) is not None:
            uncertainty[name] = uncertainty_s
        steps[name] += node.clock.steps
    yield _family("frd_clock_offset_seconds", offset)
    yield _family("frd_clock_uncertainty_seconds", uncertainty)
    yield _family("frd_clock_steps_total", steps)


def _own_health(state: ServiceState) -> Iterator[Metric]:
    counters = state.counters
    evicted = Counter(state.status_view.evicted) + Counter(counters.evicted)
    evaluated = state.evaluated_at or 0
    yield _family("frd_ingest_entries_total", {(): counters.entries})
    yield _family("frd_ingest_duplicate_entries_total", {(): counters.duplicates})
    yield _family(
        "frd_ingest_refused_total",
        _known((*REASONS, "aborted", "memory", JOB_NAME), counters.refused),
    )
    yield _family("frd_ingest_throttled_total", {(): counters.throttled})
    yield _family("frd_handshakes_failed_total", {(): counters.handshakes_failed})
    yield _family("frd_http_refused_total", _known(HTTP_REFUSED, counters.http_refused))
    yield _family("frd_clock_refused_total", _known(CLOCK_REASONS, counters.clock_refused))
    yield _family("frd_ingest_lag_seconds", {(): state.ingest_lag_s})
    yield _family("frd_evicted_total", _known(EVICTED, evicted))
    yield _family("frd_store_errors_total", _known(STORES, counters.store_errors))
    notifications: dict[tuple[str, ...], float] = {
        (label(target), result): number
        for (target, result), number in counters.notifications.items()
    }
    yield _family("frd_notifications_total", notifications)
    yield _family("frd_loop_lag_seconds", {(): state.loop_lag_s})
    yield _family("frd_last_evaluation_timestamp_seconds", {(): evaluated / 1e9})


# -- labels and families -----------------------------------------------------------------------


def label(text: str) -> str:
    """`text` as a label value: valid UTF-8 of a bounded length."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_LABEL_CHARS else f"{clean[: MAX_LABEL_CHARS - 1]}…"


def _jobs(state: ServiceState, latest: Mapping[str, AttemptView]) -> list[str]:
    """Jobs with an attempt or a remembered finding: a bounded set, in a stable order."""
    return sorted({*latest, *(finding.job for finding in state.status_view.findings)})


def _node_state(node: NodeView) -> str:
    if node.reporting:
        return "reporting"
    return "late" if node.connected else "disconnected"


def _by_label(groups: Iterable[GroupView]) -> dict[str, list[GroupView]]:
    """Groups by label, the first `MAX_GROUPS` labels by themselves."""
    found: defaultdict[str, list[GroupView]] = defaultdict(list)
    for group in groups:
        name = label(group.label)
        known = name in found or len(found) < MAX_GROUPS
        found[name if known else OTHER].append(group)
    return found


def _merge(
    into: dict[tuple[str, ...], Histogram], job: str, by_op: Mapping[str, Histogram]
) -> None:
    for position, (op, histogram) in enumerate(by_op.items()):
        key = (job, label(op) if position < MAX_OPS else OTHER)
        known = into.get(key)
        into[key] = histogram if known is None else _sum(known, histogram)


def _sum(one: Histogram, other: Histogram) -> Histogram:
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Histogram(one.bounds, counts, one.total + other.total)


def _known(names: Iterable[str], counts: Mapping[str, int]) -> Samples:
    """`counts` with a zero for every known name that has none."""
    return {(label(name),): counts.get(name, 0) for name in (*names, *counts)}


def _family(name: str, samples: Samples) -> Metric:
    spec = METRICS[name]
    family = spec.family(name, spec.help, labels=spec.labels)
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    for labels, value in samples.items():
        family.add_metric(labels, float(value))
    return family


def _histograms(name: str, samples: Mapping[tuple[str, ...], Histogram]) -> Metric:
    spec = METRICS[name]
    family = spec.family(name, spec.help, labels=spec.labels)
    assert isinstance(family, HistogramMetricFamily)
    for labels, histogram in samples.items():
        bounds = (*(repr(bound) for bound in histogram.bounds), "+Inf")
        running = accumulate(histogram.counts)
        buckets = [(bound, float(count)) for bound, count in zip(bounds, running, strict=True)]
        family.add_metric(labels, buckets, histogram.total)
    return family
