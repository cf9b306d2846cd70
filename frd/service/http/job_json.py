"""What the page shows at a glance, in forms whose size does not grow with a job; pure functions.

One job: `json_api.job_json` has every rank and every group, which is megabytes for a large job.
These forms have counts, and the ranks, groups and nodes that matter most. And how well frd itself
sees: each replica, the nodes with their clocks, and where agents can be scraped.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np

from frd.do_now import shown_json
from frd.engine.views import CELL_STATES, STATES, AttemptView, GroupMap, Histogram, OpenOp
from frd.forms import fold_ranks, utc_text
from frd.model import Finding, RankState
from frd.service.http.json_api import (
    age_s,
    attempt_head,
    group_json,
    head,
    memory_json,
    node_json,
    pace_json,
    rank_json,
    rises_json,
)
from frd.service.state import NodeView, ServiceState, rank_states, unwatched

Json: TypeAlias = dict[str, Any]

MOST: Final = 64
"""Ranks, groups, waits of a summary."""
_NODE_COUNTS: Final = ("connected", "silent", "gone", "unsynchronized")
MOST_NODES: Final = 50
MOST_ROWS: Final = 256
"""Of a map."""
_STATE_TEXTS: Final = {
    "none": "not a member of the group",
    "ok": "neither waits for long nor is missing",
    "unknown": "not known: no agent reports it, or reports are missing",
    "waiting": "is inside an op for more than half of the stall threshold",
    "stuck": "is inside an op for longer than the stall threshold",
    "missing": "has not joined an op that others wait in",
    "gone": "its process is gone",
}

_TARGET: Final = re.compile(
    r"[\w.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}", re.ASCII
)
"""What an agent says is put into Prometheus' configuration: HOST:PORT, and nothing else."""


def job_summary(state: ServiceState, view: AttemptView, map_tag: str) -> Json:
    """`map_tag` is that of the job's map."""
    found = state.lasting_of(view.key)
    nodes = [node for node in state.nodes if view.key in node.ranks]
    groups, more_groups = _groups(view)
    waits, more_waits = view.history.open_ops(MOST) if view.history is not None else ([], 0)
    return {
        **head(state),
        **attempt_head(state, view),
        "pace": pace_json(state, view),
        "gap_entries": view.gap_entries,
        "ranks": dict(sorted(rank_states(view, state.nodes).items())),
        "notable_ranks": _notable(state, view, found, waits),
        "groups": groups,
        "more_groups": more_groups,
        "memory": memory_json(view.memory, None),
        "rises": [
            {**rise, "ranks": fold_ranks(rise["ranks"]), "unknown": fold_ranks(rise["unknown"])}
            for rise in rises_json(view, state.status_view.utc_ahead_ns)
        ],
        "ops": [
            {
                "op": op,
                "skew": _quantiles(view.skew.get(op)),
                "duration": _quantiles(view.duration.get(op)),
            }
            for op in sorted(view.skew.keys() | view.duration.keys())
        ],
        "waits": [_wait(state, op) for op in waits],
        "more_waits": more_waits,
        **nodes_json(nodes, state),
        "map": map_tag,
    }


def rank_detail(state: ServiceState, view: AttemptView, rank: int) -> Json:
    """`rank` is one of the view's."""
    row = int(np.searchsorted(view.rank_columns.rank, rank))
    blind = unwatched(view, state.nodes)
    groups, more = view.history.groups_of(rank, MOST) if view.history is not None else ([], 0)
    return {
        **head(state),
        "job": view.key.job,
        "attempt": view.key.attempt,
        "rank": rank_json(state, view.ranks[row], blind.get(rank)),
        "groups": [
            {
                "group_id": one.group_id,
                "group": one.label,
                "size": one.size,
                "enqueued": one.enqueued,
                "completed": one.completed,
                "highest": one.highest,
                "state": one.state,
            }
            for one in groups
        ],
        "more_groups": more,
        "memory": memory_json(view.memory, {rank}),
        "findings": [
            shown_json(finding)
            for finding in state.lasting_of(view.key)
            if any(suspect.rank == rank for suspect in finding.suspects)
        ],
    }


def map_json(state: ServiceState, view: AttemptView, of: GroupMap, tag: str) -> Json:
    rows = zip(of.labels, of.groups, of.members, strict=True)
    return {
        **head(state),
        "job": view.key.job,
        "attempt": view.key.attempt,
        "map": tag,
        "world_size": of.cells.shape[1],
        "rows": [
            {"group": label, "groups": groups, "ranks": ranks} for label, groups, ranks in rows
        ],
        "more_rows": of.more,
        "states": [
            {"code": code, "name": name, "text": _STATE_TEXTS[name]}
            for code, name in enumerate(CELL_STATES)
        ],
        "cells": base64.b64encode(of.cells.tobytes()).decode("ascii"),
    }


def map_tag(of: GroupMap) -> str:
    """Equal for equal maps."""
    digest = blake2b(of.cells.tobytes(), digest_size=8)
    digest.update(repr((of.labels, of.groups, of.cells.shape, of.more)).encode("utf-8", "replace"))
    return digest.hexdigest()


def nodes_json(nodes: Iterable[NodeView], state: ServiceState) -> Json:
    """Counts of nodes, and the worst of them. Those without a job that runs report nothing, and
    are neither silent nor gone."""
    running = {view.key for view in state.latest_attempts().values() if not view.ended}
    at = state.status_view.at
    known = [
        {**node_json(node, at), "reporting": node.reporting or not running.intersection(node.ranks)}
        for node in nodes
        if node.connected or running.intersection(node.ranks)
    ]
    counts = Counter(name for node in known for name in counted_as(node))
    worst = sorted(known, key=badness)[:MOST_NODES]
    return {
        "node_counts": {name: counts[name] for name in _NODE_COUNTS},
        "nodes": worst,
        "more_nodes": len(known) - len(worst),
    }


def counted_as(node: Json) -> Iterator[str]:
    """The keys of `node_counts` that count a node."""
    if not node["connected"]:
        yield "gone"
        return
    yield "connected" if node["reporting"] else "silent"
    if node["clock_state"] != "synchronized":
        yield "unsynchronized"


def badness(node: Json) -> tuple[bool, bool, bool, float, str]:
    """Smaller is worse."""
    uncertainty_s = node.get("clock_uncertainty_s")
    return (
        node["connected"],
        node["reporting"],
        node["clock_state"] == "synchronized",
        -(uncertainty_s if uncertainty_s is not None else 1e9),
        node["node"],
    )


def _notable(
    state: ServiceState, view: AttemptView, found: Sequence[Finding], waits: Sequence[OpenOp]
) -> list[Json]:
    """Suspects, ranks that are not live, ranks that others wait for, and some that wait."""
    blind, columns = unwatched(view, state.nodes), view.rank_columns
    chosen = dict.fromkeys(suspect.rank for finding in found for suspect in finding.suspects)
    odd = columns.rank[columns.state != STATES.index(RankState.LIVE)][:MOST].tolist()
    of_waits = [op.missing for op in waits] + [op.waiting for op in waits]
    for ranks in (odd, sorted(blind), *(some[:MOST].tolist() for some in of_waits)):
        chosen |= dict.fromkeys(ranks[: MOST - len(chosen)])
        if len(chosen) >= MOST:
            break
    known = set(columns.rank.tolist())
    rows = np.searchsorted(columns.rank, [rank for rank in chosen if rank in known][:MOST])
    return [
        rank_json(state, rank, blind.get(rank.info.rank))
        for rank in (view.ranks[row] for row in rows.tolist())
    ]


def _groups(view: AttemptView) -> tuple[list[Json], int]:
    """The groups with most trouble first: stalled ones, then those with open ops."""
    columns = view.group_columns()
    order = np.lexsort((-columns.open_collectives, -columns.stalled_collectives))[:MOST]
    return [group_json(view.groups[i]) for i in order.tolist()], len(view.groups) - len(order)


def _wait(state: ServiceState, op: OpenOp) -> Json:
    return {
        "group_id": op.group_id,
        "group": op.label,
        "seq": op.seq,
        "op": op.op,
        "since": utc_text(state.utc(op.since)),
        "waiting_s": age_s(op.since, state.status_view.at),
        "stalled": op.stalled,
        "waiting": fold_ranks(op.waiting),
        "waiting_count": len(op.waiting),
        "missing": fold_ranks(op.missing),
        "missing_count": len(op.missing),
        "unknown": fold_ranks(op.unknown),
        "unknown_count": len(op.unknown),
    }


def _quantiles(histogram: Histogram | None) -> Json | None:
    """Upper bounds of the buckets in which the quantiles fall; None beyond the last bucket."""
    if histogram is None or not (count := sum(histogram.counts)):
        return None
    totals = np.cumsum(histogram.counts)
    bounds = [*histogram.bounds, None]
    at = {p: bounds[int(np.searchsorted(totals, count * p / 100))] for p in (50, 90, 99)}
    return {"count": count, **{f"p{p}_s": bound for p, bound in at.items()}}


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
