"""Everything that HTTP may ask of the service: the published state, findings, dumps.

`frd.service.http.routes` gets a `ServiceView` and knows no engine and no stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from frd.model import AlignedNs, AttemptKey, Finding, FindingState, Kind
from frd.service.findings.people import Mark, Silences
from frd.service.journal.payloads import Dismissal
from frd.service.state import CellState, DumpResult, ServiceState
from frd.service.timelines.timelines import Timelines
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore

_STALE_AFTER_S: Final = 5.0


class Live(Protocol):
    """The part of `frd.service.cells.cells.Cells` that HTTP uses."""

    state: ServiceState

    def is_sure(self) -> bool:
        """See `Common.is_sure`."""
        ...

    def kept_back(self) -> list[Finding]: ...

    async def dismiss(self, dismissal: Dismissal) -> Finding | None: ...

    async def mark(self, finding: Finding, mark: Mark) -> Finding: ...

    async def take(
        self, key: AttemptKey, ranks: Sequence[int] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult: ...


@dataclass(frozen=True, slots=True)
class ServiceView:
    """`findings`, `finding`, the stores and `timelines` read the disk: use them in a thread."""

    live: Live
    store: FindingStore
    dumps: DumpStore
    now: Callable[[], AlignedNs]
    timelines: Timelines
    silences: Silences

    @property
    def state(self) -> ServiceState:
        return self.live.state

    @property
    def is_sure(self) -> bool:
        """No other replica can have a job of this one: at this moment, and not only at the time of
        `state`."""
        return self.live.is_sure()

    def exported(self) -> ServiceState:
        """For Prometheus, which takes what two replicas say of a job as true at the same time."""
        state = self.state
        if self.is_sure or state.cluster is None:
            return state
        return replace(state.without_jobs(), cluster=replace(state.cluster, sure=False))

    def not_ready(self) -> str | None:
        """The reason why the service cannot serve at present; None when it can.

        A replica goes on with the cells that it has while NATS does not answer.
        """
        if (cluster := self.state.cluster) is not None and not cluster.cells.get(CellState.OWNED):
            if cluster.view.connected:
                return None
            return "NATS does not answer, and this replica has no cell: see the service's log"
        if self.now() - (self.state.evaluated_at or 0) > _STALE_AFTER_S * 1e9:
            return "the last evaluation is stale: see the service's log"
        return None

    def findings(
        self,
        *,
        state: FindingState | None,
        job: str | None,
        limit: int,
        kind: Kind | None = None,
        until: AlignedNs | None = None,
    ) -> Sequence[Finding]:
        """Findings in this state, of this job and kind, that opened before `until`; None for any.
        Newest first. Those that were closed by hand and go on are among the open ones, too."""

        def is_wanted(f: Finding) -> bool:
            return (
                job in (None, f.job)
                and kind in (None, f.kind)
                and (until is None or f.opened_at < until)
            )

        lasting = {f.id: f for f in self.state.lasting_findings() if is_wanted(f)}
        if state is FindingState.OPEN:
            found = lasting
        else:
            stored = self.store.query(state=state, job=job, kind=kind, until=until, limit=limit)
            kept_back = [
                f for f in self.live.kept_back() if is_wanted(f) and state in (None, f.state)
            ]
            found = {f.id: lasting.get(f.id, f) for f in (*stored, *kept_back)}
        return sorted(found.values(), key=lambda f: (-f.opened_at, f.id))[:limit]

    def finding(self, finding_id: str) -> Finding | None:
        """None for an unknown id. The store may not have the last change of an open finding."""
        known = (*self.state.lasting_findings(), *self.live.kept_back())
        live = next((f for f in known if f.id == finding_id), None)
        return live or self.store.get(finding_id)
