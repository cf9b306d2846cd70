"""Clocks and telemetry health: is frd itself healthy, so that "no findings" can be trusted?

The first row shows whether frd watches at all. Below are clocks, lag and resources of the service,
refused and lost data, and agents.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from scripts.dashboards.parts import Panel, dashboard, graph, number, once


def build() -> Dashboard:
    return dashboard(
        "frd-health",
        "frd / Clocks and telemetry health",
        "Health of frd itself: what it watches, clocks, lag, lost data.",
        all_jobs=True,
        panels=[*_watching(), *_clocks(), *_service(), *_losses(), *_agents()],
    )


def _increase(by: str, metric: str) -> str:
    return f"sum by ({by}) (increase({metric}[$__rate_interval]))"


def _own(metric: str) -> str:
    """The series of the service, not those of other scraped processes."""
    return f"({metric} and on (job, instance) frd_build_info)"


def _watching() -> list[Panel]:
    expected = once('frd_agents_expected{job=~"$job"}', "job")
    reporting = once('frd_agents_reporting{job=~"$job"}', "job")
    unsynchronized = once('frd_nodes_unsynchronized{job=~"$job"}', "job")
    return [
        number(
            "Service",
            "Version of the running service.",
            {"{{version}}": "max by (version) (frd_build_info)"},
            width=4,
            nothing="DOWN",
            name=True,
            runbook="FrdDown",
        ),
        number(
            "Runs for",
            "Time since the service's process started, of several replicas the youngest. Findings "
            "survive a restart.",
            {"": f"time() - max({_own('process_start_time_seconds')})"},
            width=4,
            unit="s",
            nothing="DOWN",
            runbook="FrdDown",
        ),
        number(
            "Last evaluation",
            "Time since the engine's last evaluation, of several replicas the one that is longest "
            "ago. The other panels are at least as old.",
            {"": "time() - min(frd_last_evaluation_timestamp_seconds > 0)"},
            width=4,
            unit="s",
            nothing="DOWN",
            bad_from=30,
            runbook="FrdBlind",
        ),
        number(
            "Agents silent",
            "Agents that host ranks of running jobs and have not reported recently.",
            {"": f"sum({expected}) - sum({reporting})"},
            width=3,
            bad_from=1,
            runbook="FrdBlind",
        ),
        number(
            "Nodes without a clock",
            "Connected nodes with an unknown clock: their times are not compared with other nodes.",
            {"": f"sum({unsynchronized})"},
            width=3,
            bad_from=1,
            runbook="FrdClockUnsynchronized",
        ),
        number(
            "Entries lost",
            "Entries lost before they reached the service, in the time range of the dashboard.",
            {"": 'sum(increase(frd_telemetry_gap_entries_total{job=~"$job"}[$__range]))'},
            width=3,
            bad_from=1,
            runbook="FrdTelemetryGap",
        ),
        number(
            "Failed writes",
            "Failed writes of findings, journal and dumps, in the time range of the dashboard.",
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
            "Bound on the error of a node's clock offset, the ten largest. frd does not order two "
            "events that are closer together than both uncertainties.",
            {"{{node}}": f"topk(10, {once('frd_clock_uncertainty_seconds', 'node')})"},
            width=8,
            unit="s",
            runbook="FrdClockUnsynchronized",
        ),
        graph(
            "Offset of clocks",
            "Absolute offset of a node's clock from the service's, the ten largest. frd corrects "
            "it; other programs of the cluster may not.",
            {"{{node}}": f"topk(10, {once('abs(frd_clock_offset_seconds)', 'node')})"},
            width=8,
            unit="s",
        ),
        graph(
            "Steps and refused times",
            "Steps of the nodes' wall clocks, and refused timestamps by reason.",
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
            "Entry rows of the ranks' recorders, per second; and those that an earlier agent had "
            "reported already.",
            {
                "entries": "sum(rate(frd_ingest_entries_total[$__rate_interval]))",
                "duplicates": "sum(rate(frd_ingest_duplicate_entries_total[$__rate_interval]))",
            },
            width=6,
            unit="ops",
        ),
        graph(
            "Lag",
            "Time from an agent's sending of a message to its processing, slowest recent message; "
            "and the delay of the service's event loop. Findings are delayed by as much.",
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
            "Processor time in cores (100% is one busy core), and open files, including sockets of "
            "agents, as a share of the limit of the process.",
            {
                "cores": "sum(" + _own("rate(process_cpu_seconds_total[$__rate_interval])") + ")",
                "open files": f"max({_own('process_open_fds')} / {_own('process_max_fds')})",
            },
            width=6,
            unit="percentunit",
        ),
        graph(
            "Memory of the service",
            "Resident memory of the process, of several replicas the largest; the limits of the "
            "service bound it.",
            {"resident": f"max({_own('process_resident_memory_bytes')})"},
            width=6,
            unit="bytes",
        ),
    ]


def _losses() -> list[Panel]:
    nodes = once('frd_nodes{job=~"$job"}', "job", "state")
    return [
        graph(
            "Nodes by state of their agent",
            "reporting: has reported recently. late: connected, but has not reported recently. "
            "disconnected: gone.",
            {"{{state}}": f"sum by (state) ({nodes})"},
            width=6,
            unit="none",
            stacked=True,
            runbook="FrdBlind",
        ),
        graph(
            "Entries lost",
            "Entries overwritten in a ring before an agent read them, or dropped from an outbox.",
            {"{{job}}": _increase("job", 'frd_telemetry_gap_entries_total{job=~"$job"}')},
            width=6,
            unit="none",
            runbook="FrdTelemetryGap",
        ),
        graph(
            "Dropped by limits",
            "Items dropped to stay within a limit of the service. For dumps, journal segments and "
            "stored findings that is normal retention; anything else is lost data.",
            {"{{what}}": _increase("what", "frd_evicted_total")},
            width=6,
            unit="none",
            runbook="FrdLimitReached",
        ),
        graph(
            "Refused and not delivered",
            "Refused or delayed streams and requests, by reason; and messages to webhooks that "
            "failed (these are repeated), were refused or dropped.",
            {
                "agents: {{reason}}": _increase("reason", "frd_ingest_refused_total"),
                "HTTP: {{reason}}": _increase("reason", "frd_http_refused_total"),
                "handshakes": "sum(increase(frd_handshakes_failed_total[$__rate_interval]))",
                "throttled": "sum(increase(frd_ingest_throttled_total[$__rate_interval]))",
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
            "Agents that Prometheus scrapes, and those of them with a stream to the service.",
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
            "Duration of an agent's poll, median and 99th percentile over all agents.",
            {
                "median": f"histogram_quantile(0.5, {polls})",
                "p99": f"histogram_quantile(0.99, {polls})",
            },
            width=6,
            unit="s",
        ),
        graph(
            "Silence of the NVIDIA driver",
            "How long a call of an agent has had no answer, the ten longest. Meanwhile the memory "
            "of that node's GPUs is not known.",
            {"{{instance}}": "topk(10, frd_agent_driver_silent_seconds)"},
            width=6,
            unit="s",
            runbook="FrdBlind",
        ),
        graph(
            "Ranks of agents",
            "Rank processes that agents watch, and suspects that they inspect in /proc.",
            {"watched": "sum(frd_agent_ranks)", "inspected": "sum(frd_agent_inspected_ranks)"},
            width=6,
            unit="none",
        ),
        graph(
            "Streams and clocks of agents",
            "Streams that agents opened, pings that the service answered, and steps of clocks.",
            {
                "streams": "sum(increase(frd_agent_streams_total[$__rate_interval]))",
                "pings": "sum(increase(frd_agent_clock_pongs_total[$__rate_interval]))",
                "steps": "sum(increase(frd_agent_clock_steps_total[$__rate_interval]))",
            },
            width=6,
            unit="none",
            runbook="FrdClockUnsynchronized",
        ),
        graph(
            "Questions of agents",
            "Dumps requested from ranks and questions to NCCL's RAS service; and files, traces and "
            "readings of processes that could not be used.",
            {
                "dumps: {{why}}": _increase("why", "frd_agent_dumps_total"),
                "RAS: {{result}}": _increase("result", "frd_agent_ras_questions_total"),
                "refused files: {{kind}}": _increase("kind", "frd_agent_refused_files_total"),
                "late readings": _increase("job", "frd_agent_inspection_timeouts_total"),
                "trace lines": _increase("job", "frd_agent_broken_trace_lines_total"),
            },
            width=6,
            unit="none",
        ),
    ]
