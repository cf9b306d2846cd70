"""What the service watches at the moment, and why it may be blind.

"No findings" means something only if the jobs are watched. So every list of findings has this
summary: how many jobs, ranks and agents are watched, when the last message of an agent arrived, and
`blind`, one sentence for each reason why a hang could go unnoticed. It has no effect on findings
and alerts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from frd.engine.views import AttemptView
from frd.forms import duration_text, fold_ranks
from frd.model import AlignedNs
from frd.service.state import (
    CellState,
    NodeView,
    ServiceState,
    alive_ranks,
    unread_ranks,
    unwatched,
)

_MAX_NAMES: Final = 3
_START: Final = "start `frd-agent run` where the ranks run, or `frd up`"
NO_AGENT: Final = f"no agent is connected: {_START}"
_ADVICE: Final = "start `frd-agent run` there"
_IF_UP: Final = f"it said no goodbye: if the node is up, {_ADVICE}"


def watching_json(
    state: ServiceState, *, stale: str | None = None, job: str | None = None
) -> dict[str, Any]:
    """The object `watching` of the API, for all jobs or one; `stale` says why findings are old."""
    running = [
        view
        for name, view in state.latest_attempts().items()
        if job in (None, name) and not view.ended
    ]
    concerned = [
        node
        for node in state.nodes
        if job is None or any(view.key in node.ranks for view in running)
    ]
    watched = [alive_ranks(view) - unwatched(view, state.nodes).keys() for view in running]
    heard = max((node.last_message_at for node in concerned), default=AlignedNs(0))
    return {
        "jobs": sum(map(bool, watched)),
        "ranks": sum(map(len, watched)),
        "agents": sum(node.connected for node in concerned),
        "last_heard_s": max(0, state.status_view.at - heard) / 1e9 if heard else None,
        "blind": list(_blind(state, running, stale, job)),
    }


def _blind(
    state: ServiceState, running: Sequence[AttemptView], stale: str | None, job: str | None
) -> Iterator[str]:
    cluster = state.cluster
    if state.evaluated_at is None:
        if cluster is None or cluster.cells.get(CellState.OWNED, 0):
            yield "the service has not evaluated yet: see its log"
    elif stale is not None:
        yield stale
    no_agent = not running and not any(node.connected for node in state.nodes)
    if job is None and no_agent and cluster is None:  # agents may be connected to other replicas
        seen = bool(state.status_view.attempts)
        yield NO_AGENT if seen else f"no agent has connected since the service started: {_START}"
    refused = [one for one in state.refused_ranks if job in (None, one.job)]
    for one in refused:
        ranks = "a rank is" if one.ranks == 1 else f"{one.ranks} ranks are"
        yield f"{one.job}: {ranks} not watched: {one.why}"
    lacking = [view.key for view in running if _missing(view)]
    for node in state.nodes:
        if job is None or any(key in node.ranks for key in lacking):
            yield from (f"{node.node}: {text}" for text in node.unreadable)
    for view in running:
        yield from _blind_of(state, view)


def _blind_of(state: ServiceState, view: AttemptView) -> Iterator[str]:
    """Why some ranks of a running job are not watched."""
    name, alive = view.key.job, alive_ranks(view)
    hosts = [node for node in state.nodes if alive.intersection(node.ranks.get(view.key, ()))]
    stopped = [node for node in hosts if not node.connected and node.stopped]
    gone = [node for node in hosts if not node.connected and not node.stopped]
    silent = [node for node in hosts if node.connected and not node.reporting]
    if stopped:
        yield _without(state.status_view.at, view, alive, stopped, "stopped") + f": {_ADVICE}"
    if gone:
        yield _without(state.status_view.at, view, alive, gone, "gone") + f": {_IF_UP}"
    if silent:
        yield _without(state.status_view.at, view, alive, silent, "silent") + ": see its log"
    if missing := _missing(view):
        yield (
            f"{name}: {_ranks(missing)} of {view.world_size} "
            f"{'has' if len(missing) == 1 else 'have'} not been seen: "
            "do they start with `frd-agent exec`, and does an agent run where they do?"
        )
    unread = list(unread_ranks(view, state.nodes).items())
    for why, ranks in unread[:_MAX_NAMES]:
        yield f"{name}: the collectives of {_ranks(ranks)} cannot be read: {why}"
    if others := list(chain.from_iterable(ranks for _, ranks in unread[_MAX_NAMES:])):
        yield f"{name}: nor can those of {_ranks(others)}: `frd status` has the reasons"
    if view.not_opened:
        yield (
            f"{name}: {view.not_opened} more findings are not shown: "
            "as many as policy.max_findings_per_job are open: close some or raise it"
        )
    expected = state.expected_agents.get(name, 0)
    known = sum(view.key in node.ranks for node in state.nodes)
    if known < expected:
        yield f"{name}: {known} of {expected} expected agents have been seen: {_ADVICE}"


def _missing(view: AttemptView) -> set[int]:
    return set(range(view.world_size)).difference(view.rank_columns.rank.tolist())


def _without(
    at: AlignedNs, view: AttemptView, alive: Collection[int], nodes: Sequence[NodeView], what: str
) -> str:
    ranks = {rank for node in nodes for rank in node.ranks[view.key]}.intersection(alive)
    names = list(dict.fromkeys(node.node for node in nodes))
    where = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        where += f" and {len(names) - _MAX_NAMES} more"
    heard = max(node.last_message_at for node in nodes)
    ago = f", last heard {duration_text((at - heard) / 1e9)} ago" if heard else ""
    agents = "the agent" if len(nodes) == 1 else f"{len(nodes)} agents"
    verb = "is" if len(nodes) == 1 else "are"
    return (
        f"{view.key.job}: {agents} on {where} {verb} {what}{ago}, no agent watches {_ranks(ranks)}"
    )


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {fold_ranks(ranks)}"
