"""Everything that HTTP may ask of the service: the published state, findings, dumps.

`frd.service.http.routes` gets a `ServiceView` and knows no engine, no stream and no database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, AttemptKey, Finding, FindingState
from frd.service.findings.dismissal import Dismissal
from frd.service.state import DumpResult, ServiceState
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore, Place

_STALE_AFTER_S: Final = 5.0


class Published(Protocol):
    """The part of the evaluator that publishes; see `frd.service.findings.evaluator`."""

    state: ServiceState

    def kept_back(self) -> list[Finding]: ...

    async def dismiss(self, dismissal: Dismissal) -> Finding | None: ...


class DumpTaker(Protocol):
    """See `frd.service.findings.dumper`."""

    async def take(
        self, key: AttemptKey, ranks: Sequence[int] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult: ...


class ServiceView:
    """`findings`, `history`, `finding` and `dump_tar` read the disk: call them in a worker thread.

    Only `take_dump` and `dismiss` may take time, and that time is bounded.
    """

    def __init__(
        self,
        published: Published,
        store: FindingStore,
        dumps: DumpStore,
        dumper: DumpTaker,
        now: Callable[[], AlignedNs],
    ) -> None:
        self._published = published
        self._store = store
        self._dumps = dumps
        self._dumper = dumper
        self._now = now

    def state(self) -> ServiceState:
        return self._published.state

    def not_ready(self) -> str | None:
        """The reason why the service cannot serve at present; None when it can."""
        if self._now() - (self.state().evaluated_at or 0) > _STALE_AFTER_S * 1e9:
            return "the last evaluation is stale: see the service's log"
        return None

    def findings(
        self, *, state: FindingState | None, job: str | None, limit: int
    ) -> Sequence[Finding]:
        """Findings in this state, None for any; newest first."""
        if state is FindingState.OPEN:  # open findings are in memory
            found = [f for f in self.state().open_findings() if job in (None, f.job)]
        else:
            stored = self._store.query(state=state, job=job, limit=limit)
            kept_back = [
                f
                for f in self._published.kept_back()
                if job in (None, f.job) and state in (None, f.state)
            ]
            shown = {f.id: f for f in (*stored, *kept_back)}
            still_open = {f.id: f for f in self.state().open_findings() if f.id in shown}
            found = list((shown | still_open).values())
        return sorted(found, key=lambda f: (-f.opened_at, f.id))[:limit]

    def history(
        self,
        *,
        after: Place,
        since: AlignedNs,
        until: AlignedNs | None,
        job: str | None,
        limit: int,
    ) -> Sequence[Finding]:
        """A page of all stored findings, oldest first."""
        return self._store.page(after=after, since=since, until=until, job=job, limit=limit)

    def finding(self, finding_id: str) -> Finding | None:
        """None for an unknown id. The store may not have the last change of an open finding."""
        known = (*self.state().open_findings(), *self._published.kept_back())
        live = next((f for f in known if f.id == finding_id), None)
        return live or self._store.get(finding_id)

    async def dismiss(self, dismissal: Dismissal) -> Finding | None:
        """Close a finding by hand: the closed finding, or None when no such finding is open.

        Raises:
            ServiceUnavailable: no evaluation closed it in time.
        """
        try:
            return await self._published.dismiss(dismissal)
        except TimeoutError:
            raise ServiceUnavailable(
                f"finding: {dismissal.finding}: not closed: the service is too busy: "
                "see its log, and try again"
            ) from None

    async def take_dump(
        self, key: AttemptKey, ranks: tuple[int, ...] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult:
        """Ask the agents of `ranks` (None: all) for dumps and store the answers.

        Raises:
            ServiceUnavailable: no agent of the attempt is connected.
            StoreError: the dump cannot be stored.
        """
        return await self._dumper.take(key, ranks, stacks=stacks, timeout_s=timeout_s)

    def dump_tar(self, dump_id: str) -> Iterator[bytes] | None:
        """The folder as a tar stream; None when there is no such dump."""
        return self._dumps.tar(dump_id)
