"""Cluster: several replicas that share the jobs. Who owns how much, and does the log keep up?

For a service without a cluster it is empty. The first row shows whether every job is watched. Each
replica exports its own view, so the worst view is shown.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from scripts.dashboards.parts import Panel, dashboard, graph, number

_RATE = "[$__rate_interval]"


def build() -> Dashboard:
    return dashboard(
        "frd-cluster",
        "frd / Cluster",
        "Replicas of frd that share the jobs: cells, takeovers, the log, load.",
        all_jobs=True,
        panels=[*_state(), *_cells(), *_log(), *_load()],
    )


def _own(metric: str) -> str:
    """The series of replicas, not those of other scraped processes."""
    return f"({metric} and on (job, instance) frd_replicas)"


def _unowned() -> str:
    """As in the rule of `FrdCellUnowned`."""
    cells = 'sum by (instance) (frd_cells{state=~"unowned|taking_over"})'
    return f"max({cells} and on (instance) frd_cluster_connected == 1)"


def _state() -> list[Panel]:
    return [
        number(
            "Replicas",
            "Living replicas, as the replica that knows of the fewest sees them.",
            {"": "min(frd_replicas)"},
            width=4,
            nothing="no cluster",
        ),
        number(
            "Cells not watched",
            "Cells without an owner, or whose new owner still reads their log. No replica watches "
            "their jobs meanwhile.",
            {"": _unowned()},
            width=4,
            nothing="no cluster",
            bad_from=1,
            runbook="FrdCellUnowned",
        ),
        number(
            "Replicas without NATS",
            "Replicas to which the NATS servers do not answer.",
            {"": "sum(frd_cluster_connected == bool 0)"},
            width=4,
            nothing="no cluster",
            bad_from=1,
            runbook="FrdLogSlow",
        ),
        number(
            "Log not durable",
            "1 if the NATS servers confirm writes before they are on disk: set sync_interval to "
            "always.",
            {"": "max(frd_log_durable == bool 0)"},
            width=4,
            nothing="no cluster",
            bad_from=1,
        ),
        number(
            "Takeovers",
            "Cells that changed their owner, in the time range of the dashboard.",
            {"": 'sum(increase(frd_takeovers_total{why!="start"}[$__range]))'},
            width=4,
            nothing="no cluster",
        ),
        number(
            "Fenced",
            "Cells that a replica lost because their log refused its append, in the time range of "
            "the dashboard: the replica had been taken for dead.",
            {"": "sum(increase(frd_fenced_total[$__range]))"},
            width=4,
            nothing="no cluster",
        ),
    ]


def _cells() -> list[Panel]:
    return [
        graph(
            "Cells by owner",
            "Cells that each replica owns; 64 together, but for takeovers.",
            {"{{instance}}": 'max by (instance) (frd_cells{state="owned"})'},
            width=8,
            unit="none",
            stacked=True,
            nothing="no cluster",
            runbook="FrdCellUnowned",
        ),
        graph(
            "Cells on the move",
            "Cells without an owner, as the worst view has it; taken over, but their log is not "
            "read yet; and about to be handed over.",
            {
                "unowned": 'max(frd_cells{state="unowned"})',
                "taking over": 'sum(frd_cells{state="taking_over"})',
                "draining": 'sum(frd_cells{state="draining"})',
            },
            width=8,
            unit="none",
            nothing="no cluster",
            runbook="FrdCellUnowned",
        ),
        graph(
            "Takeovers by reason",
            "dead: the owner's heartbeats ended. released: the owner handed the cell over. start: "
            "no other replica had it. fenced: a log refused its former owner.",
            {
                "{{why}}": f"sum by (why) (increase(frd_takeovers_total{_RATE}))",
                "fenced": f"sum(increase(frd_fenced_total{_RATE}))",
            },
            width=8,
            unit="none",
            nothing="no cluster",
        ),
    ]


def _log() -> list[Panel]:
    return [
        graph(
            "Slowest append",
            "Duration of each replica's slowest recent append to a log; while one waits, its age. "
            "An election among the NATS servers takes up to 9 s.",
            {"{{instance}}": "max by (instance) (frd_log_append_seconds)"},
            width=12,
            unit="s",
            nothing="no cluster",
            runbook="FrdLogSlow",
        ),
        graph(
            "Not yet in the log",
            "Input that a replica has accepted and no log has stored yet: agents keep it.",
            {"{{instance}}": "max by (instance) (frd_log_unacked_bytes)"},
            width=12,
            unit="bytes",
            nothing="no cluster",
            runbook="FrdLogSlow",
        ),
    ]


def _load() -> list[Panel]:
    rate = f"rate(process_cpu_seconds_total{_RATE})"
    return [
        graph(
            "Entries by replica",
            "Entry rows of the ranks' recorders, per second.",
            {
                "{{instance}}": (
                    f"sum by (instance) ({_own(f'rate(frd_ingest_entries_total{_RATE})')})"
                )
            },
            width=6,
            unit="ops",
            nothing="no cluster",
        ),
        graph(
            "Processor by replica",
            "In cores. One core does the matching: a replica above 80% needs a further replica.",
            {"{{instance}}": f"sum by (instance) ({_own(rate)})"},
            width=6,
            unit="percentunit",
            nothing="no cluster",
        ),
        graph(
            "Memory by replica",
            "Resident memory. A replica that takes over the jobs of another needs that much more.",
            {"{{instance}}": f"max by (instance) ({_own('process_resident_memory_bytes')})"},
            width=6,
            unit="bytes",
            nothing="no cluster",
        ),
        graph(
            "Delay of the event loop",
            "How late each replica's event loop wakes. Above 5 s it stops its heartbeats, and "
            "others take its cells over.",
            {"{{instance}}": f"max by (instance) ({_own('frd_loop_lag_seconds')})"},
            width=6,
            unit="s",
            nothing="no cluster",
            runbook="FrdIngestLagging",
        ),
    ]
