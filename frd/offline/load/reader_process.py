"""The reader process: file names in on stdin, columns out on stdout, until stdin ends.

Files of unknown origin are unpacked here, so the memory of this process is limited: a file that
needs more than any valid dump fails without affecting other files.
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
    # Dumps have no reference cycles, so collection would only cost time.
    gc.disable()
    reader = Reader(int(sys.argv[1]))
    for rank, path in _requests():
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


def _requests() -> Iterator[tuple[int, Path]]:
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *requests, rest = (rest + chunk).split(b"\0")
        for line in requests:
            rank, _, path = line.partition(b" ")
            yield int(rank), Path(os.fsdecode(path))


if __name__ == "__main__":
    main()
