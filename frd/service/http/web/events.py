"""Server-sent events: the page stays current without asking, and `curl -N` can follow findings.

A stream sends the answers of some GETs again and again, and each finding when it opens, changes or
closes. All viewers with the same token share a `_Feed`, which asks once for all of them; to send
its bytes to one more viewer costs a write. Large answers are sent less often, so that a viewer gets
a bounded number of bytes a minute. A viewer that reads slowly misses answers, which the next one
replaces, and delays no other viewer. An answer that another replica delays for seconds delays
neither findings nor other answers.

A finding's ages and wordings change all the time; so do those of hundreds of findings of a job of
16,384 ranks, each of which may be a hundred kilobytes. Comparing them, which finds those that
viewers have to get again, is work for a thread (`FindingNews`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from frd.do_now import shown_json
from frd.errors import FrdError, StoreError
from frd.forms import json_bytes, utc_text
from frd.model import Finding, FindingState
from frd.service.access.grants import Tokens
from frd.service.http.answers import MAX_FINDINGS, refuse
from frd.service.http.web.session import Handler, host_of
from frd.service.periodic import Faults
from frd.service.view import ServiceView

_Topic: TypeAlias = tuple[str, str]
"""The name of an event, and the job that it is about; empty for none."""

MAX_VIEWERS: Final = 200
MAX_VIEWERS_OF_HOST: Final = 100
LONGEST_S: Final = 900.0
"""Then a stream ends, and the browser connects again: a token may have been withdrawn."""
_LOOK_S: Final = 1.0
_QUIET_S: Final = 4.0
"""Something is sent at least so often, which shows that the connection is well."""
_REMEMBERED: Final = 256
"""Findings that a slow viewer may lag behind."""
AGAIN_S: Final = 10.0
"""How often a finding is sent again of which only texts and ages have changed,"""
_BYTES_PER_S: Final = 8_000
"""unless there are so many, or so large ones, that this would be more bytes."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """How often an answer is sent: so many seconds apart, and not more bytes a second."""

    every_s: float
    bytes_per_s: float


_PACES: Final = {
    "jobs": _Pace(2.0, 8_000),
    "health": _Pace(5.0, 2_000),
    "job": _Pace(2.0, 10_000),
}
"""With findings, 28 kB a second: below 2 MB a minute."""


class Events:
    """`handlers` answer the GETs whose answers are events, by name: jobs, health, job. `tokens` are
    those of the service, None if it needs none."""

    def __init__(
        self, view: ServiceView, handlers: Mapping[str, Handler], tokens: Tokens | None
    ) -> None:
        self._view = view
        self._handlers = handlers
        self._has_tokens = tokens is not None
        self._feeds: dict[str, _Feed] = {}
        """By token: what other replicas answer depends on it. Without tokens there is one feed,
        under the empty one, whatever header a client makes up."""
        self._viewers = 0
        self._hosts: Counter[str] = Counter()
        """Viewers by address of the client."""

    async def stream(self, request: Request) -> Response:
        if self._viewers >= MAX_VIEWERS:
            refuse(503, f"events: {MAX_VIEWERS} viewers already: ask the API every few seconds")
        if self._hosts[host := host_of(request.scope)] >= MAX_VIEWERS_OF_HOST:
            refuse(503, f"events: {host} has {MAX_VIEWERS_OF_HOST} streams already: close some")
        job = request.query_params.get("job")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._follow(request, job), headers=headers, media_type="text/event-stream"
        )

    async def _follow(self, request: Request, job: str | None) -> AsyncIterator[bytes]:
        """What one viewer gets."""
        topics = [("jobs", ""), ("health", "")] + ([("job", job)] if job is not None else [])
        token = _token_of(request) if self._has_tokens else ""
        feed = self._feeds.get(token)
        if feed is None:
            feed = self._feeds[token] = _Feed(self._view, self._handlers, request, token)
        self._viewers += 1
        host = host_of(request.scope)
        self._hosts[host] += 1
        feed.join(topics)
        try:
            async for data in feed.follow(topics):
                yield data
        finally:
            self._viewers -= 1
            self._hosts[host] -= 1
            self._hosts = +self._hosts
            if feed.leave(topics):
                del self._feeds[token]


def _token_of(request: Request) -> str:
    """The token, however the client writes its header; as `Tokens.grant` reads it."""
    return request.headers.get("authorization", "").partition(" ")[2].strip()


@dataclass(slots=True)
class _Sent:
    """The last answer of a topic."""

    number: int
    data: bytes
    next_at: float


class _Feed:
    """What the viewers with one token get. `request` is the first of theirs: others are made of
    it. They carry `token`, if that is not empty.

    One task looks at findings, another one starts the questions that are due. Each question is a
    separate task, and waits for nothing but its answer.
    """

    def __init__(
        self, view: ServiceView, handlers: Mapping[str, Handler], request: Request, token: str
    ) -> None:
        self._view = view
        self._handlers = handlers
        self._scope = request.scope
        bearer = (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))
        self._headers = [bearer] if token else []
        self._topics: Counter[_Topic] = Counter()
        self._viewers = 0
        self._sent: dict[_Topic, _Sent] = {}
        self._number = 0
        """Of the last answer or finding that was made."""
        self._findings: deque[tuple[int, bytes]] = deque(maxlen=_REMEMBERED)
        self._finding_news = FindingNews(view)
        self._news = asyncio.Event()
        self._changes = 0
        """How often findings have opened or closed."""
        self._running: list[asyncio.Task[None]] = []
        self._asking: dict[_Topic, asyncio.Task[None]] = {}
        """The last question of each topic; at most one that is not done."""
        self._faults = Faults()

    # -- viewers -------------------------------------------------------------------------------

    def join(self, topics: list[_Topic]) -> None:
        self._topics.update(topics)
        self._viewers += 1
        if not self._running:
            loops = self._run(self._look), self._run(self._ask_what_is_due)
            self._running = [asyncio.create_task(loop) for loop in loops]

    def leave(self, topics: list[_Topic]) -> bool:
        """Returns whether this was the last viewer."""
        self._topics.subtract(topics)
        self._topics = +self._topics
        self._sent = {topic: sent for topic, sent in self._sent.items() if topic in self._topics}
        for topic in self._asking.keys() - self._topics.keys():
            self._asking.pop(topic).cancel()
        self._viewers -= 1
        if self._viewers == 0:
            for task in self._running:
                task.cancel()
        return self._viewers == 0

    async def follow(self, topics: list[_Topic]) -> AsyncIterator[bytes]:
        """Events for one viewer, several together."""
        # What opens from here on follows the hello, also if the viewer takes its time to read it.
        seen, finding = dict.fromkeys(topics, 0), self._number
        yield _event("hello", self._now())
        end_at = time.monotonic() + LONGEST_S
        while time.monotonic() < end_at:
            news = self._news
            parts = []
            is_full = len(self._findings) == _REMEMBERED
            if is_full and finding < self._findings[0][0] - 1:
                parts.append(_event("hello", self._now()))  # it has missed some
            for number, data in self._findings:
                if number > finding:
                    parts.append(data)
                    finding = number
            for topic in topics:
                sent = self._sent.get(topic)
                if sent is not None and sent.number > seen[topic]:
                    parts.append(sent.data)
                    seen[topic] = sent.number
            if parts:
                yield b"".join(parts)
                continue
            try:
                async with asyncio.timeout(_QUIET_S):
                    await news.wait()
            except TimeoutError:
                yield _event("tick", self._now())

    def _now(self) -> bytes:
        state = self._view.state
        return json_bytes({"at": utc_text(state.utc(state.status_view.at))})

    # -- news ----------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await work()
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        """At findings."""
        with self._faults.logged("findings for the web page"):
            found = await asyncio.to_thread(self._finding_news.look, time.monotonic())
            for finding in found.findings:
                self._number += 1
                self._findings.append((self._number, _event("finding", finding)))
            if found.findings:
                self._wake()
            if found.opened_or_closed:  # which the other answers show, too
                self._changes += 1
                for sent in self._sent.values():
                    sent.next_at = 0.0
                await self._ask_what_is_due()

    async def _ask_what_is_due(self) -> None:
        """Start the questions, and wait for none."""
        now = time.monotonic()
        for topic in self._topics:
            sent, asking = self._sent.get(topic), self._asking.get(topic)
            is_due = sent is None or now >= sent.next_at
            if is_due and (asking is None or asking.done()):
                self._asking[topic] = asyncio.create_task(self._ask(topic, now))

    async def _ask(self, topic: _Topic, now: float) -> None:
        name, job = topic
        with self._faults.logged(f"{name} for the web page"):
            changes = self._changes
            try:
                request = self._request(job)
                body = await _body(await self._handlers[name](request), request)
            except HTTPException as error:
                body = json_bytes({"error": error.detail})
            except FrdError as error:
                body = json_bytes({"error": str(error)})
            self._number += 1
            pace = _PACES[name]
            next_at = now + max(pace.every_s, len(body) / pace.bytes_per_s) - _LOOK_S / 2
            if changes != self._changes:  # the answer may be older than that
                next_at = 0.0
            self._sent[topic] = _Sent(self._number, _event(name, body), next_at)
            self._wake()

    def _wake(self) -> None:
        """Wake the viewers."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _request(self, job: str) -> Request:
        """The request whose answer is the event."""
        path = f"/api/v1/jobs/{job}"
        scope: dict[str, Any] = {
            **self._scope,
            "method": "GET",
            "path": path,
            "raw_path": quote(path.encode(errors="surrogateescape")).encode(),
            "headers": self._headers,
            "path_params": {"job": job},
            "query_string": b"view=summary",
        }
        return Request(scope, _no_body)


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _body(answer: Response, request: Request) -> bytes:
    """That of an answer, which may be on its way from another replica."""
    body = bytearray()
    is_whole = False

    async def send(message: Message) -> None:
        nonlocal is_whole
        body.extend(message.get("body", b""))
        is_whole = message["type"] == "http.response.body" and not message.get("more_body")

    await answer(request.scope, request.receive, send)
    if not is_whole:
        raise HTTPException(503, "events: the answer of another replica broke off")
    return bytes(body)


def _event(name: str, data: bytes) -> bytes:
    """JSON is one line."""
    return b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


@dataclass(slots=True)
class _Shown:
    """An open finding as viewers have it."""

    finding: Finding
    at: float
    size: int = 0
    """Bytes of its JSON."""


@dataclass(slots=True)
class News:
    """What has changed since the last look."""

    findings: list[bytes] = field(default_factory=list)
    """Findings as JSON."""
    opened_or_closed: bool = False


class FindingNews:
    """`look` reads the disk. One thread at a time."""

    def __init__(self, view: ServiceView) -> None:
        self._view = view
        self._shown: dict[str, _Shown] | None = None
        """By id; None before the first look."""

    def look(self, now: float) -> News:
        """`now` is a monotonic time in seconds. The first look has no news: what is open then is
        for the viewers to ask."""
        is_open, news = self._open_findings(), News()
        if self._shown is None:
            self._shown = {id_: _Shown(finding, now) for id_, finding in is_open.items()}
            return news
        shown = self._shown
        again_s = max(AGAIN_S, sum(one.size for one in shown.values()) / _BYTES_PER_S)
        for id_, finding in is_open.items():
            last = shown.get(id_)
            if last is None or _differs(last, finding, now, again_s):
                news.findings.append(json_bytes(shown_json(finding)))
                shown[id_] = _Shown(finding, now, len(news.findings[-1]))
                news.opened_or_closed |= last is None
        for id_ in shown.keys() - is_open.keys():
            try:
                closed = self._view.finding(id_)
            except StoreError:
                continue  # the next look tries again
            del shown[id_]
            news.opened_or_closed = True
            if closed is not None:
                news.findings.append(json_bytes(shown_json(closed)))
        return news

    def _open_findings(self) -> dict[str, Finding]:
        """Of all replicas: the store has copies of those of the others."""
        copies = []
        if self._view.state.cluster is not None:
            copies = self._view.store.query(state=FindingState.OPEN, limit=MAX_FINDINGS)
        own = self._view.findings(state=FindingState.OPEN, job=None, limit=MAX_FINDINGS)
        return {finding.id: finding for finding in (*copies, *own)}


def _differs(shown: _Shown, finding: Finding, now: float, again_s: float) -> bool:
    """Whether viewers have to get a finding again: if it says something else now; for another
    wording, after `again_s`."""
    if _gist(shown.finding) != _gist(finding):
        return True
    return now - shown.at >= again_s and _ageless(shown.finding) != _ageless(finding)


def _gist(finding: Finding) -> tuple[object, ...]:
    suspects = [
        (s.rank, s.reason, s.confidence, bool(s.stack), s.waits_for and s.waits_for.kind)
        for s in finding.suspects
    ]
    gist = finding.state, finding.severity, finding.kind, finding.dump, finding.ended_by
    return (
        *(*gist, suspects, finding.witness is None, len(finding.victims)),
        *(bool(finding.second_opinion), finding.opened_at // 1_000_000_000, finding.goes_on),
        *(finding.acknowledged_by, finding.assigned_to, len(finding.notes)),
        *(finding.silenced_until_at, finding.silenced_by),
    )


def _ageless(finding: Finding) -> Finding:
    collective = finding.collective
    if collective is not None:
        collective = replace(collective, waited_s=0.0)
    return replace(finding, collective=collective, effect="", summary="")
