"""The forms of HTTP answers: JSON, and errors as ``{"error": "what: which: what to do"}``.

Answers that are large or read the disk are made, and compressed, in a worker thread: the event loop
belongs to ingest.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NoReturn

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

API_VERSION: Final = 1
"""Version of the JSON forms; docs/api.md says what may change without a new number."""
MAX_BODY_BYTES: Final = 64 * 1024
MAX_FINDINGS: Final = 10_000
DEFAULT_FINDINGS: Final = 1_000
MAX_DUMP_TIMEOUT_S: Final = 300.0
_COMPRESSED_FROM: Final = 1024
_OF_API: Final = {"frd-api-version": str(API_VERSION)}


async def json_answer(make: Callable[[], object], status: int = 200) -> Response:
    """What `make` returns, which is called in a worker thread."""
    content = await asyncio.to_thread(lambda: _encoded(make()))
    return Response(content, status, _OF_API, media_type="application/json")


@dataclass(frozen=True)
class Content:
    """An answer that may be sent to many clients."""

    plain: bytes
    tag: str = ""
    """Names what is in it, if clients may ask whether it has changed."""
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: _OF_API)
    level: int = 1
    """Of compression."""

    @classmethod
    def of(cls, value: object, tag: str = "") -> Content:
        """Takes milliseconds for a large value: call it in a worker thread."""
        made = cls(_encoded(value), tag)
        _ = made.packed
        return made

    @cached_property
    def packed(self) -> bytes | None:
        """Gzipped, when it is first asked for; None for small ones."""
        large = len(self.plain) > _COMPRESSED_FROM
        return gzip.compress(self.plain, self.level, mtime=0) if large else None

    def answer(self, request: Request, status: int = 200) -> Response:
        """Compressed if the client accepts that; status 304 if it has this already."""
        headers = {**self.headers, "vary": "accept-encoding"}
        if self.tag:
            headers |= {"etag": f'W/"{self.tag}"', "cache-control": "no-cache"}
            if status == 200 and request.headers.get("if-none-match") == headers["etag"]:
                return Response(None, 304, headers)
        body = self.plain
        if "gzip" in request.headers.get("accept-encoding", "") and self.packed is not None:
            body, headers["content-encoding"] = self.packed, "gzip"
        return Response(body, status, headers, media_type=self.media_type)


async def large_answer(request: Request, make: Callable[[], object]) -> Response:
    """As `json_answer`, compressed if the client accepts that."""
    return (await asyncio.to_thread(lambda: Content.of(make()))).answer(request)


def refuse(status: int, message: str) -> NoReturn:
    raise HTTPException(status, message)


async def body_of(request: Request, say: str) -> bytes:
    """The request's body; `say` is what to send instead of one that is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            refuse(413, f"body: over {MAX_BODY_BYTES} bytes: {say}")
    return bytes(body)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = _encoded({"error": message})
    return Response(body, status, headers, media_type="application/json")


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a name that is not UTF-8: ASCII escapes encode it
        return json.dumps(value).encode("ascii")
