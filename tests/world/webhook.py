"""A receiver of webhooks: a real HTTP server that keeps the notifications it gets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from tests.world.http_server import Reply, answering


class Receiver:
    """Answers with `status`; while `gate` is not set, it does not answer at all. A message in which
    `check` finds a problem is refused, and not among those that it received."""

    def __init__(
        self, port: int = 0, check: Callable[[dict[str, Any]], Iterable[str]] = lambda content: ()
    ) -> None:
        self.port = port
        self.problems: list[str] = []
        self._check = check
        self.received: list[dict[str, Any]] = []
        self.times: list[float] = []
        """When each of `received` arrived."""
        self.headers: list[Mapping[str, str]] = []
        self.asked = 0
        self.asked_at = 0.0
        """When the first request came."""
        self.status = 200
        self.location = ""
        self.gate = threading.Event()
        self.gate.set()
        self._server = answering(self._answer, port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/s3cret"

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.asked += 1
        self.asked_at = self.asked_at or time.time()
        self.gate.wait(60)
        content = json.loads(body)
        if problems := list(self._check(content)):
            self.problems += problems
            return Reply(400)
        if self.status == 200:
            self.times.append(time.time())
            self.received.append(content)
            self.headers.append(headers)
        return Reply(self.status, headers={"Location": self.location} if self.location else {})

    def events(self) -> list[str]:
        return [content["event"] for content in list(self.received)]

    def __enter__(self) -> Self:
        self.port = self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.__exit__(None, None, None)
