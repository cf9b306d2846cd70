"""The runbooks that alerts link to: what docs/runbooks holds, served as it is written.

An alert links to a page, so the service serves it, without a token because it reveals nothing
about a job. Plain text, because Markdown of few means
reads well as such, and because no browser runs anything in it. The pages are read once, at start.
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
    """Pages by file name, and under the empty name the list of them."""
    pages = {path.name: path.read_text("utf-8") for path in sorted(folder().glob("*.md"))}
    return pages | {"": "".join(f"{name}\n" for name in pages)}
