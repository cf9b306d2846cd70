"""The states of several cells as one, for metrics and HTTP. Jobs are in one cell each; agents that
run several jobs may be in several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from frd.engine.views import StatusView
from frd.model import AlignedNs
from frd.service.state import Counters, NodeView, ServiceState


def merge(states: Sequence[ServiceState]) -> ServiceState:
    """One state; without cells, an empty one."""
    if len(states) == 1:
        return states[0]
    views = [state.status_view for state in states]
    return ServiceState(
        status_view=StatusView(
            at=max((view.at for view in views), default=AlignedNs(0)),
            attempts=[attempt for view in views for attempt in view.attempts],
            findings=[finding for view in views for finding in view.findings],
            evicted=_sum(view.evicted for view in views),
            utc_ahead_ns=max(views, key=lambda view: view.at).utc_ahead_ns if views else 0,
            going_on=[finding for view in views for finding in view.going_on],
        ),
        nodes=nodes_of(node for state in states for node in state.nodes),
        counters=add([state.counters for state in states]),
        ingest_lag_s=max((state.ingest_lag_s for state in states), default=0.0),
        evaluated_at=evaluated_at(states),
        warnings=[warning for state in states for warning in state.warnings],
        refused_ranks=[one for state in states for one in state.refused_ranks],
        name_conflicts=_sum(state.name_conflicts for state in states),
    )


def evaluated_at(states: Sequence[ServiceState]) -> AlignedNs | None:
    """Since when all cells have been evaluated; None: one never was, or there is none."""
    return min((state.evaluated_at or AlignedNs(0) for state in states), default=None) or None


def add(counters: Sequence[Counters]) -> Counters:
    """Totals of several cells."""
    totals: dict[str, Any] = {}
    for one in fields(Counters):
        values = [getattr(counted, one.name) for counted in counters]
        is_number = one.type == "int"
        totals[one.name] = sum(values) if is_number else _sum(values)
    return Counters(**totals)


def _sum(counts: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    total: dict[Any, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total


def nodes_of(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """An agent with several streams is one node."""
    merged: dict[tuple[str, str, str], NodeView] = {}
    for node in nodes:
        key = (node.node, node.boot_id, node.session)
        known = merged.get(key)
        if known is not None:
            node = replace(  # noqa: PLW2901  # the same node
                node,
                connected=node.connected or known.connected,
                reporting=node.reporting or known.reporting,
                last_message_at=max(node.last_message_at, known.last_message_at),
                ranks={**known.ranks, **node.ranks},
            )
        merged[key] = node
    return tuple(merged.values())
