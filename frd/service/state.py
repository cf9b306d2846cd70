"""What the service lets the outside see: one immutable state, and the narrow door behind HTTP.

The app publishes a `ServiceState` after every evaluation; metrics and the JSON API are
projections of it and hold nothing themselves, so that a scrape can never see half an update and
a slow reader can never hold up ingest. `ServiceView` is all that `frd.service.http.routes` may ask
of the app: it knows no engine, no stream and no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from frd.model import AlignedNs, AttemptKey, Finding, FindingState, Kind, RankState
from frd.service.clocks.view import ClockView
from frd.service.findings.dismissal import Dismissal
from frd.service.ingest.job_runs import JobWarning
from frd.store.findings import Place
from frd.views import AttemptView, StatusView

UNWATCHED: Final = "unwatched"
RANK_STATES: Final = (*(state.value for state in RankState), UNWATCHED)
"""What a rank is shown as."""
_OVER: Final = (RankState.EXITED, RankState.FINISHED)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one agent that has spoken to this service watches: a host as a rule."""

    node: str
    boot_id: str
    connected: bool
    """The agent's stream is up."""
    reporting: bool
    """Connected, and heard of recently enough to be believed."""
    last_message_at: AlignedNs
    """When the service last heard of it; 0 before the first message."""
    clock: ClockView
    ranks: Mapping[AttemptKey, tuple[int, ...]] = field(default_factory=dict)
    """Sorted global ranks that the node hosts."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the service started; they only grow."""

    entries: int = 0
    """Entry rows applied."""
    duplicates: int = 0
    """Entry rows that were known already."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Streams refused by `WireError.reason`; `memory`: samples that cannot be true; `job_name`:
    rank processes of a job whose name another running job has."""
    clock_refused: Mapping[str, int] = field(default_factory=dict)
    """Timestamps not believed and clock streams not served, by `pings.REASONS`."""
    evicted: Mapping[str, int] = field(default_factory=dict)
    """Things that the service (not the engine) dropped to stay within limits, by what."""
    store_errors: Mapping[str, int] = field(default_factory=dict)
    """Failed writes, by store: findings, journal, dumps."""
    findings: Mapping[tuple[str, Kind], int] = field(default_factory=dict)
    """Findings opened, by job and kind."""
    http_refused: Mapping[str, int] = field(default_factory=dict)
    """Requests and connections refused by HTTP, by reason."""
    handshakes_failed: int = 0
    """TLS handshakes with agents that came to nothing."""
    throttled: int = 0
    """Messages after which a stream had to wait."""
    notifications: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Deliveries to webhooks, by target and result."""


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
    name_conflicts: Mapping[str, int] = field(default_factory=dict)
    """Running jobs that are refused because another one has their name, by name."""
    expected_agents: Mapping[str, int] = field(default_factory=dict)
    """Configured number of agents by job; a job without one expects those it has seen."""

    def latest_attempts(self) -> dict[str, AttemptView]:
        """The attempt that every job is at: others are history and only confuse."""
        ordered = sorted(self.status_view.attempts, key=lambda v: (not v.superseded, v.key.attempt))
        return {view.key.job: view for view in ordered}

    def open_findings(self) -> list[Finding]:
        return [f for f in self.status_view.findings if f.state is FindingState.OPEN]


def unwatched(view: AttemptView, nodes: Iterable[NodeView]) -> Mapping[int, AlignedNs]:
    """Ranks that run as far as is known, without an agent that reports, and since when.

    The engine keeps the state that an agent reported last, which is evidence. People and metrics
    must not take it for the present: a rank that was live when its agent ended is `unwatched`.
    """
    watched: set[int] = set()
    heard: dict[int, AlignedNs] = {}
    for node in nodes:
        ranks = node.ranks.get(view.key, ())
        if node.reporting:
            watched.update(ranks)
        else:
            at = node.last_message_at
            heard.update((rank, max(heard.get(rank, at), at)) for rank in ranks)
    return {
        rank.info.rank: max(heard.get(rank.info.rank, AlignedNs(0)), rank.as_of)
        for rank in view.ranks
        if rank.info.rank not in watched and rank.status.state not in _OVER
    }


@dataclass(frozen=True, slots=True)
class DumpResult:
    """What came of a dump request; `id` names the stored folder."""

    id: str
    answered: tuple[int, ...]
    failed: Mapping[int, str]
    """Ranks without a dump, and why."""


class ServiceView(Protocol):
    """All that HTTP may ask. Only `take_dump` and `dismiss` may take time, and it is bounded."""

    def state(self) -> ServiceState: ...

    def not_ready(self) -> str | None:
        """Why the service cannot serve yet or any more; None when it can."""

    def findings(
        self, *, state: FindingState | None, job: str | None, limit: int
    ) -> Sequence[Finding]:
        """Newest first. Called from a worker thread: reads the database."""

    def history(
        self,
        *,
        after: Place,
        since: AlignedNs,
        until: AlignedNs | None,
        job: str | None,
        limit: int,
    ) -> Sequence[Finding]:
        """A page of all stored findings, oldest first. Called from a worker thread."""

    def finding(self, finding_id: str) -> Finding | None:
        """Called from a worker thread."""

    async def dismiss(self, dismissal: Dismissal) -> Finding | None:
        """Close a finding by hand: the closed finding, or None when no such finding is open.

        Raises:
            ServiceUnavailable: when the evaluation does not get to it.
        """

    async def take_dump(
        self, key: AttemptKey, ranks: tuple[int, ...] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult:
        """Ask the agents of `ranks` (None: all) and store what comes.

        Raises:
            ServiceUnavailable: when no agent of the attempt is connected.
            StoreError: when the dump cannot be stored.
        """

    def dump_tar(self, dump_id: str) -> Iterator[bytes] | None:
        """The folder as a tar stream; None when there is no such dump."""
