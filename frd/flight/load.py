"""Dump files. The only module of this package that touches the file system."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from frd.errors import DumpError
from frd.flight.decode import MAX_BYTES, parse
from frd.flight.entry import Dump


def load_dump(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Dump:
    """The dump in one file, its path as the source.

    Raises:
        DumpError: as `parse`, and when the file cannot be read or is no regular file (opening a
            pipe that torch listens on would wait for ever, or order a dump).
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DumpError(f"{path}: no regular file: name a dump file")
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    return parse(data, source=str(path), max_bytes=max_bytes)
