"""HTTP: metrics, health, the JSON API, runbooks and the web page, over a `ServiceView`.

Routes and what they do; `parameters` checks requests, the forms of answers are in `answers` and the
modules ending in ``_json``. In a cluster, `peers` decides which replica answers.

The API reads, takes dumps and closes findings; it can change nothing else. Web pages cannot take a
dump or close a finding: the API accepts only the content type of JSON, which another site may not
send, and no request with an Origin header, which browsers also add after DNS rebinding (a site
whose name resolves to this service). The service's own page only reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from frd.decodable import decodable
from frd.errors import ServiceUnavailable, StoreError
from frd.forms import finding_json
from frd.model import AlignedNs, Finding, FindingState, Kind
from frd.service.access.grants import Tokens
from frd.service.access.refusals import Refusals
from frd.service.http import parameters, runbooks
from frd.service.http.answers import (
    API_VERSION,
    DEFAULT_FINDINGS,
    MAX_DUMP_TIMEOUT_S,
    MAX_FINDINGS,
    error_response,
    json_answer,
    refuse,
)
from frd.service.http.health_json import health_json
from frd.service.http.json_api import cluster_json, findings_json, job_json, jobs_json
from frd.service.http.pictures import FORMS, Pictures
from frd.service.http.web.events import Events
from frd.service.http.web.pages import FILES, Pages
from frd.service.http.web.past import Past
from frd.service.http.web.session import PATH as SESSION
from frd.service.http.web.session import Sessions
from frd.service.journal.payloads import Dismissal
from frd.service.metrics import collector
from frd.service.view import ServiceView

if TYPE_CHECKING:
    from frd.service.http.peers.peers import Peers  # needs httpx, which only a cluster needs

MAX_REASON_CHARS: Final = 1000
_SEE_FINDINGS: Final = "see /api/v1/findings or `frd findings --all`"
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


@decodable
class _DumpRequest(msgspec.Struct, forbid_unknown_fields=True):
    ranks: str | None = None
    stacks: bool = False
    timeout_s: float = 10.0


@decodable
class _CloseRequest(msgspec.Struct, forbid_unknown_fields=True):
    because: str


class _Anything(PathConvertor):
    """The rest of the path: the name of a job may contain slashes and line breaks."""

    regex = "(?s:.*)"


register_url_convertor("anything", _Anything())


@dataclass(frozen=True, slots=True)
class WebOptions:
    """`tokens`: those with which one may sign in, None if none is needed."""

    tokens: Tokens | None = None
    has_page: bool = True
    public_url: str = ""
    """Where browsers open the service; if empty, where the requests arrive."""
    refusals: Refusals = field(default_factory=Refusals, compare=False)
    """As of `HttpGuard`."""


def create_app(
    view: ServiceView,
    peers: Peers | None = None,
    web: WebOptions = WebOptions(),  # frozen
) -> Starlette:
    """The ASGI application of one service; `peers` are the other replicas of its cluster."""
    pictures = Pictures(view)
    api, by = _Api(view, pictures), peers or _Alone()
    sessions = Sessions(web.tokens, web.public_url, web.refusals)
    asked = {"jobs": by.jobs(api.jobs), "health": by.health(api.health), "job": by.owner(api.job)}
    events = Events(view, asked, web.tokens)
    timeline = by.keeper_of_timeline(pictures.timeline, pictures.keeps)
    routes = [
        Route("/metrics", api.metrics),
        Route("/-/healthy", api.healthy),
        Route("/-/ready", by.ready(api.ready)),
        Route("/api/v1/jobs", asked["jobs"]),
        Route("/api/v1/jobs/{job:anything}/dumps", by.owner(api.take_dump), methods=["POST"]),
        Route("/api/v1/jobs/{job:anything}", asked["job"]),
        Route("/api/v1/health", asked["health"]),
        Route("/api/v1/events", events.stream),
        Route("/api/v1/findings", by.findings(api.findings)),
        Route("/api/v1/history", api.history),
        Route(
            "/api/v1/findings/{id:anything}/close",
            by.owner_of_finding(api.close),
            methods=["POST"],
        ),
        Route("/api/v1/findings/{id:anything}/timeline", timeline),
        Route("/api/v1/findings/{id:anything}", by.owner_of_finding(api.finding)),
        Route("/api/v1/dumps/{id:anything}", by.owner_of_dump(api.dump)),
        Route("/api/v1/cluster", by.cluster(api.cluster)),
        Route(SESSION, sessions.show),
        Route(SESSION, sessions.sign_in, methods=["POST"]),
        Route(SESSION, sessions.sign_out, methods=["DELETE"]),
        Route(runbooks.PREFIX + "{name:anything}", api.runbook),
        *(_pages() if web.has_page else ()),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            StoreError: _unavailable,
            ServiceUnavailable: _unavailable,
            Exception: _broken,
        },
    )


def _pages() -> Iterator[Route]:
    pages = Pages()
    yield Route(FILES + "{name:anything}", pages.file)
    for path in ("/", "/history", "/jobs/{name:anything}", "/findings/{name:anything}"):
        yield Route(path, pages.page)
    yield Route("/{unknown:anything}", pages.unknown)


class _Alone:
    """Without a cluster, this service answers all requests itself."""

    @staticmethod
    def jobs(handler: Handler) -> Handler:
        return handler

    findings = health = cluster = ready = owner = owner_of_finding = owner_of_dump = jobs

    @staticmethod
    def keeper_of_timeline(handler: Handler, _: Callable[[str], bool]) -> Handler:
        return handler


class _Api:
    """What this replica has."""

    def __init__(self, view: ServiceView, pictures: Pictures) -> None:
        self._view = view
        self._pictures = pictures
        self._runbooks = runbooks.load()
        self._past = Past(view)

    async def metrics(self, _: Request) -> Response:
        text = await asyncio.to_thread(collector.render, self._view.state)
        return Response(text, headers={"content-type": collector.CONTENT_TYPE})

    async def healthy(self, _: Request) -> Response:
        return PlainTextResponse("frd is up\n")

    async def ready(self, _: Request) -> Response:
        if (why := self._view.not_ready()) is not None:
            return PlainTextResponse(f"not ready: {why}\n", 503)
        return PlainTextResponse("frd is ready\n")

    async def jobs(self, _: Request) -> Response:
        view = self._view

        def answer() -> object:
            state = view.state
            return jobs_json(state, view.not_ready(), self._past.ended(state))

        return await json_answer(answer)

    async def health(self, _: Request) -> Response:
        view = self._view
        return await json_answer(lambda: health_json(view.state, view.now(), view.not_ready()))

    async def job(self, request: Request) -> Response:
        job, attempt = request.path_params["job"], parameters.number(request, "attempt", low=0)
        form = parameters.choice(request, "view", FORMS)
        if form is not None:
            rank = parameters.number(request, "rank", low=0)
            return await self._pictures.job(request, (job, attempt), form, rank)
        state = self._view.state
        view = parameters.find_attempt(state, job, attempt)
        memory_of = parameters.memory_of(request.query_params.get("memory"), view)
        return await json_answer(lambda: job_json(state, view, memory_of))

    async def findings(self, request: Request) -> Response:
        state = parameters.choice(request, "state", tuple(FindingState))
        kind = parameters.choice(request, "kind", tuple(Kind))
        limit = parameters.number(request, "limit", low=1, high=MAX_FINDINGS)
        job, since = request.query_params.get("job"), parameters.time(request, "since")
        until = parameters.time(request, "until")
        now, stale = self._view.state, self._view.not_ready()

        def answer() -> object:
            found = self._view.findings(
                state=FindingState(state) if state else None,
                job=job,
                kind=Kind(kind) if kind else None,
                until=until,
                limit=limit or DEFAULT_FINDINGS,
            )
            lasted = [f for f in found if f.lasts or (f.closed_at or 0) >= (since or 0)]
            return findings_json(now, lasted, stale, job)

        return await json_answer(answer)

    async def history(self, request: Request) -> Response:
        """A page of all stored findings, oldest first; `next` is the `after` of the next page."""
        limit = parameters.number(request, "limit", low=1, high=MAX_FINDINGS) or DEFAULT_FINDINGS
        after = parameters.place(request.query_params.get("after"))
        since, until = parameters.time(request, "since"), parameters.time(request, "until")
        job = request.query_params.get("job")

        def answer() -> object:
            found = self._view.store.page(
                after=after, since=since or AlignedNs(0), until=until, job=job, limit=limit
            )
            last = found[-1] if len(found) == limit else None
            return {
                "api_version": API_VERSION,
                "findings": [finding_json(finding) for finding in found],
                "next": last and f"{last.opened_at}.{last.id}",
            }

        return await json_answer(answer)

    async def finding(self, request: Request) -> Response:
        found = await self._finding(request.path_params["id"])

        def answer() -> object:
            before = self._past.before(found)
            return finding_json(found) | ({"before": before} if before else {})

        return await json_answer(answer)

    async def _finding(self, finding_id: str) -> Finding:
        if (found := await asyncio.to_thread(self._view.finding, finding_id)) is not None:
            return found
        refuse(404, f"finding: {finding_id!r}: unknown here: {_SEE_FINDINGS}")

    async def close(self, request: Request) -> Response:
        """Close an open finding by hand; its incident opens no other finding while it lasts."""
        finding_id = request.path_params["id"]
        _refuse_pages(request)
        asked = await parameters.body(request, _CloseRequest, "send because")
        because = " ".join(asked.because.split())
        if not 0 < len(because) <= MAX_REASON_CHARS:
            refuse(400, f"because: {len(because)} characters: say why in 1 to {MAX_REASON_CHARS}")
        closed = await self._view.published.dismiss(Dismissal(finding_id, because))
        if closed is None:
            known = await self._finding(finding_id)
            refuse(409, f"finding: {finding_id}: closed already: {known.close_reason}")
        return await json_answer(lambda: finding_json(closed))

    async def take_dump(self, request: Request) -> Response:
        _refuse_pages(request)
        view = parameters.find_attempt(self._view.state, request.path_params["job"], None)
        say = "send ranks (0-3,7), stacks and timeout_s"
        wanted = await parameters.body(request, _DumpRequest, say)
        if not 0 < wanted.timeout_s <= MAX_DUMP_TIMEOUT_S:
            most = f"{MAX_DUMP_TIMEOUT_S:g} seconds"
            refuse(400, f"timeout_s: {wanted.timeout_s:g}: write up to {most}")
        ranks = parameters.ranks_of(wanted.ranks, view)
        result = await self._view.dumper.take(
            view.key, ranks, stacks=wanted.stacks, timeout_s=wanted.timeout_s
        )
        answer = {
            "id": result.id,
            "answered": sorted(result.answered),
            "failed": {str(rank): why for rank, why in sorted(result.failed.items())},
        }
        return await json_answer(lambda: answer, 201)

    async def dump(self, request: Request) -> Response:
        dump_id = request.path_params["id"]
        stream = await asyncio.to_thread(self._view.dumps.tar, dump_id)
        if stream is None:
            refuse(404, f"dump: {dump_id!r}: unknown here, or evicted to stay within the bound")
        return StreamingResponse(stream, media_type="application/x-tar")

    async def cluster(self, _: Request) -> Response:
        if (cluster := self._view.state.cluster) is None:
            refuse(404, "cluster: none: this service has no section [cluster]: see docs/cluster.md")
        return await json_answer(lambda: cluster_json(cluster))

    async def runbook(self, request: Request) -> Response:
        name = request.path_params["name"]
        if (page := self._runbooks.get(name)) is None:
            refuse(404, f"runbook: {name!r}: unknown here: see {runbooks.PREFIX}")
        return PlainTextResponse(page)


def _refuse_pages(request: Request) -> None:
    if "origin" in request.headers:
        refuse(403, "origin: web pages may not change anything: use the frd command")


# -- errors ------------------------------------------------------------------------------------


async def _http_error(request: Request, error: Exception) -> Response:
    """Refusals of this module, and those of the router: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    known = {404: "unknown path", 405: f"no {request.method} here"}.get(error.status_code)
    bare = error.detail in ("Not Found", "Method Not Allowed")
    message = f"path: {request.url.path}: {known}: see the documented API" if bare else error.detail
    return error_response(error.status_code, message, error.headers)


async def _unavailable(_: Request, error: Exception) -> Response:
    return error_response(503, str(error))


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of the service; the server logs its traceback."""
    return error_response(
        500, f"frd: {type(error).__name__}: internal error of the service: see its log"
    )
