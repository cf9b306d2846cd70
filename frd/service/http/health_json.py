"""How well frd itself sees: each replica, the nodes with their clocks, and where agents can be
scraped. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from frd.service.http.job_json import nodes_json
from frd.service.http.json_api import age_s, head
from frd.service.state import NodeView, ServiceState

Json: TypeAlias = dict[str, Any]
_TARGET: Final = re.compile(
    r"[\w.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}", re.ASCII
)
"""What an agent says is put into Prometheus' configuration: HOST:PORT, and nothing else."""


def health_json(state: ServiceState, now: int, stale: str | None) -> Json:
    """`stale` says why the service cannot serve at present."""
    counters, nodes = state.counters, nodes_json(state.nodes, state)
    counts = nodes["node_counts"]
    return {
        **head(state),
        "services": [
            {
                "replica": state.cluster.view.me if state.cluster is not None else None,
                "version": state.version,
                "not_ready": stale,
                "evaluated_age_s": age_s(state.evaluated_at, now) if state.evaluated_at else None,
                "ingest_lag_s": state.ingest_lag_s,
                "loop_lag_s": state.loop_lag_s,
                "agents": counts["connected"] + counts["silent"],
                "agents_silent": counts["silent"],
                "gap_entries": sum(view.gap_entries for view in state.status_view.attempts),
                "refused": _some(Counter(counters.refused) + Counter(counters.http_refused)),
                "store_errors": _some(counters.store_errors),
                "evicted": _some(Counter(counters.evicted) + Counter(state.status_view.evicted)),
            }
        ],
        **nodes,
    }


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    """Without those that are 0."""
    return {what: count for what, count in sorted(counts.items()) if count}


def targets_json(nodes: Iterable[NodeView]) -> list[Json]:
    """Agents with a reachable /metrics, as Prometheus' HTTP service discovery takes them."""
    found = {node.metrics: node.node for node in nodes if _TARGET.fullmatch(node.metrics)}
    return [{"targets": [at], "labels": {"node": found[at]}} for at in sorted(found)]
