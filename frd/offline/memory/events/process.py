"""The reader process: pieces of files in on stdin, their parts out on stdout, until stdin ends."""

from __future__ import annotations

import gc
import sys

from frd.offline.memory.events.files import EventFile
from frd.offline.memory.events.messages import read_pieces, write_parts


def main() -> None:
    # Events have no reference cycles, so collection would only cost time.
    gc.disable()
    write_parts(sys.stdout.buffer, ())  # ready
    for piece in read_pieces(sys.stdin.buffer):
        write_parts(sys.stdout.buffer, EventFile(piece).parts())


if __name__ == "__main__":
    main()
