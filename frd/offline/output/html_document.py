"""The frame of a page of HTML that is one file: it can be mailed, printed and kept.

It has no scripts, and its own policy forbids it to load anything, so it looks the same without a
network, and no server learns that it was opened.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Final

_HEAD: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""


def document(title: str, body: str) -> str:
    """`title` is any text, `body` is HTML."""
    css = files(__package__).joinpath("page.css").read_text("utf-8")
    head = f"{_HEAD}<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
    return f"{head}<body>\n{body}\n</body>\n</html>\n"
