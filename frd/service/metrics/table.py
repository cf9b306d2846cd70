"""The metrics of the service by name; tests check rules, dashboards and docs against this table.

`frd.service.metrics.collector` computes the values. Names follow the Prometheus conventions: base
units, ``_total`` for counters, no sequence number, size or stack as a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

Family: TypeAlias = type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
MAX_SUSPECTS: Final = 16
"""Series of `frd_suspect` for one finding, and of `frd_memory_rise` for one job."""
JOB: Final = ("job", "namespace", "training_job")
"""The labels of series from which alerts about a job are made. Some set-ups of Prometheus overwrite
`job`, which is the training job, too; `namespace` is that of its pods, and empty elsewhere."""
OF_FINDINGS: Final = ("frd_finding", "frd_suspect", "frd_memory_rise")
"""What the names of the series of ``/metrics/findings`` begin with."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: its kind, labels and HELP text."""

    family: Family
    labels: tuple[str, ...]
    help: str


_gauge = partial(Spec, GaugeMetricFamily)
_counter = partial(Spec, CounterMetricFamily)
_histogram = partial(Spec, HistogramMetricFamily)

CLUSTER_METRICS: Final[dict[str, Spec]] = {
    "frd_replicas": _gauge((), "Living replicas of the cluster that this replica knows of."),
    "frd_cluster_connected": _gauge(
        (), "1 while the servers of the cluster answer this replica, otherwise 0."
    ),
    "frd_cluster_durable": _gauge(
        (), "1 if the servers of the cluster sync every write to disk before they confirm it."
    ),
    "frd_cluster_sure": _gauge(
        (),
        "1 while no other replica can have taken over a job of this one. Otherwise 0: this replica "
        "then acknowledges nothing to agents, and exports and sends no finding.",
    ),
    "frd_cells": _gauge(
        ("state",), "Cells of the cluster by state, as this replica sees them; 64 in all."
    ),
    "frd_takeovers_total": _counter(
        ("why",),
        "Cells that this replica took over: no other replica had them (`start`), their owner's "
        "heartbeats ended (`dead`), or their owner handed them over (`released`).",
    ),
    "frd_fenced_total": _counter(
        (), "Cells that this replica lost because another one had claimed them."
    ),
}
"""Exported by a replica of a cluster only."""

METRICS: Final[dict[str, Spec]] = {
    "frd_build_info": _gauge(("version",), "Version of the running service; always 1."),
    "frd_nodes": _gauge(
        ("job", "state"),
        "Nodes that host ranks of the job's newest attempt, by state of their agent.",
    ),
    "frd_ranks": _gauge(
        ("job", "state"),
        "Ranks of the job's newest attempt, by the last reported state; `unwatched` for a rank "
        "that has not ended and has no reporting agent.",
    ),
    "frd_refused_ranks": _gauge(
        JOB,
        "Ranks that run and are not watched: a limit of the service leaves no room for them, or "
        "another running job has the same name.",
    ),
    "frd_unread_ranks": _gauge(
        JOB,
        "Watched ranks whose collectives cannot be read, with the reason in `frd findings`.",
    ),
    "frd_job_name_conflicts": _gauge(
        JOB, "Running jobs that are not watched because another running job has the same name."
    ),
    "frd_job_failed": _gauge(
        JOB, "1 if the job died by itself and did not start again, for a day; otherwise 0."
    ),
    "frd_group_open_collectives": _gauge(
        ("job", "group"),
        "Collectives that some rank joined and some expected rank has not completed.",
    ),
    "frd_stalled_collectives": _gauge(
        ("job", "group"), "Open collectives older than the group's stall threshold."
    ),
    "frd_stall_seconds": _gauge(
        ("job", "group"), "Age of the oldest stalled collective, 0 when none is stalled."
    ),
    "frd_stall_threshold_seconds": _gauge(
        ("job", "group"), "Stall threshold of the group, learned from the job's pauses."
    ),
    "frd_findings_open": _gauge((*JOB, "kind"), "Findings that are open now."),
    "frd_findings_closed_by_hand": _gauge(
        (*JOB, "kind"), "Findings that were closed by hand and go on: their trouble lasts."
    ),
    "frd_findings_total": _counter((*JOB, "kind"), "Findings opened since the service started."),
    "frd_findings_corrected_total": _counter(
        (), "Changes of open findings that name a rank no more, because a late answer cleared it."
    ),
    "frd_suspect": _gauge(
        (*JOB, "kind", "finding", "rank", "node", "reason", "waits_for"),
        "1 for each first cause that an open finding names with the highest confidence, at most "
        f"{MAX_SUSPECTS} a finding, with the kind of thing that it waits for, if that is known.",
    ),
    "frd_finding_opened_timestamp_seconds": _gauge(
        (*JOB, "kind", "finding"), "When each open finding was opened, Unix time."
    ),
    "frd_finding_critical": _gauge(
        (*JOB, "kind", "finding"),
        "1 for each open finding that is critical, 0 for an open finding that is a warning.",
    ),
    "frd_finding_info": _gauge(
        ("job", "finding", "headline", "effect"),
        "1 for each open finding, with its cause and what it holds up as text for alerts.",
    ),
    "frd_finding_silenced": _gauge(
        ("job", "finding"), "1 for each open finding that a person has silenced until later."
    ),
    "frd_memory_rise": _gauge(
        ("job", "rank", "node", "kind"),
        "Bytes by which memory of a rank is above its usual level, by kind of memory, of ranks "
        f"that rose first and whose memory has not fallen back: the {MAX_SUSPECTS} largest of a "
        "job.",
    ),
    "frd_collectives_matched_total": _counter(
        ("job", "group"), "Collectives completed by every member of the group."
    ),
    "frd_collective_skew_seconds": _histogram(
        ("job", "op"), "Time between the first and the last member joining a collective."
    ),
    "frd_collective_duration_seconds": _histogram(
        ("job", "op"),
        "Time between the first member joining a collective and its last known completion.",
    ),
    "frd_collective_transfer_seconds": _histogram(
        ("job", "op"),
        "Time between the last member joining a collective and its last known completion.",
    ),
    "frd_collectives_untimed_total": _counter(
        ("job",),
        "Matched collectives without a duration: a member's recorder does not time their end.",
    ),
    "frd_clock_offset_seconds": _gauge(("node",), "Service clock minus node clock, estimated."),
    "frd_clock_uncertainty_seconds": _gauge(
        ("node",), "Half the width of the offset's interval, for nodes with a known clock."
    ),
    "frd_clock_steps_total": _counter(
        ("node",), "Steps of the node's wall clock since its agent started."
    ),
    "frd_clock_refused_total": _counter(
        ("reason",), "Refused timestamps of clock streams, and refused clock streams."
    ),
    "frd_nodes_unsynchronized": _gauge(
        ("job",), "Connected nodes with ranks of the job's newest attempt and an unknown clock."
    ),
    "frd_node_unreadable": _gauge(
        ("node",),
        "1 for a node whose agent may not read what ranks publish, or does not watch all of them.",
    ),
    "frd_agents_expected": _gauge(
        JOB,
        "Agents that are connected for the job's newest attempt, or host ranks of it that have not "
        "ended; 0 once it ended, or all of these agents were stopped.",
    ),
    "frd_agents_reporting": _gauge(
        JOB, "Expected agents that are connected and have reported recently."
    ),
    "frd_ingest_entries_total": _counter((), "Entry rows applied; duplicates do not count."),
    "frd_ingest_duplicate_entries_total": _counter(
        (), "Duplicate entry rows, already reported by an earlier agent process."
    ),
    "frd_ingest_refused_total": _counter(
        ("reason",),
        "Streams that failed: refused because of an invalid message, or aborted before their end; "
        "`memory`: impossible memory samples; `entries`: rows that contradict what their rank has "
        "reported, or of a rank outside the group; `job_name`: rank processes of a job whose name "
        "another running job has.",
    ),
    "frd_ingest_throttled_total": _counter(
        (), "Messages after which a stream had to wait because it exceeded its rate limit."
    ),
    "frd_handshakes_failed_total": _counter(
        (), "Connections to the agents' port whose TLS handshake failed (lower bound)."
    ),
    "frd_http_refused_total": _counter(
        ("reason",),
        "HTTP requests without the required token or role, and connections that the service "
        "closed.",
    ),
    "frd_ingest_lag_seconds": _gauge(
        (), "Time from the agent's sending of a message to its processing, slowest recent message."
    ),
    "frd_telemetry_gap_entries_total": _counter(
        JOB,
        "Entries lost to overruns and resets of recorders, full outboxes, or while no agent read.",
    ),
    "frd_evicted_total": _counter(
        ("what",), "Items dropped to stay within a limit of the service, by kind."
    ),
    "frd_store_errors_total": _counter(("store",), "Writes to the data directory that failed."),
    "frd_notifications_total": _counter(
        ("target", "result"),
        "Messages to the webhooks of `[[notify]]`: `sent`, `failed` attempts that are repeated, "
        "`refused` by the receiver, `dropped` because the queue was full or they were too old.",
    ),
    "frd_loop_lag_seconds": _gauge((), "Delay of the service's event loop, largest recent value."),
    "frd_last_evaluation_timestamp_seconds": _gauge(
        (), "Time of the engine's last evaluation, Unix time; 0 before the first."
    ),
    **CLUSTER_METRICS,
}
