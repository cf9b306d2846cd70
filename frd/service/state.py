"""The state that the service publishes after every evaluation, as one immutable value.

Metrics and the JSON API are projections of a `ServiceState` and hold nothing themselves. So a
scrape never sees half an update, and a slow reader never delays ingest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from frd.cluster.lease import ClusterView
from frd.engine.views import STATES, AttemptView, StatusView
from frd.model import AlignedNs, AttemptKey, Bools, Finding, FindingState, Kind, RankState
from frd.service.clocks.view import ClockView
from frd.service.ingest.job_runs import JobWarning, Refusal

UNWATCHED: Final = "unwatched"
RANK_STATES: Final = (*(state.value for state in RankState), UNWATCHED)
"""The states that metrics and the API show."""
_OVER: Final = (RankState.EXITED, RankState.FINISHED)
EVERY_S: Final = 5.0
_KEPT: Final = 60
"""Five minutes."""


Pace: TypeAlias = tuple[float | None, ...]
"""Completed collectives a second of one attempt: one value for each `EVERY_S`, the newest last;
None where the attempt was not seen."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One agent that has reported to this service, and the ranks that it watches."""

    node: str
    boot_id: str
    connected: bool
    """The agent's stream is up."""
    reporting: bool
    """Connected, and its last message is recent."""
    last_message_at: AlignedNs
    """When its last message arrived; 0 before the first one."""
    clock: ClockView
    ranks: Mapping[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """Sorted global ranks that the node hosts."""
    session: str = ""
    """Of the agent process."""
    unreadable: tuple[str, ...] = ()
    """What its ranks publish and the agent may not read, as text for users."""
    stopped: bool = False
    """The agent was asked to stop, or has said goodbye."""
    metrics: str = ""
    """Where its /metrics is, as it says; empty: nowhere, or reachable from its node only."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the service started; they only grow."""

    entries: int = 0
    """Entry rows applied."""
    duplicates: int = 0
    """Entry rows that an earlier agent process had already reported."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Streams refused by `WireError.reason`; `memory`: samples that cannot be true; `job_name`:
    rank processes of a job whose name another running job has."""
    clock_refused: Mapping[str, int] = field(default_factory=dict)
    """Refused timestamps and clock streams, by `pings.REASONS`."""
    evicted: Mapping[str, int] = field(default_factory=dict)
    """What the service (not the engine) dropped to stay within limits, by kind of thing."""
    store_errors: Mapping[str, int] = field(default_factory=dict)
    """Failed writes, by store: findings, journal, dumps, timelines."""
    findings: Mapping[tuple[str, Kind], int] = field(default_factory=dict)
    """Findings opened, by job and kind."""
    corrected: int = 0
    """Changes of open findings that name a rank no more."""
    http_refused: Mapping[str, int] = field(default_factory=dict)
    """Requests and connections refused by HTTP, by reason."""
    handshakes_failed: int = 0
    """TLS handshakes with agents that failed."""
    throttled: int = 0
    """Messages after which a stream had to wait."""
    notifications: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Deliveries to webhooks, by target and result."""


class CellState(StrEnum):
    """What a replica has to do with a cell."""

    OWNED = "owned"
    TAKING_OVER = "taking_over"
    """Claimed: what its last owner left is read."""
    DRAINING = "draining"
    """About to be handed over."""
    FOREIGN = "foreign"
    """Another replica owns it."""
    UNOWNED = "unowned"
    """No living replica owns it, as far as this one knows."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as this replica sees it, and what this replica has done in it."""

    view: ClusterView
    cells: Mapping[CellState, int]
    """Number of cells in each state; they add up to the number of all cells."""
    takeovers: Mapping[str, int] = field(default_factory=dict)
    """Cells taken over since the start, by why: `start` (no other replica had it), `dead` (its
    owner's heartbeats ended), `released` (its owner handed it over)."""
    sure: bool = True
    """No other replica can have taken over a cell of this one."""
    fenced: int = 0
    """Cells lost because another replica had claimed them."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Everything that /metrics and the JSON API show, at one moment."""

    status_view: StatusView
    nodes: Sequence[NodeView] = ()
    counters: Counters = field(default_factory=Counters)
    ingest_lag_s: float = 0.0
    """Time between an agent's sending and the service's applying, the slowest recent message."""
    loop_lag_s: float = 0.0
    """How late the event loop wakes, the worst recent case."""
    evaluated_at: AlignedNs | None = None
    """When the engine last advanced."""
    version: str = "unknown"
    """Of the running service."""
    warnings: Sequence[JobWarning] = ()
    refused_ranks: Sequence[Refusal] = ()
    """Ranks that run and are not watched, at most one for each job and reason."""
    name_conflicts: Mapping[str, int] = field(default_factory=dict)
    """Running jobs that are refused because another one has their name, by name."""
    expected_agents: Mapping[str, int] = field(default_factory=dict)
    """Configured number of agents by job; a job without one expects those it has seen."""
    cluster: ClusterState | None = None
    """None without a cluster."""
    paces: Mapping[AttemptKey, Pace] = field(default_factory=dict)

    def latest_attempts(self) -> dict[str, AttemptView]:
        """The present attempt of every job."""
        ordered = sorted(self.status_view.attempts, key=lambda v: (not v.superseded, v.key.attempt))
        return {view.key.job: view for view in ordered}

    def utc(self, at: int) -> AlignedNs:
        """An aligned time, to be shown."""
        return AlignedNs(at + self.status_view.utc_ahead_ns)

    def without_jobs(self) -> ServiceState:
        """What may be exported while another replica may have the jobs of this one."""
        empty = replace(self.status_view, attempts=(), findings=(), going_on=())
        return replace(self, status_view=empty, refused_ranks=(), name_conflicts={}, warnings=())

    def open_findings(self) -> list[Finding]:
        return [f for f in self.status_view.findings if f.state is FindingState.OPEN]

    def lasting_findings(self) -> list[Finding]:
        """Open ones, and those that were closed by hand and go on."""
        return [*self.open_findings(), *self.status_view.going_on]

    def lasting_of(self, key: AttemptKey) -> list[Finding]:
        """Those of one attempt, the newest first."""
        found = (f for f in self.lasting_findings() if AttemptKey(f.job, f.attempt) == key)
        return sorted(found, key=lambda finding: -finding.opened_at)


def alive_ranks(view: AttemptView) -> set[int]:
    """Ranks that have not ended, as far as known."""
    return set(view.rank_columns.rank[_is_alive(view)].tolist())


def unwatched(view: AttemptView, nodes: Iterable[NodeView]) -> Mapping[int, AlignedNs]:
    """Alive ranks without a reporting agent, each with the time of its last report.

    The engine keeps the last state that an agent reported, which may be out of date: a rank that
    was live when its agent ended is shown as `unwatched`.
    """
    columns, nodes = view.rank_columns, [node for node in nodes if view.key in node.ranks]
    blind = np.flatnonzero(_is_unwatched(view, nodes))
    found = dict(zip(columns.rank[blind].tolist(), columns.as_of[blind].tolist(), strict=True))
    for node in nodes if found else ():
        for rank in node.ranks[view.key]:
            if rank in found:
                found[rank] = max(found[rank], node.last_message_at)
    return found


def unread_ranks(view: AttemptView, nodes: Iterable[NodeView]) -> Mapping[str, Sequence[int]]:
    """Watched ranks whose collectives cannot be read, by the reason; most ranks first."""
    found: dict[str, list[int]] = {}
    if view.unread and not view.ended:
        watched = alive_ranks(view) - unwatched(view, nodes).keys()
        for rank in sorted(watched.intersection(view.unread)):
            found.setdefault(view.unread[rank], []).append(rank)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def rank_states(view: AttemptView, nodes: Iterable[NodeView]) -> Counter[str]:
    """The number of ranks in each state of `RANK_STATES`; states without ranks are absent."""
    blind = _is_unwatched(view, nodes)
    counts = np.bincount(view.rank_columns.state[~blind], minlength=len(STATES)).tolist()
    by_state = {state.value: count for state, count in zip(STATES, counts, strict=True)}
    return +Counter(by_state | {UNWATCHED: int(blind.sum())})


def _is_alive(view: AttemptView) -> Bools:
    """By row of the view's rank columns."""
    return np.isin(view.rank_columns.state, [STATES.index(s) for s in _OVER], invert=True)


def _is_unwatched(view: AttemptView, nodes: Iterable[NodeView]) -> Bools:
    """By row of the view's rank columns."""
    reported = [node.ranks.get(view.key, ()) for node in nodes if node.reporting]
    watched = np.fromiter(chain.from_iterable(reported), np.int64)
    return _is_alive(view) & np.isin(view.rank_columns.rank, watched, invert=True)


@dataclass(frozen=True, slots=True)
class DumpResult:
    """The result of a dump request; `id` names the stored folder."""

    id: str
    answered: tuple[int, ...]
    failed: Mapping[int, str]
    """Ranks without a dump, with the reason."""


class Paces:
    """The pace of each attempt; call `sample` every `EVERY_S`."""

    def __init__(self) -> None:
        self._last: dict[AttemptKey, tuple[int, AlignedNs]] = {}
        """The total of matched collectives, and when it was read."""
        self._recent: dict[AttemptKey, deque[float | None]] = {}
        self.known: Mapping[AttemptKey, Pace] = {}
        """What is published; replaced by `sample`."""

    def sample(self, attempts: Sequence[AttemptView], at: AlignedNs) -> None:
        """`attempts` are as of `at`; one that is absent is forgotten."""
        last, self._last = self._last, {}
        for view in attempts:
            before = last.get(view.key)
            self._last[view.key] = view.matched, at
            recent = self._recent.setdefault(view.key, deque(maxlen=_KEPT))
            if before is None or at <= before[1]:
                recent.append(None)
            else:  # a total that fell is that of a job that has started again
                done = max(0, view.matched - before[0])
                recent.append(round(done / ((at - before[1]) / 1e9), 3))
        self._recent = {key: self._recent[key] for key in self._last}
        self.known = {key: tuple(recent) for key, recent in self._recent.items()}
