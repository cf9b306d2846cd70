"""The runbooks that alerts link to: the files of docs/runbooks.

They are served as plain text, because simple Markdown is readable as such and because no browser
executes anything in it. The pages are read once, at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import frd

PREFIX: Final = "/runbooks/"


def folder() -> Path:
    """Inside the package in a wheel, among the documents in a checkout."""
    package = Path(frd.__file__).parent
    packed = package / "runbooks"
    return packed if packed.is_dir() else package.parent / "docs/runbooks"


def load() -> Mapping[str, str]:
    """Pages by file name; the empty name has the list of pages."""
    pages = {path.name: path.read_text("utf-8") for path in sorted(folder().glob("*.md"))}
    return pages | {"": "".join(f"{name}\n" for name in pages)}
