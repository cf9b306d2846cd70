"""HTTP: metrics, health, the JSON API and runbooks, over a `ServiceView`.

Routes and validation of requests; the forms of answers are in `answers` and `json_api`. In a
cluster, `peers` decides which replica answers.

The API reads, takes dumps and closes findings; it can change nothing else. Web pages cannot take a
dump or close a finding: the API accepts only the content type of JSON, which another site may not
send, and no request with an Origin header, which browsers also add after DNS rebinding (a site
whose name resolves to this service).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from frd.decodable import decodable
from frd.engine.views import AttemptView
from frd.errors import ServiceUnavailable, StoreError
from frd.forms import finding_json, unfold_ranks, utc_ns
from frd.model import AlignedNs, Finding, FindingState
from frd.service.http import runbooks
from frd.service.http.answers import (
    API_VERSION,
    DEFAULT_FINDINGS,
    MAX_DUMP_TIMEOUT_S,
    MAX_FINDINGS,
    body_of,
    error_response,
    json_answer,
    refuse,
)
from frd.service.http.json_api import cluster_json, findings_json, job_json, jobs_json
from frd.service.journal.payloads import Dismissal
from frd.service.metrics import collector
from frd.service.state import ServiceState
from frd.service.view import ServiceView
from frd.store.findings import Place

if TYPE_CHECKING:
    from frd.service.http.peers.peers import Peers  # needs httpx, which only a cluster needs

MAX_REASON_CHARS: Final = 1000
_SEE_FINDINGS: Final = "see /api/v1/findings or `frd findings --all`"
_Form = TypeVar("_Form")
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


def create_app(view: ServiceView, peers: Peers | None = None) -> Starlette:
    """The ASGI application of one service; `peers` are the other replicas of its cluster."""
    api, by = _Api(view), peers or _Alone()
    routes = [
        Route("/metrics", api.metrics),
        Route("/-/healthy", api.healthy),
        Route("/-/ready", by.ready(api.ready)),
        Route("/api/v1/jobs", by.jobs(api.jobs)),
        Route("/api/v1/jobs/{job:anything}/dumps", by.owner(api.take_dump), methods=["POST"]),
        Route("/api/v1/jobs/{job:anything}", by.owner(api.job)),
        Route("/api/v1/findings", by.findings(api.findings)),
        Route("/api/v1/history", api.history),
        Route(
            "/api/v1/findings/{id:anything}/close",
            by.owner_of_finding(api.close),
            methods=["POST"],
        ),
        Route("/api/v1/findings/{id:anything}", by.owner_of_finding(api.finding)),
        Route("/api/v1/dumps/{id:anything}", by.owner_of_dump(api.dump)),
        Route("/api/v1/cluster", by.cluster(api.cluster)),
        Route(runbooks.PREFIX + "{name:anything}", api.runbook),
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


class _Alone:
    """Without a cluster, this service answers all requests itself."""

    @staticmethod
    def jobs(handler: Handler) -> Handler:
        return handler

    findings = cluster = ready = owner = owner_of_finding = owner_of_dump = jobs


class _Api:
    """What this replica has."""

    def __init__(self, view: ServiceView) -> None:
        self._view = view
        self._runbooks = runbooks.load()

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
        state, stale = self._view.state, self._view.not_ready()
        return await json_answer(lambda: jobs_json(state, stale))

    async def job(self, request: Request) -> Response:
        state = self._view.state
        attempt = _number(request, "attempt", low=0)
        view = _attempt(state, request.path_params["job"], attempt)
        memory_of = _memory_of(request.query_params.get("memory"), view)
        return await json_answer(lambda: job_json(state, view, memory_of))

    async def findings(self, request: Request) -> Response:
        state = request.query_params.get("state")
        if state is not None and state not in tuple(FindingState):
            refuse(400, f"state: {state!r}: write open or closed, or leave it out")
        limit = _number(request, "limit", low=1, high=MAX_FINDINGS)
        wanted = FindingState(state) if state else None
        job, since = request.query_params.get("job"), _time(request, "since")
        now, stale = self._view.state, self._view.not_ready()

        def answer() -> object:
            found = self._view.findings(state=wanted, job=job, limit=limit or DEFAULT_FINDINGS)
            lasted = [f for f in found if f.closed_at is None or f.closed_at >= (since or 0)]
            return findings_json(now, lasted, stale, job)

        return await json_answer(answer)

    async def history(self, request: Request) -> Response:
        """A page of all stored findings, oldest first; `next` is the `after` of the next page."""
        limit = _number(request, "limit", low=1, high=MAX_FINDINGS) or DEFAULT_FINDINGS
        after = _place(request.query_params.get("after"))
        since, until = _time(request, "since"), _time(request, "until")
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
        return await json_answer(lambda: finding_json(found))

    async def _finding(self, finding_id: str) -> Finding:
        if (found := await asyncio.to_thread(self._view.finding, finding_id)) is not None:
            return found
        refuse(404, f"finding: {finding_id!r}: unknown here: {_SEE_FINDINGS}")

    async def close(self, request: Request) -> Response:
        """Close an open finding by hand; its incident opens no other finding while it lasts."""
        finding_id = request.path_params["id"]
        because = " ".join((await _body(request, _CloseRequest, "send because")).because.split())
        if not 0 < len(because) <= MAX_REASON_CHARS:
            refuse(400, f"because: {len(because)} characters: say why in 1 to {MAX_REASON_CHARS}")
        closed = await self._view.published.dismiss(Dismissal(finding_id, because))
        if closed is None:
            known = await self._finding(finding_id)
            refuse(409, f"finding: {finding_id}: closed already: {known.close_reason}")
        return await json_answer(lambda: finding_json(closed))

    async def take_dump(self, request: Request) -> Response:
        view = _attempt(self._view.state, request.path_params["job"], None)
        wanted = await _body(request, _DumpRequest, "send ranks (0-3,7), stacks and timeout_s")
        if not 0 < wanted.timeout_s <= MAX_DUMP_TIMEOUT_S:
            most = f"{MAX_DUMP_TIMEOUT_S:g} seconds"
            refuse(400, f"timeout_s: {wanted.timeout_s:g}: write up to {most}")
        result = await self._view.dumper.take(
            view.key, _ranks(wanted.ranks, view), stacks=wanted.stacks, timeout_s=wanted.timeout_s
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


# -- requests ----------------------------------------------------------------------------------


def _attempt(state: ServiceState, job: str, attempt: int | None) -> AttemptView:
    """The requested attempt, by default the newest one."""
    if attempt is None:
        found = state.latest_attempts().get(job)
    else:
        wanted = (view for view in state.status_view.attempts if view.key.job == job)
        found = next((view for view in wanted if view.key.attempt == attempt), None)
    if found is None:
        which = repr(job) if attempt is None else f"{job!r} attempt {attempt}"
        refuse(404, f"job: {which}: unknown here: see /api/v1/jobs")
    return found


def _number(request: Request, name: str, *, low: int, high: int = 2**31) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and low <= int(text) <= high):
        refuse(400, f"{name}: {text!r}: write a number from {low} to {high}")
    return int(text)


def _time(request: Request, name: str) -> AlignedNs | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else utc_ns(text)
    except ValueError as error:
        refuse(400, f"{name}: {error}")


def _place(text: str | None) -> Place:
    opened_ns, _, finding_id = (text or "0.").partition(".")
    number = opened_ns.isascii() and opened_ns.isdecimal() and len(opened_ns) < 20
    if not (number and int(opened_ns) < 2**63):
        refuse(400, f"after: {text!r}: write the key next of the previous page")
    return int(opened_ns), finding_id


async def _body(request: Request, form: type[_Form], say: str) -> _Form:
    """The JSON object in the request's body; `say` is what to send instead of a bad one."""
    if "origin" in request.headers:
        refuse(403, "origin: web pages may not change anything: use the frd command")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        refuse(400, "content-type: not application/json: send a JSON object")
    body = await body_of(request, say)
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse(400, f"body: {error}: {say}")


def _memory_of(text: str | None, view: AttemptView) -> Collection[int] | None:
    """Ranks whose memory is shown: `all`, or some; None (the default): a few ranks."""
    if text == "all":
        return range(max((rank.info.rank + 1 for rank in view.ranks), default=0))
    ranks = _ranks(text, view)
    return None if ranks is None else frozenset(ranks)


def _ranks(text: str | None, view: AttemptView) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        ranks = unfold_ranks(text)
    except ValueError as error:
        refuse(400, str(error))
    world = max(view.world_size, *(rank.info.rank + 1 for rank in view.ranks), 0)
    if ranks[-1] >= world:
        refuse(400, f"ranks: {ranks[-1]}: the job has ranks 0 to {world - 1}")
    return ranks


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
