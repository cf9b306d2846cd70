"""What of a request and of its answer goes on to another machine, and what stays on this one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frd.service.http.peers.client import READ_S, Forwarded, reason

FORWARDED: Final = "frd-forwarded"
"""Header of a forwarded request: the replica that forwards it."""
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization")
    + (b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_OF_ONE_REQUEST: Final = frozenset((b"host", b"origin", b"content-length", FORWARDED.encode()))
"""The replica that a browser asks has checked the origin, which fits no other replica's host."""
_OF_ONE_SERVER: Final = frozenset((b"date", b"server"))

log = logging.getLogger(__name__)


def is_forwarded(request: Request) -> bool:
    return FORWARDED in request.headers


def forwarded(request: Request, me: str, body: bytes = b"", read_s: float = READ_S) -> Forwarded:
    """`request` as it is, to another replica."""
    headers = [pair for pair in _passed(request.headers.raw) if pair[0] not in _OF_ONE_REQUEST]
    headers.append((FORWARDED.encode(), me.encode("ascii", "replace")))
    return Forwarded(request.method, _target(request), headers, body, read_s)


def asked(request: Request, me: str, target: str) -> Forwarded:
    """A question to another replica, with the token of the client that sent `request`."""
    headers = [
        (b"accept", b"application/json"),
        (FORWARDED.encode(), me.encode("ascii", "replace")),
    ]
    if (token := request.headers.get("authorization")) is not None:
        headers.append((b"authorization", token.encode("latin-1")))
    return Forwarded("GET", target.encode("ascii"), headers)


def _target(request: Request) -> bytes:
    path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    query = request.scope["query_string"]
    return path + (b"?" + query if query else b"")


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """All but those that concern one connection. Names are in lower case."""
    lower = [(name.lower(), value) for name, value in headers]
    listed = {
        word.strip().lower()
        for name, value in lower
        if name == b"connection"
        for word in value.split(b",")
    }
    return [pair for pair in lower if pair[0] not in _HOP_BY_HOP | listed]


class Relay(Response):
    """The answer of another replica, passed on while it arrives."""

    def __init__(self, request: Request, replica: str, answer: httpx.Response) -> None:
        self.status_code = answer.status_code
        self.background = None
        self.raw_headers = [
            pair for pair in _passed(answer.headers.raw) if pair[0] not in _OF_ONE_SERVER
        ]
        self._request = request
        self._replica = replica
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = "http.response.body"
        start = {"status": self.status_code, "headers": self.raw_headers}
        try:
            await send({"type": "http.response.start", **start})
            async for chunk in self.answer.aiter_raw():
                if await self._request.is_disconnected():
                    return
                await send({"type": body, "body": chunk, "more_body": True})
            await send({"type": body, "body": b"", "more_body": False})
        except httpx.HTTPError as error:
            # The server closes a connection whose answer has no end, which the client notices.
            log.warning("replica %s: its answer broke off: %s", self._replica, reason(error))
        finally:
            await self.answer.aclose()
