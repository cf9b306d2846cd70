"""The forms of HTTP answers: JSON, and errors as ``{"error": "what: which: what to do"}``.

Answers that are large or read the disk are made, and compressed, in a worker thread: the event loop
belongs to ingest.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


async def json_answer(make: Callable[[], object], status: int = 200) -> Response:
    """What `make` returns, which is called in a worker thread."""
    content = await asyncio.to_thread(lambda: _encoded(make()))
    headers = {"frd-api-version": str(API_VERSION)}
    return Response(content, status, headers, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Content:
    """An answer that may be sent to many clients."""

    plain: bytes
    packed: bytes | None
    """Gzipped; None for small ones."""
    tag: str = ""
    """Names what is in it, if clients may ask whether it has changed."""

    @classmethod
    def of(cls, value: object, tag: str = "") -> Content:
        """Takes milliseconds for a large value: call it in a worker thread."""
        plain = _encoded(value)
        large = len(plain) > _COMPRESSED_FROM
        return cls(plain, gzip.compress(plain, compresslevel=1, mtime=0) if large else None, tag)

    def answer(self, request: Request) -> Response:
        """Compressed if the client accepts that; status 304 if it has this already."""
        headers = {"frd-api-version": str(API_VERSION), "vary": "accept-encoding"}
        if self.tag:
            headers |= {"etag": f'W/"{self.tag}"', "cache-control": "no-cache"}
            if request.headers.get("if-none-match") == headers["etag"]:
                return Response(None, 304, headers)
        body = self.plain
        if self.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = self.packed, "gzip"
        return Response(body, 200, headers, media_type="application/json")


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
