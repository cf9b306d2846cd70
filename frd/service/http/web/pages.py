"""The files of the page and the runbooks, read once at start, and the headers that confine them.

All paths of people lead to the same page, which asks the API for what its path names. The page may
load nothing from another host, run no inline script, and be framed by no other page.

The runbooks that alerts link to are the files of docs/runbooks, as pages and as Markdown. A client
that does not ask for HTML, such as curl, gets the Markdown. They have no script, and HTML in them
is shown as text. A link to another document than a runbook becomes plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import frd
from frd.service.http.answers import Content, refuse

FILES: Final = "/web/"
_PATHS: Final = ("/", "/history")
RUNBOOKS: Final = "/runbooks/"
_PREFIXES: Final = ("/findings/", "/jobs/", FILES, RUNBOOKS)
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

_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/web/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/web/app.css">
</head>
<body>
<header class="bar"><a class="brand" href="/">frd</a> <a href="/runbooks/">Runbooks</a></header>
<main class="document">
{body}</main>
</body>
</html>
"""


def is_page(path: str) -> bool:
    """A path of the page, of its files or of a runbook, which reveal nothing about a job."""
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


# -- runbooks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runbook:
    title: str
    markdown: str
    text: str
    """For clients that do not ask for HTML."""

    @cached_property
    def page(self) -> str:
        tokens = _MARKDOWN.parse(self.markdown)
        for token in tokens:
            token.children = token.children and [*_linked(token.children)]
        body = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
        return _PAGE.format(title=escape(self.title), body=body)

    def answer(self, request: Request) -> Response:
        headers = {**HEADERS, "vary": "accept"}
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(self.page, headers=headers)
        return PlainTextResponse(self.text, headers=headers)


def _linked(parts: Sequence[Token]) -> Iterator[Token]:
    """The parts of a line without the links that lead to no runbook and to no other host."""
    leads = True
    for part in parts:
        if part.type == "link_open":
            target = str(part.attrs["href"])
            leads = target.startswith(("Frd", "https://"))
        if leads or not part.type.startswith("link_"):
            yield part


def _runbooks_folder() -> Path:
    """Inside the package in a wheel, among the documents in a checkout."""
    package = Path(frd.__file__).parent
    packed = package / "runbooks"
    return packed if packed.is_dir() else package.parent / "docs/runbooks"


def load_runbooks() -> Mapping[str, Runbook]:
    """Pages by file name; the empty name has the list of pages."""
    texts = {path.name: path.read_text("utf-8") for path in sorted(_runbooks_folder().glob("*.md"))}
    links = "".join(f"- [{name.removesuffix('.md')}]({name})\n" for name in texts)
    pages = {name: Runbook(name.removesuffix(".md"), text, text) for name, text in texts.items()}
    names = "".join(f"{name}\n" for name in texts)
    return pages | {"": Runbook("Runbooks", f"# Runbooks\n\n{links}", names)}
