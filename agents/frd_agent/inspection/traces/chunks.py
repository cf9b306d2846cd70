"""Reads a piece of a file through the descriptor of another process. May block: for a helper only.

``/proc/<pid>/fd/<fd>`` leads to the same file without its path. It is first opened without touching
what is behind it (O_PATH), because to open a FIFO would wake its writer, and a device may act; only
a regular file is then read.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from frd_agent.inspection.traces.open_traces import OpenTrace
from frd_agent.inspection.traces.tail import Tail
from frd_agent.proc import path_of


class Chunk(NamedTuple):
    offset: int
    data: bytes
    size: int
    """Of the whole file."""


def read_chunk(trace: OpenTrace, tail: Tail) -> Chunk | None:
    """What `tail` wants of the file; None if the descriptor leads to another file by now, or to one
    that is not regular.

    Raises:
        OSError: no right, or the process is gone.
    """
    place = os.open(path_of(f"{trace.pid}/fd/{trace.fd}"), os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != trace.inode:
            return None
        offset, length = tail.wants(found.st_size)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        fd = os.open(f"/proc/self/fd/{place}", flags)
        try:
            return Chunk(offset, os.pread(fd, length, offset), found.st_size)
        finally:
            os.close(fd)
    finally:
        os.close(place)
