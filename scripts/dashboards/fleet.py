"""Fleet: all jobs. Which jobs hang, open findings, unwatched jobs, nearly full memory.

For the operators of a cluster. The name of a job links to its overview.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from scripts.dashboards.parts import Column, Panel, dashboard, findings, graph, jobs, number, once

OF = '{job=~"$job"}'
RANKS = 'sum(max by (job, state) (frd_ranks{job=~"$job"%s}))'
EXPECTED = once(f"frd_agents_expected{OF}", "job")
REPORTING = once(f"frd_agents_reporting{OF}", "job")
CRITICAL = once(f"frd_finding_critical{OF}", "job", "finding")
NOT_WATCHED = once(f"frd_job_name_conflicts{OF}", "job")
GPU_SHARE = (
    "max by (job) (frd_gpu_memory_used_bytes / frd_gpu_memory_total_bytes "
    f"* on (instance, gpu) group_right () (frd_rank_gpu_memory_bytes{OF} >= bool 0))"
)
"""By job: the share of memory in use on its fullest device."""


def build() -> Dashboard:
    return dashboard(
        "frd-fleet",
        "frd / Fleet",
        "All training jobs: which jobs hang, open findings, which jobs are watched.",
        all_jobs=True,
        panels=[*_state(), *_tables(), *_history()],
    )


def _state() -> list[Panel]:
    return [
        number(
            "Jobs running",
            "Jobs whose newest attempt has not ended.",
            {"": f"count({EXPECTED} > 0)"},
            width=4,
        ),
        number(
            "Jobs that hang",
            "Jobs with a collective older than its group's threshold.",
            {"": f"count(max by (job) (frd_stall_seconds{OF}) > 0)"},
            width=4,
            bad_from=1,
            runbook="FrdCollectiveStalled",
        ),
        number(
            "Critical findings",
            "Open findings that have lasted; other open findings are warnings.",
            {"": f"sum({CRITICAL})"},
            width=4,
            bad_from=1,
        ),
        number(
            "Ranks alive",
            "Ranks whose process runs and whose recorder answers, out of all ranks seen.",
            {"alive": RANKS % ', state="live"', "seen": RANKS % ""},
            width=4,
            runbook="FrdRankLost",
        ),
        number(
            "Agents silent",
            "Agents that host ranks of running jobs and have not reported recently.",
            {"": f"sum({EXPECTED}) - sum({REPORTING})"},
            width=4,
            bad_from=1,
            runbook="FrdBlind",
        ),
        number(
            "Jobs not watched",
            "Running jobs with the name of another running job: frd watches only the first.",
            {"": f"sum({NOT_WATCHED})"},
            width=4,
            bad_from=1,
        ),
    ]


def _tables() -> list[Panel]:
    def ranks(state: str) -> str:
        return once(f'frd_ranks{{job=~"$job", state="{state}"}}', "job")

    none = f"0 * {EXPECTED}"
    found = once(f"frd_findings_open{OF}", "job", "kind")
    columns = {
        "hangs for": Column(f"max by (job) (frd_stall_seconds{OF})", "s", 0.001),
        "critical": Column(f"sum by (job) ({CRITICAL}) or on (job) {none}", bad_from=1),
        "findings": Column(f"sum by (job) ({found})", bad_from=1),
        "live": Column(ranks("live")),
        "silent": Column(ranks("silent"), bad_from=1),
        "unwatched": Column(ranks("unwatched"), bad_from=1),
        "exited": Column(ranks("exited"), bad_from=1),
        "finished": Column(ranks("finished")),
        "agents": Column(REPORTING),
        "expected": Column(EXPECTED),
        "not watched": Column(NOT_WATCHED, bad_from=1),
        "fullest GPU": Column(GPU_SHARE, "percentunit", 0.95),
    }
    return [
        jobs(
            "Jobs",
            "The oldest stall, open findings, ranks by state (live to finished), agents that "
            "report and that are expected, running jobs of the same name that are not watched, "
            "and the fullest of the job's GPUs. A job's name leads to its overview.",
            columns,
            width=24,
            height=10,
            nothing="no job is known",
            worst="hangs for",
        ),
        findings(
            "Open findings",
            "Of all jobs: one row for each suspect, or for a finding without a suspect.",
            'job=~"$job"',
            width=24,
            height=9,
            nothing="no finding is open",
            with_job=True,
        ),
    ]


def _history() -> list[Panel]:
    rate = f"rate(frd_collectives_matched_total{OF}[$__rate_interval])"
    return [
        graph(
            "Jobs that hang",
            "The age of each job's oldest stalled collective, the ten worst.",
            {"{{job}}": f"topk(10, max by (job) (frd_stall_seconds{OF}) > 0)"},
            width=6,
            unit="s",
            nothing="no job hangs",
            runbook="FrdCollectiveStalled",
        ),
        graph(
            "Ranks by state",
            "Of all jobs. unwatched: no agent reports the rank, so its state is unknown.",
            {"{{state}}": f"sum by (state) ({once(f'frd_ranks{OF}', 'job', 'state')})"},
            width=6,
            unit="none",
            stacked=True,
            runbook="FrdRankLost",
        ),
        graph(
            "Collectives completed",
            "Collectives a second that all members completed, in the ten busiest jobs. Zero while "
            "a job hangs.",
            {"{{job}}": f"topk(10, sum by (job) ({rate}))"},
            width=6,
            unit="ops",
        ),
        graph(
            "Fullest GPU",
            "Memory in use by all processes, as a share of the device: the ten fullest jobs.",
            {"{{job}}": f"topk(10, {GPU_SHARE})"},
            width=6,
            unit="percentunit",
            nothing="no GPU is known",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Incidents by kind",
            "Findings that opened in the seven days before; and changes of open ones that name a "
            "rank no more, because a late answer cleared it.",
            {
                "{{kind}}": f"sum by (kind) (increase(frd_findings_total{OF}[7d])) > 0",
                "corrected": "sum(increase(frd_findings_corrected_total[7d]))",
            },
            width=12,
            unit="none",
            nothing="no finding",
        ),
        graph(
            "Agents by version",
            "Agents that Prometheus scrapes, by their release of frd.",
            {"{{version}}": "count by (version) (frd_agent_build_info)"},
            width=12,
            unit="none",
            stacked=True,
            nothing="no agent is scraped",
        ),
    ]
