"""The reader process: functions and their arguments in on stdin, results out on stdout: what a
function returns or, of a generator, each item and then None.

Files of unknown origin are unpacked here, so this process has limits of memory and of processor
time for each file: a file that needs more than any valid one fails without affecting other files.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
from collections.abc import Generator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

MAX_MEMORY_BYTES: Final = 2 * 1024**3
"""Beyond what the interpreter has at the start: the largest dump, unpacked, as objects."""
MAX_CPU_S: Final = 60
"""For one file: the largest dump takes a third of it."""


def main() -> None:
    memory_bytes, cpu_s = map(int, sys.argv[1:])
    # Dumps have no reference cycles, so collection would only cost time.
    gc.disable()
    with suppress(EOFError):
        request = pickle.load(sys.stdin.buffer)  # noqa: S301  of the parent process
        limit_memory(memory_bytes)  # beyond the modules that the request has imported
        while True:
            function, arguments = request
            limit_time(cpu_s)
            found = function(*arguments)
            for one in chain(found, (None,)) if isinstance(found, Generator) else (found,):
                pickle.dump(one, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
                sys.stdout.buffer.flush()
            request = found = one = None
            request = pickle.load(sys.stdin.buffer)  # noqa: S301


def limit_memory(most: int = MAX_MEMORY_BYTES) -> None:
    """Beyond what this process has; and if memory is short, the kernel ends this one first."""
    with suppress(OSError, ValueError):  # a system without such limits: those of the parser remain
        _lower(resource.RLIMIT_CORE, 0)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + most)
        Path("/proc/self/oom_score_adj").write_text("1000")  # last: it may be read-only


def limit_time(most_s: int = MAX_CPU_S) -> None:
    """Of the processor, from now on."""
    with suppress(OSError, ValueError):
        _lower(resource.RLIMIT_CPU, int(sum(os.times()[:2])) + 1 + most_s)


def _lower(which: int, limit: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(which, (limit, hard))


if __name__ == "__main__":
    main()
