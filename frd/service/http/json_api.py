"""The JSON forms of the service's state: pure functions, no HTTP.

The form of findings is in `frd.forms`. Ages are relative to the time of the snapshot, so that one
answer is consistent.

Memory: a job of 16,384 ranks has a hundred thousand series; a screen has room for some. The worst
series is the one nearest to its capacity if it continues as it did recently. Only one series a rank
is shown, so that a rank whose device, process and allocator rise together takes one row and not
four. Cgroups come last, because the ranks of a node share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any, Final, TypeAlias

import numpy as np

from frd.cluster.cells import CELLS
from frd.do_now import shown_json
from frd.engine.views import AttemptView, GroupView, MemoryView, RankView
from frd.forms import utc_text
from frd.model import AlignedNs, Finding, Float64s, Int64s, Kind, SeriesKind
from frd.service.clocks.view import clock_json
from frd.service.http.answers import API_VERSION
from frd.service.http.watching_json import watching_json
from frd.service.state import (
    EVERY_S,
    UNWATCHED,
    ClusterState,
    NodeView,
    ServiceState,
    alive_ranks,
    rank_states,
    unwatched,
)

Json: TypeAlias = dict[str, Any]
_UNWATCHED: Final = "only its members that this job reports are watched, others are of other jobs"
_STALLED: Final = (Kind.STALL, Kind.MISMATCH, Kind.ORDER)
MAX_WORST: Final = 6
"""Ranks whose memory is shown by default."""
_UNKNOWN: Final = -10.0
"""Less than any share, because a series cannot fall by more than it has."""


def jobs_json(state: ServiceState, stale: str | None = None, ended: Iterable[Json] = ()) -> Json:
    """The newest attempt of every job, by name; `stale`: the reason why it is out of date; `ended`:
    what is over."""
    latest = sorted(state.latest_attempts().items())
    opened = Counter(finding.job for finding in state.open_findings())
    closed = Counter(finding.job for finding in state.status_view.going_on)
    return {
        **head(state),
        "jobs": [_job_line(state, view, opened[job], closed[job]) for job, view in latest],
        "ended": [*ended],
        "watching": watching_json(state, stale=stale),
        "warnings": _warnings(state),
    }


def findings_json(
    state: ServiceState, found: Iterable[Finding], stale: str | None = None, job: str | None = None
) -> Json:
    """`found`, with what is watched of all jobs or of one."""
    return {
        **head(state),
        "findings": [shown_json(finding) for finding in found],
        "watching": watching_json(state, stale=stale, job=job),
        "warnings": _warnings(state, job),
    }


def head(state: ServiceState) -> Json:
    """The version of the form, and the time of the snapshot, to which ages are relative."""
    return {"api_version": API_VERSION, "at": utc_text(state.utc(state.status_view.at))}


def attempt_head(state: ServiceState, view: AttemptView) -> Json:
    """Which attempt, and how it fares."""
    return {
        "job": view.key.job,
        "attempt": view.key.attempt,
        "world_size": view.world_size,
        "ended": view.ended,
        "state": job_state(state, view),
        "failure": failure_json(state, view),
    }


def job_json(
    state: ServiceState, view: AttemptView, memory_of: Collection[int] | None = None
) -> Json:
    """One attempt; `memory_of` as in `memory_json`."""
    at = state.status_view.at
    blind = unwatched(view, state.nodes)
    return {
        **head(state),
        **attempt_head(state, view),
        "groups": [group_json(group) for group in view.groups],
        "ranks": [rank_json(state, rank, blind.get(rank.info.rank)) for rank in view.ranks],
        "memory": memory_json(view.memory, memory_of),
        "rises": rises_json(view, state.status_view.utc_ahead_ns),
        "nodes": [
            {**node_json(node, at), "ranks": list(node.ranks[view.key])}
            for node in state.nodes
            if view.key in node.ranks
        ],
        "findings": [shown_json(finding) for finding in state.lasting_of(view.key)],
    }


def cluster_json(cluster: ClusterState) -> Json:
    """The cluster as one replica sees it. Whether it is sure each replica knows of itself only;
    `peers.merging` adds it for the others."""
    view = cluster.view
    own = {"connected": view.connected, "sure": cluster.sure}
    return {
        "api_version": API_VERSION,
        "replica": view.me,
        "durable": view.durable,
        "replicas": [
            {
                "replica": replica.name,
                "version": replica.version,
                "grpc": replica.grpc,
                "http": replica.http,
                "cells": len(replica.cells),
                **(own if replica.name == view.me else dict.fromkeys(own)),
            }
            for replica in view.replicas
        ],
        "cells": {state.value: count for state, count in cluster.cells.items()},
        "owners": [view.owners.get(cell) for cell in range(CELLS)],
        "unowned": [cell for cell in range(CELLS) if cell not in view.owners],
        "takeovers": dict(cluster.takeovers),
        "fenced": cluster.fenced,
    }


def _job_line(state: ServiceState, view: AttemptView, opened: int, closed: int) -> Json:
    """`opened`, `closed`: findings that are open; that were closed by hand and go on."""
    heard = AlignedNs(int(view.rank_columns.as_of.max(initial=0)))
    return {
        **attempt_head(state, view),
        "ranks": dict(sorted(rank_states(view, state.nodes).items())),
        "open_findings": opened,
        **({"findings_closed_by_hand": closed} if closed else {}),
        "last_heard_s": age_s(heard, state.status_view.at),
        "gap_entries": view.gap_entries,
        "pace": pace_json(state, view),
        "agents": sum(node.connected and view.key in node.ranks for node in state.nodes),
    }


def job_state(state: ServiceState, view: AttemptView) -> str:
    """``failed``, if it died by itself; ``lost``, if its agents have gone and nothing is heard any
    more; ``ended``; ``stalled``, if a finding says so, also one that was closed by hand and goes
    on; ``unwatched``, if no agent reports any of its ranks; else ``running``."""
    if view.ended:
        return "failed" if view.failure is not None else "lost" if view.lost else "ended"
    if any(finding.kind in _STALLED for finding in state.lasting_of(view.key)):
        return "stalled"
    alive = alive_ranks(view)
    return "unwatched" if len(unwatched(view, state.nodes)) == len(alive) else "running"


def failure_json(state: ServiceState, view: AttemptView) -> Json | None:
    """How a job failed; None if it did not."""
    if (failure := view.failure) is None:
        return None
    age = age_s(failure.at, state.utc(state.status_view.at))
    return {**asdict(failure), "at": utc_text(failure.at), "age_s": age}


def pace_json(state: ServiceState, view: AttemptView) -> Json:
    """Completed collectives a second: now, and over the last minutes."""
    recent = list(state.paces.get(view.key, ()))
    return {"per_s": recent[-1] if recent else None, "every_s": EVERY_S, "recent": recent}


def group_json(group: GroupView) -> Json:
    return {
        "group_id": group.group_id,
        "group": group.label,
        "size": group.size,
        "unwatched": "" if group.size else _UNWATCHED,
        "open": group.open_collectives,
        "stalled": group.stalled_collectives,
        "stall_s": group.stall_s,
        "threshold_s": group.threshold_s,
        "matched": group.matched,
        "enqueued": group.enqueued,
        "completed": group.completed,
    }


def rank_json(state: ServiceState, rank: RankView, unwatched_since: AlignedNs | None) -> Json:
    fields = {
        "rank": rank.info.rank,
        "node": rank.info.node,
        "pid": rank.info.pid,
        "state": rank.status.state.value,
        "detail": rank.status.detail,
        "as_of": utc_text(state.utc(rank.as_of)) if rank.as_of else None,
        "age_s": age_s(rank.as_of, state.status_view.at),
        "waiting_in": rank.waiting_in,
        "waiting_s": rank.waiting_s,
        "exit": _exit(state, rank),
    }
    if unwatched_since is None:
        return fields
    return {
        **fields,
        "state": UNWATCHED,
        "detail": f"no agent reports on it; it was {rank.status.state.value} when last heard of",
        "unwatched_since": utc_text(state.utc(unwatched_since)) if unwatched_since else None,
    }


def _exit(state: ServiceState, rank: RankView) -> Json | None:
    """How the rank's process ended; `at` is a time of the node's clock."""
    how = rank.status.exit
    if how is None:
        return None
    return {**asdict(how), "kind": how.kind.value, "at": utc_text(state.utc(rank.state_since))}


def _warnings(state: ServiceState, job: str | None = None) -> list[Json]:
    """Problems that are no findings, of all jobs or of one."""
    return [
        {"job": warning.job, "text": warning.text}
        for warning in state.warnings
        if job in (None, warning.job)
    ]


def node_json(node: NodeView, at: AlignedNs) -> Json:
    return {
        "node": node.node,
        "boot_id": node.boot_id,
        "session": node.session,
        "connected": node.connected,
        **clock_json(node.clock),
        "last_message_age_s": age_s(node.last_message_at, at),
    }


def age_s(since: int, at: int) -> float | None:
    """None if `since` is 0; 0 for a time after the snapshot."""
    return max(0, at - since) / 1e9 if since else None


def memory_json(memory: MemoryView, ranks: Collection[int] | None) -> Json:
    """All series of `ranks`; if None, the worst series of a few ranks."""
    known = [i for i, of in enumerate(memory.series) if ranks is None or of.rank in ranks]
    rows = known if ranks is not None else _worst(memory)
    return {
        "ranks": len({memory.series[i].rank for i in known}),
        "recent_every_s": memory.every_s,
        "series": [_row(memory, i) for i in rows],
    }


def rises_json(view: AttemptView, utc_ahead_ns: int) -> list[Json]:
    """By onset; each suspect with its node."""
    return [
        {
            **shown,
            "suspects": [{**one, "node": view.node_of(one["rank"])} for one in shown["suspects"]],
        }
        for shown in (rise.to_json(utc_ahead_ns) for rise in view.memory.rises)
    ]


def _worst(memory: MemoryView) -> list[int]:
    rows: dict[int, int] = {}
    for i in np.argsort(-_heading(memory), kind="stable").tolist():
        if len(rows) == MAX_WORST:
            break
        rows.setdefault(memory.series[i].rank, i)
    return list(rows.values())


def _heading(memory: MemoryView) -> Float64s:
    """The share of its capacity that each series has if it rises by as much again; a value below
    all shares for series without a capacity."""
    share: Float64s = np.full(len(memory.series), _UNKNOWN)
    known = (memory.capacity > 0) & (memory.used >= 0)
    rise = memory.used - _earliest(memory)
    share[known] = (memory.used + rise)[known] / memory.capacity[known]
    share[[of.kind is SeriesKind.CGROUP_USED for of in memory.series]] += 2 * _UNKNOWN
    return share


def _earliest(memory: MemoryView) -> Int64s:
    """The earliest of the recent values; the newest value if there is none."""
    if not memory.recent.size:
        return memory.used
    has = memory.recent >= 0
    first = memory.recent[np.arange(len(has)), has.argmax(axis=1)]
    return np.where(has.any(axis=1), first, memory.used)


def _row(memory: MemoryView, row: int) -> Json:
    of, used = memory.series[row], int(memory.used[row])
    return {
        "rank": of.rank,
        "kind": of.kind.value,
        "device": of.device,
        "used_bytes": used if used >= 0 else None,
        "capacity_bytes": int(memory.capacity[row]) or None,
        "recent_bytes": [value if value >= 0 else None for value in memory.recent[row].tolist()],
    }
