"""The runbooks that alerts link to: the files of docs/runbooks, as pages and as Markdown.

A client that does not ask for HTML, such as curl, gets the Markdown. The pages are read once, at
start. Their headers are those of the web page; they have no script, and HTML in them is shown as
text. A link to another document than a runbook becomes plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import frd
from frd.service.http.web.pages import HEADERS

PREFIX: Final = "/runbooks/"
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


def folder() -> Path:
    """Inside the package in a wheel, among the documents in a checkout."""
    package = Path(frd.__file__).parent
    packed = package / "runbooks"
    return packed if packed.is_dir() else package.parent / "docs/runbooks"


def load() -> Mapping[str, Runbook]:
    """Pages by file name; the empty name has the list of pages."""
    texts = {path.name: path.read_text("utf-8") for path in sorted(folder().glob("*.md"))}
    links = "".join(f"- [{name.removesuffix('.md')}]({name})\n" for name in texts)
    pages = {name: Runbook(name.removesuffix(".md"), text, text) for name, text in texts.items()}
    names = "".join(f"{name}\n" for name in texts)
    return pages | {"": Runbook("Runbooks", f"# Runbooks\n\n{links}", names)}
