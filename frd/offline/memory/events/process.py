"""The reader process: pieces of files in on stdin, their parts out on stdout, until stdin ends.

A piece is unpacked and decoded block by block, so the limit of memory is far away; that of time is
for one piece, and grows with what there is to read.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Final

from frd.offline.memory.events.files import EventFile
from frd.offline.memory.events.messages import read_pieces, write_parts
from frd.readers.process import MAX_CPU_S, limit_memory, limit_time

_BYTES_A_SECOND: Final = 1 << 20
"""In the file. A core reads ten times as much at least, also packed."""


def main() -> None:
    limit_memory()
    # Events have no reference cycles, so collection would only cost time.
    gc.disable()
    write_parts(sys.stdout.buffer, ())  # ready
    for piece in read_pieces(sys.stdin.buffer):
        with suppress(OSError):
            end = piece.end or piece.path.stat().st_size
            limit_time(MAX_CPU_S + (end - piece.begin) // _BYTES_A_SECOND)
        write_parts(sys.stdout.buffer, EventFile(piece).parts())


if __name__ == "__main__":
    main()
