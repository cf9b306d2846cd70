"""A feed of server-sent events over a service whose findings a test changes, at times that the test
gives; and one stream of the whole application."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from frd.model import Change, Finding, FindingEvent
from frd.service.access.grants import Tokens
from frd.service.http.answers import json_answer
from frd.service.http.web import events as module
from frd.service.http.web.events import Events, _Feed, _Topic
from tests.world.http_api import Service

LISTS: list[_Topic] = [("jobs", ""), ("health", "")]
Shown = list[tuple[str, Any]]
"""Names and data of events."""


def parsed(data: bytes) -> Shown:
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, _, text = block.partition("\n")
        assert name.startswith("event: ")
        assert text.startswith("data: ")
        assert "\n" not in text
        found.append((name.removeprefix("event: "), json.loads(text.removeprefix("data: "))))
    return found


async def news(stream: AsyncGenerator[bytes, None]) -> Shown:
    """The next chunk."""
    return parsed(await anext(stream))


class Feeding:
    """Its handlers count, and answer with `size` more bytes; `fails` raise instead, and those that
    `hang` wait for their event first."""

    def __init__(
        self, service: Service, patch: pytest.MonkeyPatch, tokens: Tokens | None = None
    ) -> None:
        self.service = service
        self.now = 0.0
        self.asked: list[tuple[str, Request]] = []
        self.size = 0
        self.fails: dict[str, Exception] = {}
        self.hang: dict[str, asyncio.Event] = {}
        self.handlers = {name: self._handler(name) for name in ("jobs", "health", "job")}
        self.feed = self.another()
        self.events = Events(service.view, self.handlers, tokens)
        patch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def another(self) -> _Feed:
        return _Feed(self.service.view, self.handlers, request(), "x")

    def _handler(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            self.asked.append((name, request))
            if name in self.hang:
                await self.hang[name].wait()
            if name in self.fails:
                raise self.fails[name]
            answer = {"n": len(self.asked), "more": "x" * self.size}
            return await json_answer(lambda: answer)

        return handler

    def show(self, *findings: Finding) -> None:
        """These are open now."""
        state = self.service.state
        view = dataclasses.replace(state.status_view, findings=findings)
        self.service.state = dataclasses.replace(state, status_view=view)

    def store(self, one: Finding) -> None:
        self.service.store.save([FindingEvent(Change.CLOSED, one)])

    @asynccontextmanager
    async def viewer(self, *topics: _Topic) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """What one viewer gets; the feed looks only when the test says so."""
        self.feed._topics.update(topics)
        stream = self.feed.follow([*topics])
        assert isinstance(stream, AsyncGenerator)
        assert [name for name, _ in await news(stream)] == ["hello"]
        try:
            yield stream
        finally:
            await stream.aclose()

    async def look(self, seconds: float = 0.0) -> None:
        """The feed looks after so many seconds, and gets all answers that do not hang."""
        self.now += seconds
        await self.feed._look()
        await self.feed._ask_what_is_due()
        asking = self.feed._asking.items()
        await asyncio.gather(*(task for (name, _), task in asking if name not in self.hang))


def request(
    token: str = "Bearer x", query: str = "job=train&memory=all", host: str = "127.0.0.1"
) -> Request:
    """That of a viewer."""
    headers = [(b"authorization", token.encode()), (b"accept-encoding", b"gzip")]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "query_string": query.encode(),
            "headers": headers,
            "client": (host, 50000),
        }
    )


async def streamed(app: Any, query: str, wanted: Callable[[Shown], bool]) -> tuple[Any, Shown]:
    """The start of the answer of an application, and its events until they are as wanted; then the
    client goes away."""
    started: list[Any] = []
    found: Shown = []
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append(message)
        elif message["body"]:
            found.extend(parsed(message["body"]))
        if wanted(found):
            enough.set()

    scope = {**request(query=query).scope, "scheme": "http", "raw_path": b"/api/v1/events"}
    await app(scope, receive, send)
    return started[0], found
