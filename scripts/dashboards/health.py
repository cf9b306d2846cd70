"""Clocks and telemetry health: is frd itself healthy, so that "no findings" can be trusted.

The first row says whether it watches at all; then how well it knows the clocks of nodes, how far it
is behind and what it uses, what it refused or lost, and how its agents do.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from scripts.dashboards.parts import Panel, dashboard, graph, number


def build() -> Dashboard:
    return dashboard(
        "frd-health",
        "frd / Clocks and telemetry health",
        "frd about itself: does it watch, know the clocks, keep up, and what has it lost.",
        all_jobs=True,
        panels=[*_watching(), *_clocks(), *_service(), *_losses(), *_agents()],
    )


def _increase(by: str, metric: str) -> str:
    return f"sum by ({by}) (increase({metric}[$__rate_interval]))"


def _own(metric: str) -> str:
    """Of all processes that Prometheus scrapes, the service's."""
    return f"({metric} and on (job, instance) frd_build_info)"


def _watching() -> list[Panel]:
    expected = 'sum(frd_agents_expected{job=~"$job"})'
    reporting = 'sum(frd_agents_reporting{job=~"$job"})'
    return [
        number(
            "Service",
            "The version that answers Prometheus.",
            {"{{version}}": "max by (version) (frd_build_info)"},
            width=4,
            nothing="DOWN",
            name=True,
            runbook="FrdDown",
        ),
        number(
            "Runs for",
            "Since the service's process started. Findings survive a restart.",
            {"": f"time() - max({_own('process_start_time_seconds')})"},
            width=4,
            unit="s",
            nothing="DOWN",
            runbook="FrdDown",
        ),
        number(
            "Last evaluation",
            "Time since the engine's last evaluation. The other panels are as old.",
            {"": "time() - max(frd_last_evaluation_timestamp_seconds)"},
            width=4,
            unit="s",
            nothing="DOWN",
            bad_from=30,
            runbook="FrdBlind",
        ),
        number(
            "Agents silent",
            "Agents that host ranks of running jobs and have not reported recently.",
            {"": f"{expected} - {reporting}"},
            width=3,
            bad_from=1,
            runbook="FrdBlind",
        ),
        number(
            "Nodes without a clock",
            "Connected nodes whose clock is not known: their times are not compared with others'.",
            {"": 'sum(frd_nodes_unsynchronized{job=~"$job"})'},
            width=3,
            bad_from=1,
            runbook="FrdClockUnsynchronized",
        ),
        number(
            "Entries lost",
            "In the time shown, before they reached the service.",
            {"": 'sum(increase(frd_telemetry_gap_entries_total{job=~"$job"}[$__range]))'},
            width=3,
            bad_from=1,
            runbook="FrdTelemetryGap",
        ),
        number(
            "Failed writes",
            "Of findings, journal and dumps, in the time shown.",
            {"": "sum(increase(frd_store_errors_total[$__range]))"},
            width=3,
            bad_from=1,
            runbook="FrdStoreFailing",
        ),
    ]


def _clocks() -> list[Panel]:
    return [
        graph(
            "Uncertainty of clocks",
            "Half the width of the interval of a node's offset, the ten worst. Of two "
            "events closer together than both uncertainties, frd does not say which came first.",
            {"{{node}}": "topk(10, frd_clock_uncertainty_seconds)"},
            width=8,
            unit="s",
            runbook="FrdClockUnsynchronized",
        ),
        graph(
            "Offset of clocks",
            "Between the service's clock and a node's, without sign, the ten largest. frd corrects "
            "it; other programs of the cluster may not.",
            {"{{node}}": "topk(10, abs(frd_clock_offset_seconds))"},
            width=8,
            unit="s",
        ),
        graph(
            "Steps and refused times",
            "Clocks that were set while being watched, and timestamps that were refused.",
            {
                "steps": "sum(increase(frd_clock_steps_total[$__rate_interval]))",
                "refused: {{reason}}": _increase("reason", "frd_clock_refused_total"),
            },
            width=8,
            unit="none",
            runbook="FrdClockUnsynchronized",
        ),
    ]


def _service() -> list[Panel]:
    return [
        graph(
            "Entries applied",
            "Rows of the ranks' recorders, in a second.",
            {"entries": "sum(rate(frd_ingest_entries_total[$__rate_interval]))"},
            width=6,
            unit="ops",
        ),
        graph(
            "Behind",
            "From an agent's sending to the service's processing, the slowest recent message; and "
            "how late the service's event loop wakes. Findings come as much later.",
            {
                "messages": "max(frd_ingest_lag_seconds)",
                "event loop": "max(frd_loop_lag_seconds)",
            },
            width=6,
            unit="s",
            runbook="FrdIngestLagging",
        ),
        graph(
            "Processor and files of the service",
            "Processor time in cores: 100% is one core busy. And open files, sockets of agents "
            "among them, as a share of what the process may open.",
            {
                "cores": "sum(" + _own("rate(process_cpu_seconds_total[$__rate_interval])") + ")",
                "open files": f"max({_own('process_open_fds')} / {_own('process_max_fds')})",
            },
            width=6,
            unit="percentunit",
        ),
        graph(
            "Memory of the service",
            "Resident memory of its process. It is bounded.",
            {"resident": f"max({_own('process_resident_memory_bytes')})"},
            width=6,
            unit="bytes",
        ),
    ]


def _losses() -> list[Panel]:
    return [
        graph(
            "Nodes by state of their agent",
            "reporting: heard of lately. late: connected, but not. disconnected: gone.",
            {"{{state}}": 'sum by (state) (frd_nodes{job=~"$job"})'},
            width=6,
            unit="none",
            stacked=True,
            runbook="FrdBlind",
        ),
        graph(
            "Entries lost",
            "Overwritten in a ring before they were read, or dropped from a full outbox.",
            {"{{job}}": _increase("job", 'frd_telemetry_gap_entries_total{job=~"$job"}')},
            width=6,
            unit="none",
            runbook="FrdTelemetryGap",
        ),
        graph(
            "Forgotten",
            "Dropped to stay within a limit of the service. Dumps, journal segments and findings "
            "go by age and size, as they should; of the rest nothing should.",
            {"{{what}}": _increase("what", "frd_evicted_total")},
            width=6,
            unit="none",
            runbook="FrdLimitReached",
        ),
        graph(
            "Refused and not delivered",
            "Streams and requests that were refused or delayed, by reason. And messages "
            "to webhooks that failed (they are repeated), were refused or dropped.",
            {
                "agents: {{reason}}": _increase("reason", "frd_ingest_refused_total"),
                "HTTP: {{reason}}": _increase("reason", "frd_http_refused_total"),
                "handshakes": "sum(increase(frd_handshakes_failed_total[$__rate_interval]))",
                "made to wait": "sum(increase(frd_ingest_throttled_total[$__rate_interval]))",
                "webhook {{target}}: {{result}}": _increase(
                    "target, result", 'frd_notifications_total{result!="sent"}'
                ),
            },
            width=6,
            unit="none",
        ),
    ]


def _agents() -> list[Panel]:
    polls = "sum by (le) (rate(frd_agent_poll_seconds_bucket[$__rate_interval]))"
    return [
        graph(
            "Agents scraped",
            "By Prometheus, and how many of them have a stream to the service.",
            {
                "scraped": "count(frd_agent_connected)",
                "connected": "sum(frd_agent_connected)",
            },
            width=6,
            unit="none",
            runbook="FrdBlind",
        ),
        graph(
            "Outboxes",
            "Transitions that wait for the service's acknowledgement, the ten fullest agents.",
            {"{{instance}}": "topk(10, frd_agent_outbox_rows)"},
            width=6,
            unit="none",
        ),
        graph(
            "Dropped by agents",
            "Data that will never reach the service, by reason.",
            {"{{reason}}": _increase("reason", "frd_agent_dropped_rows_total")},
            width=6,
            unit="none",
            runbook="FrdTelemetryGap",
        ),
        graph(
            "Poll of all ranks",
            "How long an agent's poll takes, median and 99th percentile over all agents.",
            {
                "median": f"histogram_quantile(0.5, {polls})",
                "p99": f"histogram_quantile(0.99, {polls})",
            },
            width=6,
            unit="s",
        ),
    ]
