"""The reader process: file names in on stdin, columns out on stdout, until stdin ends.

It is the place where files of unknown origin are unpacked, so its memory is limited: a file that
needs more than any valid dump fails here, without affecting other files.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from frd.offline.load.file_reading import Reader

MAX_MEMORY_BYTES = 2 * 1024**3
"""Beyond what the interpreter has at the start: the largest dump, unpacked, as objects."""


def main() -> None:
    _limit_memory()
    # Dumps hold no cycles, and the collector would look at their thousands of objects for nothing.
    gc.disable()
    reader = Reader(int(sys.argv[1]))
    for rank, path in _asked():
        pickle.dump(reader.read(rank, path), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()


def _limit_memory() -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MAX_MEMORY_BYTES
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        pass  # a system without such limits: the bounds of the parser remain


def _asked() -> Iterator[tuple[int, Path]]:
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *asked, rest = (rest + chunk).split(b"\0")
        for line in asked:
            rank, _, path = line.partition(b" ")
            yield int(rank), Path(os.fsdecode(path))


if __name__ == "__main__":
    main()
