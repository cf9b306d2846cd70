"""Which replica answers a request: this one, the owner of the job's cell, or all together.

Wraps the handlers of `frd.service.http.routes`, which know only what this replica has. The cells
that this replica has come from the service itself; the owners of the others, and the only addresses
that are ever asked, from the `ClusterView`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from frd.cluster.cells import cell_of
from frd.cluster.lease import ClusterView, Replica
from frd.decodable import decodable
from frd.model import FindingState, Kind
from frd.service.http import parameters
from frd.service.http.answers import (
    DEFAULT_FINDINGS,
    MAX_DUMP_TIMEOUT_S,
    MAX_FINDINGS,
    body_of,
    json_answer,
    refuse,
)
from frd.service.http.peers import merging
from frd.service.http.peers.client import READ_S, NoAnswer, PeerClient
from frd.service.http.peers.merging import Gathered, Heard
from frd.service.http.peers.questions import (
    CELLS_HEADER,
    UNSURE_HEADER,
    CutOff,
    Questions,
    Relay,
    Wanted,
    forwarded,
    is_forwarded,
)
from frd.service.view import ServiceView

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

_PATIENCE_S: Final = 15.0
"""For the owner itself, in addition to the time limit of its agents."""
_READING: Final = ("GET", "HEAD")
_AGAIN: Final = "try again in a few seconds, see frd status"


class Peers:
    """`cells` returns the cells that this replica has at the moment."""

    def __init__(
        self, view: ServiceView, client: PeerClient, cells: Callable[[], Collection[int]]
    ) -> None:
        self._view = view
        self._client = client
        self._questions = Questions(client, self._cluster)
        self._cells = cells

    async def close(self) -> None:
        await self._client.close()

    # -- one replica answers -------------------------------------------------------------------

    def owner(self, handler: Handler) -> Handler:
        """The owner of the job answers."""

        async def answer(request: Request) -> Response:
            return await self._by_owner(request.path_params["job"], request, handler)

        return answer

    def owner_of_finding(self, handler: Handler) -> Handler:
        """Every replica has closed findings; of an open one, of one that is not known here yet, and
        to change one, the owner of its job answers."""

        async def answer(request: Request) -> Response:
            finding_id = request.path_params["id"]
            found = await asyncio.to_thread(self._view.finding, finding_id)
            if found is not None and not found.lasts and request.method in _READING:
                return await handler(request)
            if found is None and is_forwarded(request):
                return await handler(request)
            job = found.job if found is not None else await self._job_of(finding_id, request)
            if job is None:
                return await handler(request)
            return await self._by_owner(job, request, handler)

        return answer

    def holder(self, handler: Handler, has: Callable[[str], bool]) -> Handler:
        """The replica that took a dump has it, and the logs in it; `has` says it of this one."""

        async def answer(request: Request) -> Response:
            name = request.path_params["id"]
            if await asyncio.to_thread(has, name):
                return await handler(request)
            if is_forwarded(request):
                refuse(404, f"dump: {name!r}: not kept here")
            others = self._others()
            relayed, silent = await self._questions.first_that_has(request, others)
            if relayed is not None:
                return relayed
            self._require_all(f"dump: {name!r}", silent)
            return await handler(request)

        return answer

    def keeper_of_timeline(self, handler: Handler, has: Callable[[str], bool]) -> Handler:
        """As `owner_of_finding`; but the timeline of a closed finding is where it was kept, which
        `has` says of this replica."""
        by_owner = self.owner_of_finding(handler)

        async def answer(request: Request) -> Response:
            finding_id = request.path_params["id"]
            found = await asyncio.to_thread(self._view.finding, finding_id)
            if found is None or found.lasts:
                return await by_owner(request)
            if await asyncio.to_thread(has, finding_id):
                return await handler(request)
            if is_forwarded(request):
                refuse(404, f"timeline: {finding_id!r}: not kept here")
            relayed, _ = await self._questions.first_that_has(request, self._others())
            return relayed if relayed is not None else await handler(request)

        return answer

    async def _by_owner(self, job: str, request: Request, handler: Handler) -> Response:
        cell = cell_of(job)
        if cell in self._cells():
            return await handler(request)
        if is_forwarded(request):
            refuse(503, f"job: {job!r}: another replica has it now: try again")
        view = self._cluster()
        owner = view.replica(view.owners.get(cell, ""))
        if owner is None or owner.name == view.me:
            refuse(503, f"job: {job!r}: no replica has its cell {cell} at present: {_AGAIN}")
        body = await body_of(request, "send less")
        read_s = READ_S if request.method in _READING else _patience_s(body)
        try:
            answered = await self._client.send(owner, forwarded(request, view.me, body, read_s))
        except NoAnswer as error:
            why = f"has its cell {cell} and does not answer ({error})"
            refuse(503, f"job: {job!r}: replica {owner.name} {why}: {_AGAIN}")
        return Relay(request, owner.name, answered)

    async def _job_of(self, finding_id: str, request: Request) -> str | None:
        """The job of a finding that the others may know; None: none of them does."""
        others = self._others()
        target = f"findings/{quote(finding_id.encode(errors='surrogateescape'), safe='')}"
        wanted = Wanted(target, merging.OneFinding)
        heard, silent = await self._questions.ask(others, request, wanted)
        if heard:
            job: str = heard[0].json["job"]
            return job
        self._require_all(f"finding: {finding_id!r}", silent)
        return None

    @staticmethod
    def _require_all(what: str, silent: Sequence[str]) -> None:
        """An id is unknown only if all replicas say so."""
        if silent:
            names = ", ".join(silent)
            refuse(503, f"{what}: unknown here, and no answer from {names}: {_AGAIN}")

    # -- all replicas answer -------------------------------------------------------------------

    def jobs(self, handler: Handler) -> Handler:
        return self._of_all(handler, lambda _: Wanted("jobs", merging.Jobs, merging.merge_jobs))

    def findings(self, handler: Handler) -> Handler:
        return self._of_all(handler, self._findings)

    def health(self, handler: Handler) -> Handler:
        wanted = Wanted("health", merging.Health, merging.merge_health)
        return self._of_all(handler, lambda _: wanted)

    def cluster(self, handler: Handler) -> Handler:
        wanted = Wanted("cluster", merging.Member, merging.merge_cluster)
        return self._of_all(handler, lambda _: wanted)

    def _of_all(self, handler: Handler, wanted: Callable[[Request], Wanted]) -> Handler:
        """`wanted` is called with a request that `handler` has answered."""

        async def answer(request: Request) -> Response:
            cells = self._sure_cells()
            own = await handler(request)
            if is_forwarded(request):
                return self._with_cells(own, cells)
            of = wanted(request)
            heard, silent = await self._questions.ask(self._others(of.job), request, of)
            view = self._cluster()
            if not self._view.is_sure:
                silent.append(view.me)

            def merged() -> object:
                said = Heard(merging.plain(bytes(own.body)), cells)
                return of.merge(Gathered(said, heard, silent, view, of.job))

            return await json_answer(merged)

        return answer

    def _findings(self, request: Request) -> Wanted:
        """The others are asked for open findings only: the closed ones are here, too."""
        query = request.query_params
        asks = {"state": "open", "limit": str(MAX_FINDINGS)}
        asks |= {name: query[name] for name in ("job", "kind", "until") if name in query}
        job, kind, until = query.get("job"), query.get("kind"), parameters.time(request, "until")
        merge = partial(
            merging.merge_findings,
            copies=lambda: self._view.store.query(
                state=FindingState.OPEN,
                job=job,
                kind=Kind(kind) if kind else None,
                until=until,
                limit=MAX_FINDINGS,
            ),
            state=query.get("state"),
            limit=int(query.get("limit", DEFAULT_FINDINGS)),
        )
        target = f"findings?{urlencode(asks, errors='surrogateescape')}"
        return Wanted(target, merging.Findings, merge, job)

    def ready(self, handler: Handler) -> Handler:
        """A replica that is cut off from the registry asks; see `CutOff`."""

        async def answer(request: Request) -> Response:
            own = await handler(request)
            if is_forwarded(request) and self._cluster().connected:
                return self._with_cells(own, self._sure_cells())
            return own

        return answer

    # -- while the registry does not answer ----------------------------------------------------

    async def watch(
        self, view: Callable[[], ClusterView], taken: Callable[[int, str], None]
    ) -> None:
        """See `CutOff`."""
        await CutOff(self._client, view, self._cells, taken).run()

    def _sure_cells(self) -> frozenset[int]:
        """Those that no other replica can have."""
        return frozenset(self._cells()) if self._view.is_sure else frozenset()

    def _with_cells(self, answer: Response, cells: Collection[int]) -> Response:
        answer.headers[CELLS_HEADER] = ",".join(map(str, sorted(cells)))
        if not self._view.is_sure:
            answer.headers[UNSURE_HEADER] = "1"
        return answer

    # -- what this replica knows ---------------------------------------------------------------

    def _cluster(self) -> ClusterView:
        cluster = self._view.state.cluster
        return cluster.view if cluster is not None else ClusterView()

    def _others(self, job: str | None = None) -> list[Replica]:
        """The other living replicas; with a job, only its owner if that is another one."""
        view = self._cluster()
        others = [replica for replica in view.replicas if replica.name != view.me]
        if job is None:
            return others
        cell = cell_of(job)
        owner = None if cell in self._cells() else view.owners.get(cell)
        return [replica for replica in others if replica.name == owner]


@decodable
class _Timed(msgspec.Struct):
    timeout_s: float = 10.0


def _patience_s(body: bytes) -> float:
    """How long the owner may take for a request that changes something."""
    try:
        asked_s = msgspec.json.decode(body, type=_Timed).timeout_s
    except (msgspec.DecodeError, UnicodeDecodeError):  # which the owner refuses
        return READ_S
    return min(max(asked_s, 0.0), MAX_DUMP_TIMEOUT_S) + _PATIENCE_S
