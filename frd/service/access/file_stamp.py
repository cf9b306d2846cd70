"""Whether a file that was read once is still the same one."""

from __future__ import annotations

from pathlib import Path


def stamp(path: Path) -> tuple[int, ...]:
    """What differs once the file was written again or replaced; empty while it cannot be seen."""
    try:
        told = path.stat()
    except OSError:
        return ()
    return told.st_ino, told.st_size, told.st_mtime_ns
