"""Output of commands: a file or folder that appears whole or not at all and replaces no other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frd.errors import StoreError


def check_new(path: Path) -> None:
    """Refuse a path that `new_path` would refuse, before any work is done.

    Raises:
        StoreError: it exists.
    """
    if os.path.lexists(path):
        raise StoreError(f"output: {path}: exists: nothing is overwritten, name a new one")


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Where to write the file or folder; it becomes `path` at the end, unless an error is raised.

    Missing parent folders are made.

    Raises:
        StoreError: `path` exists, or cannot be written.
    """
    parent = path.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=parent) as at:
            staged = Path(at, "whole")
            yield staged
            check_new(path)
            staged.rename(path)
    except OSError as error:
        raise StoreError(
            f"output: {path}: {error.strerror}: free space or choose another"
        ) from None
