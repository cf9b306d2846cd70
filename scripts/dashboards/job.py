"""Job overview: does the job hang, since when, because of which rank, and which groups wait.

The first row is for an engineer who was just woken, the second names the first cause. Below are the
states of ranks, stragglers, the pace of collectives, and the memory that is left.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from scripts.dashboards.parts import JOB_UID, Panel, dashboard, findings, graph, number, once

_OF = '{job="$job"}'


def build() -> Dashboard:
    return dashboard(
        JOB_UID,
        "frd / Job overview",
        "One training job: does it hang, the first cause, its pace, memory left.",
        all_jobs=False,
        panels=[*_state(), *_incident(), *_progress(), *_collectives(), *_memory()],
    )


def _state() -> list[Panel]:
    stall = 'max(frd_stall_seconds{job="$job"})'
    return [
        number(
            "Stuck for",
            "Age of the oldest collective beyond its group's threshold; 0 when there is none.",
            {"": stall},
            width=5,
            unit="s",
            nothing="no such job",
            bad_from=0.001,
            runbook="FrdCollectiveStalled",
        ),
        number(
            "Stuck since",
            "When the first rank joined that collective.",
            {"": f"(time() - ({stall} > 0)) * 1000"},
            width=6,
            unit="dateTimeAsIso",
            nothing="not stuck",
        ),
        number(
            "Open findings",
            "Incidents that are open now. `frd findings --job $job` has the evidence.",
            {"": f"sum({once('frd_findings_open' + _OF, 'kind')})"},
            width=4,
            bad_from=1,
        ),
        number(
            "Ranks alive",
            "Ranks whose process runs and whose recorder answers, out of all ranks seen.",
            {
                "alive": 'max(frd_ranks{job="$job", state="live"})',
                "seen": f"sum({once('frd_ranks' + _OF, 'state')})",
            },
            width=5,
            runbook="FrdRankLost",
        ),
        number(
            "Agents reporting",
            "The state of ranks on silent nodes is unknown; they may be the cause.",
            {
                "reporting": 'max(frd_agents_reporting{job="$job"})',
                "expected": 'max(frd_agents_expected{job="$job"})',
            },
            width=4,
            runbook="FrdBlind",
        ),
    ]


def _incident() -> list[Panel]:
    stall = once("frd_stall_seconds" + _OF, "group")
    return [
        findings(
            "First causes",
            "The ranks that open findings name, by reason; a finding that names none has a row "
            "without a rank. All other ranks that wait are victims. `frd findings --job $job` "
            "shows the line of the program of each rank.",
            'job="$job"',
            width=14,
            nothing="no finding is open",
            runbook="FrdCollectiveStalled",
        ),
        graph(
            "Groups that wait",
            "How long each group has waited for its oldest stalled collective, the ten worst, and "
            "the longest wait that is no stall in them, which frd learns from the job's pauses.",
            {
                "{{group}}": f"topk(10, {stall} > 0)",
                "{{group}} threshold": (
                    f"{once('frd_stall_threshold_seconds' + _OF, 'group')} "
                    f"and topk(10, {stall} > 0)"
                ),
            },
            width=10,
            unit="s",
            nothing="no group waits",
            runbook="FrdCollectiveStalled",
        ),
    ]


def _progress() -> list[Panel]:
    critical = once("frd_finding_critical" + _OF, "kind", "finding")
    return [
        graph(
            "Ranks by state",
            "live: its recorder answers. silent: the process exists, its recorder does not answer. "
            "exited: gone without a clean exit. finished: gone after a clean exit.",
            {"{{state}}": once("frd_ranks" + _OF, "state")},
            width=6,
            unit="none",
            stacked=True,
            runbook="FrdRankLost",
        ),
        graph(
            "Open findings",
            "By kind and severity: each is one incident. It opens as a warning, and becomes "
            "critical once it has lasted. What was closed by hand and goes on is counted apart.",
            {
                "{{kind}} critical": f"sum by (kind) ({critical})",
                "{{kind}} warning": f"sum by (kind) (1 - {critical})",
                "closed by hand": f"sum({once('frd_findings_closed_by_hand' + _OF, 'kind')})",
            },
            width=6,
            unit="none",
        ),
        graph(
            "Collectives completed",
            "Collectives a second that all members completed, in the ten busiest groups. Zero "
            "while the job hangs. Those without a duration are in no histogram of durations.",
            {
                "without a duration": (
                    f"sum(rate(frd_collectives_untimed_total{_OF}[$__rate_interval]))"
                ),
                "{{group}}": (
                    "topk(10, sum by (group) "
                    f"(rate(frd_collectives_matched_total{_OF}[$__rate_interval])))"
                ),
            },
            width=6,
            unit="ops",
        ),
        graph(
            "Collectives open",
            "Collectives that some rank joined and some expected rank has not completed, and those "
            "of them that are older than their group's threshold.",
            {
                "open": f"sum({once('frd_group_open_collectives' + _OF, 'group')})",
                "stalled": f"sum({once('frd_stalled_collectives' + _OF, 'group')})",
            },
            width=6,
            unit="none",
            runbook="FrdCollectiveStalled",
        ),
    ]


def _collectives() -> list[Panel]:
    def quantile(share: float, metric: str) -> str:
        rate = f'rate({metric}_bucket{{job="$job"}}[$__rate_interval])'
        return f"histogram_quantile({share:g}, sum by (le, op) ({rate}))"

    skew, duration = "frd_collective_skew_seconds", "frd_collective_duration_seconds"
    transfer = "frd_collective_transfer_seconds"
    return [
        findings(
            "Stragglers",
            "Ranks that come late to collectives again and again, far more often than their peers. "
            "`frd findings --job $job` says how much time the job has lost to each.",
            'job="$job", kind="straggler"',
            width=6,
            nothing="no rank comes late persistently",
            runbook="FrdStragglerPersistent",
        ),
        graph(
            "Skew by op",
            "Time between the first and the last member joining: what ranks lose by waiting for "
            "each other. Median and 99th percentile of completed collectives.",
            {"{{op}} median": quantile(0.5, skew), "{{op}} p99": quantile(0.99, skew)},
            width=6,
            unit="s",
        ),
        graph(
            "Transfer by op",
            "Time between the last member joining and the last completion: what the network and "
            "the GPUs take. If it rises and the skew does not, no late rank is the reason.",
            {"{{op}} median": quantile(0.5, transfer), "{{op}} p99": quantile(0.99, transfer)},
            width=6,
            unit="s",
        ),
        graph(
            "Duration by op",
            "Time between the first member joining and the last completion, including the wait.",
            {"{{op}} median": quantile(0.5, duration), "{{op}} p99": quantile(0.99, duration)},
            width=6,
            unit="s",
        ),
    ]


def _memory() -> list[Panel]:
    room = "(frd_gpu_memory_total_bytes - frd_gpu_memory_used_bytes)"
    used = 'frd_rank_gpu_memory_bytes{job="$job"}'
    ranks = f"({used} >= bool 0)"
    return [
        graph(
            "GPU memory of the fullest ranks",
            "Device memory of the rank's process, torch's allocator and all libraries together: "
            "the ten ranks with the most.",
            {"rank {{rank}}": f"topk(10, {used})"},
            width=8,
            unit="bytes",
            nothing="no GPU is known",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Fastest growing GPU memory",
            "Trend of the last five minutes, the ten ranks that grow fastest. A leak stays above "
            "zero; a new shape of batch does not.",
            {"rank {{rank}}": f"topk(10, deriv({used}[5m]))"},
            width=8,
            unit="binBps",
            nothing="no GPU is known",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Rises of memory",
            "By how much memory of the ranks that rose first is above its usual level, whether a "
            "finding is open or not, by kind: of the device, the process, torch's allocator or "
            "the host.",
            {
                "rank {{rank}} on {{node}}: {{kind}}": once(
                    "frd_memory_rise" + _OF, "rank", "node", "kind"
                )
            },
            width=8,
            unit="bytes",
            nothing="no memory rose",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Memory left on GPUs",
            "Free memory of the devices of this job's ranks: the ten devices with the least.",
            {"rank {{rank}}": f"bottomk(10, {room} * on (instance, gpu) group_right () {ranks})"},
            width=8,
            unit="bytes",
            nothing="no GPU is known",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Memory of torch's allocator",
            "Memory that the allocator holds, and the part of it in tensors: the five ranks with "
            "the most. Other GPU memory of a rank belongs to NCCL, the CUDA context or a library.",
            {
                "rank {{rank}} held": 'topk(5, frd_rank_torch_reserved_bytes{job="$job"})',
                "rank {{rank}} in tensors": 'topk(5, frd_rank_torch_allocated_bytes{job="$job"})',
            },
            width=8,
            unit="bytes",
            nothing="no CUDA allocator is known",
            runbook="FrdMemoryFirstCause",
        ),
        graph(
            "Host memory of ranks",
            "Memory of the process and its children, such as data loaders: the ten largest.",
            {"rank {{rank}}": 'topk(10, frd_rank_host_memory_bytes{job="$job"})'},
            width=8,
            unit="bytes",
            runbook="FrdMemoryFirstCause",
        ),
    ]
