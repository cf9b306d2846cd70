"""Detects whether a file has changed since it was read."""

from __future__ import annotations

from pathlib import Path


def stamp(path: Path) -> tuple[int, ...]:
    """Differs after the file was written or replaced; empty if the file cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
