"""Cluster: several replicas that share the jobs. Who owns how much, and is each sure of it?

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
        "Replicas of frd that share the jobs: cells, takeovers, load.",
        all_jobs=True,
        panels=[*_state(), *_cells(), *_load()],
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
            "Cells without an owner, or whose new owner still reads what the former one stored. No "
            "replica watches their jobs meanwhile.",
            {"": _unowned()},
            width=4,
            nothing="no cluster",
            bad_from=1,
            runbook="FrdCellUnowned",
        ),
        number(
            "Replicas unsure",
            "Replicas that do not know whether they still have their jobs, because NATS does not "
            "answer them: they export and send no finding.",
            {"": "sum(frd_cluster_sure == bool 0)"},
            width=4,
            nothing="no cluster",
            bad_from=1,
            runbook="FrdClusterUnsure",
        ),
        number(
            "Not durable",
            "1 if the NATS servers confirm writes before they are on disk: set sync_interval to "
            "always.",
            {"": "max(frd_cluster_durable == bool 0)"},
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
            "Cells that a replica lost because another one had claimed them, in the time range of "
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
            "Cells without an owner, as the worst view has it; taken over, but what the former "
            "owner stored is not read yet; and about to be handed over.",
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
            "no other replica had it. fenced: the former owner found another one's claim.",
            {
                "{{why}}": f"sum by (why) (increase(frd_takeovers_total{_RATE}))",
                "fenced": f"sum(increase(frd_fenced_total{_RATE}))",
            },
            width=8,
            unit="none",
            nothing="no cluster",
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
