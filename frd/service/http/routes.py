"""HTTP: metrics, health, the JSON API, runbooks and the web page, over a `ServiceView`.

Routes and what they do; `parameters` checks requests, the forms of answers are in `answers` and the
modules ending in ``_json``. In a cluster, `peers` decides which replica answers.

The API reads, takes dumps, and takes what people say of findings (`people`); it can change nothing
else. Other web pages can do neither: the API accepts only the content type of JSON, which another
site may not send, and checks the Origin header, which browsers also add after DNS rebinding (a site
whose name resolves to this service). The service's own page takes no dumps. The replica that a
client asks checks that, and forwards a request without the Origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from frd.address import finding_page, silence_url
from frd.decodable import decodable
from frd.do_now import shown_json
from frd.errors import ServiceUnavailable, StoreError
from frd.model import AlignedNs, FindingState, Kind
from frd.service.access.grants import Tokens
from frd.service.access.refusals import Refusals
from frd.service.evidence.logs import logs_json
from frd.service.findings.people import Refused
from frd.service.findings.report import report
from frd.service.http import parameters
from frd.service.http.answers import (
    API_VERSION,
    DEFAULT_FINDINGS,
    MAX_DUMP_TIMEOUT_S,
    MAX_FINDINGS,
    error_response,
    json_answer,
    refuse,
)
from frd.service.http.job_json import health_json, targets_json
from frd.service.http.json_api import cluster_json, findings_json, job_json, jobs_json
from frd.service.http.people import PeopleApi
from frd.service.http.pictures import FORMS, Pictures
from frd.service.http.web.events import Events
from frd.service.http.web.pages import FILES, RUNBOOKS, Pages, load_runbooks
from frd.service.http.web.past import Past
from frd.service.http.web.session import PATH as SESSION
from frd.service.http.web.session import Handler, OwnPage, Sessions
from frd.service.metrics import collector
from frd.service.view import ServiceView

if TYPE_CHECKING:
    from frd.service.http.peers.peers import Peers  # needs httpx, which only a cluster needs


@decodable
class _DumpRequest(msgspec.Struct, forbid_unknown_fields=True):
    ranks: str | None = None
    stacks: bool = False
    timeout_s: float = 10.0


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
    alertmanager_url: str = ""
    """Where people open Alertmanager; if empty, nothing links to it."""


def create_app(
    view: ServiceView,
    peers: Peers | None = None,
    web: WebOptions = WebOptions(),  # frozen
) -> Starlette:
    """The ASGI application of one service; `peers` are the other replicas of its cluster."""
    people = PeopleApi(view)
    pictures = Pictures(view, people)
    api, by = _Api(view, pictures, people, web), peers or _Alone()
    sessions = Sessions(web.tokens, web.public_url, web.refusals)
    asked = {"jobs": by.jobs(api.jobs), "health": by.health(api.health), "job": by.owner(api.job)}
    events = Events(view, asked, web.tokens)
    timeline = by.keeper_of_timeline(pictures.timeline, pictures.keeps)
    routes = [
        Route("/metrics", api.metrics),
        Route("/metrics/findings", api.metrics_of_findings),
        Route("/-/healthy", api.healthy),
        Route("/-/ready", by.ready(api.ready)),
        Route("/api/v1/jobs", asked["jobs"]),
        Route(
            "/api/v1/jobs/{job:anything}/dumps",
            _refuse_pages(by.owner(api.take_dump)),
            methods=["POST"],
        ),
        Route("/api/v1/jobs/{job:anything}", asked["job"]),
        Route("/api/v1/health", asked["health"]),
        Route("/api/v1/events", events.stream),
        Route("/api/v1/findings", by.findings(api.findings)),
        Route("/api/v1/history", api.history),
        *_said(people, by.owner_of_finding, OwnPage(web.public_url, has_tokens=bool(web.tokens))),
        Route("/api/v1/findings/{id:anything}/timeline", timeline),
        Route("/api/v1/findings/{id:anything}/log", by.holder(api.log, api.has_dump_of)),
        Route("/api/v1/findings/{id:anything}", by.owner_of_finding(api.finding)),
        Route("/api/v1/dumps/{id:anything}", by.holder(api.dump, api.has_dump)),
        Route("/api/v1/cluster", by.cluster(api.cluster)),
        Route("/api/v1/targets", api.targets),
        Route(SESSION, sessions.show),
        Route(SESSION, sessions.sign_in, methods=["POST"]),
        Route(SESSION, sessions.sign_out, methods=["DELETE"]),
        Route(RUNBOOKS + "{name:anything}", api.runbook),
        *(_pages() if web.has_page else ()),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            Refused: _conflict,
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


def _said(people: PeopleApi, owner: Callable[[Handler], Handler], page: OwnPage) -> Iterator[Route]:
    """What people say: of a finding, to the owner of its job; silences, to any replica."""
    for handler in (people.ack, people.assign, people.note, people.silence, people.close):
        path = f"/api/v1/findings/{{id:anything}}/{handler.__name__}"
        yield Route(path, page.only(owner(handler)), methods=["POST"])
    yield Route("/api/v1/silences", people.silences)
    yield Route("/api/v1/silences", page.only(people.put_silence), methods=["POST"])
    end = page.only(people.end_silence)
    yield Route("/api/v1/silences/{id:anything}", end, methods=["DELETE"])


class _Alone:
    """Without a cluster, this service answers all requests itself."""

    @staticmethod
    def jobs(handler: Handler) -> Handler:
        return handler

    findings = health = cluster = ready = owner = owner_of_finding = jobs

    @staticmethod
    def holder(handler: Handler, _: Callable[[str], bool]) -> Handler:
        return handler

    keeper_of_timeline = holder


class _Api:
    """What this replica has."""

    def __init__(
        self, view: ServiceView, pictures: Pictures, people: PeopleApi, web: WebOptions
    ) -> None:
        self._view = view
        self._pictures = pictures
        self._people = people
        self._web = web
        self._runbooks = load_runbooks()
        self._past = Past(view)

    async def metrics(self, _: Request, *, of_findings: bool = False) -> Response:
        def render() -> bytes:
            text = collector.render(view.exported(), of_findings=of_findings)
            if view.is_sure:
                return text  # otherwise the process may have paused while it was made
            return collector.render(view.exported(), of_findings=of_findings)

        view = self._view
        text = await asyncio.to_thread(render)
        return Response(text, headers={"content-type": collector.CONTENT_TYPE})

    async def metrics_of_findings(self, request: Request) -> Response:
        return await self.metrics(request, of_findings=True)

    async def targets(self, _: Request) -> Response:
        """For Prometheus' HTTP service discovery: agents that have a stream to this replica."""
        state = self._view.state
        return await json_answer(lambda: targets_json(state.nodes))

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
                "findings": [shown_json(finding) for finding in found],
                "next": last and f"{last.opened_at}.{last.id}",
            }

        return await json_answer(answer)

    async def finding(self, request: Request) -> Response:
        found = await self._people.finding(request.path_params["id"])
        url = self._web.alertmanager_url
        if parameters.choice(request, "format", ("json", "markdown")) == "markdown":
            base = self._web.public_url or str(request.base_url).rstrip("/")
            page = finding_page(base, found.id) if self._web.has_page else ""
            text = await asyncio.to_thread(lambda: report(shown_json(found), page))
            return PlainTextResponse(text, media_type="text/markdown")

        def answer() -> object:
            before = self._past.before(found)
            silence = {"silence_url": silence_url(url, found.id)} if url else {}
            return shown_json(found) | ({"before": before} if before else {}) | silence

        return await json_answer(answer)

    async def take_dump(self, request: Request) -> Response:
        view = parameters.find_attempt(self._view.state, request.path_params["job"], None)
        say = "send ranks (0-3,7), stacks and timeout_s"
        wanted = await parameters.body(request, _DumpRequest, say)
        if not 0 < wanted.timeout_s <= MAX_DUMP_TIMEOUT_S:
            most = f"{MAX_DUMP_TIMEOUT_S:g} seconds"
            refuse(400, f"timeout_s: {wanted.timeout_s:g}: write up to {most}")
        ranks = parameters.ranks_of(wanted.ranks, view)
        result = await self._view.live.take(
            view.key, ranks, stacks=wanted.stacks, timeout_s=wanted.timeout_s
        )
        answer = {
            "id": result.id,
            "answered": sorted(result.answered),
            "failed": {str(rank): why for rank, why in sorted(result.failed.items())},
        }
        return await json_answer(lambda: answer, 201)

    def has_dump(self, dump_id: str) -> bool:
        return dump_id in self._view.dumps.ids()

    def has_dump_of(self, finding_id: str) -> bool:
        found = self._view.finding(finding_id)
        return found is not None and self.has_dump(found.dump or "")

    async def log(self, request: Request) -> Response:
        """The last lines that the suspects logged, as they were when the finding opened."""
        finding = await self._people.finding(request.path_params["id"])
        return await json_answer(lambda: logs_json(finding, self._view.dumps))

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
            refuse(404, f"runbook: {name!r}: unknown here: see {RUNBOOKS}")
        return page.answer(request)


def _refuse_pages(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        if "origin" in request.headers:
            refuse(403, "origin: web pages may not take dumps: use `frd dump`")
        return await handler(request)

    return answer


# -- errors ------------------------------------------------------------------------------------


async def _http_error(request: Request, error: Exception) -> Response:
    """Refusals of this module, and those of the router: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    known = {404: "unknown path", 405: f"no {request.method} here"}.get(error.status_code)
    bare = error.detail in ("Not Found", "Method Not Allowed")
    message = f"path: {request.url.path}: {known}: see the documented API" if bare else error.detail
    return error_response(error.status_code, message, error.headers)


async def _conflict(_: Request, error: Exception) -> Response:
    return error_response(409, str(error))


async def _unavailable(_: Request, error: Exception) -> Response:
    return error_response(503, str(error))


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of the service; the server logs its traceback."""
    return error_response(
        500, f"frd: {type(error).__name__}: internal error of the service: see its log"
    )
