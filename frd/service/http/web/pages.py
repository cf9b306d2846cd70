"""The files of the page, read once at start, and the headers that confine what they may do.

All paths of people lead to the same page, which asks the API for what its path names. The page may
load nothing from another host, run no inline script, and be framed by no other page.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import frd
from frd.service.http.answers import Content, refuse

FILES: Final = "/web/"
_PATHS: Final = ("/", "/history")
_PREFIXES: Final = ("/findings/", "/jobs/", FILES)
_INDEX: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # ask, so that a page and its files are of one version
    "vary": "accept-encoding",
}


def is_page(path: str) -> bool:
    """A path of the page or of its files, which reveal nothing about a job."""
    return path in _PATHS or path.startswith(_PREFIXES)


class Pages:
    """`folder`: where the files are; by default those of this package."""

    def __init__(self, folder: Path | None = None) -> None:
        self._files = _load(folder or Path(frd.__file__).parent / "web")

    async def page(self, request: Request) -> Response:
        return self._files[_INDEX].answer(request)

    async def unknown(self, request: Request) -> Response:
        """A path that nothing has. In a browser the page says so; programs get JSON."""
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return self._files[_INDEX].answer(request, 404)

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if (file := self._files.get(name)) is None:
            refuse(404, f"file: {name!r}: unknown here: the page is at /")
        return file.answer(request)


def _load(folder: Path) -> Mapping[str, Content]:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            tag = blake2b(content, digest_size=12).hexdigest()
            media_type = _TYPES.get(path.suffix, _TYPES[""])
            files[path.relative_to(folder).as_posix()] = Content(
                content, tag, media_type, HEADERS, level=9
            )
    return files
