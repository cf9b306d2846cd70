"""A program that a bench runs to its end, and the most memory that it and all below it had."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

_SAMPLE_S: Final = 0.005


class Run:
    def __init__(self, command: list[str]) -> None:
        self.peak_bytes = 0
        with tempfile.TemporaryFile() as out:
            begin = time.perf_counter()
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            while process.poll() is None:
                self.peak_bytes = max(self.peak_bytes, _resident(process.pid))
                time.sleep(_SAMPLE_S)
            self.seconds = time.perf_counter() - begin
            out.seek(0)
            self.output = out.read()
        self.code = process.returncode


def _resident(pid: int) -> int:
    """Resident bytes of a process and all below it; 0 of what has just ended. A thread may have
    started a child, as those of Dask do. Shared pages count once a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0
    below = " ".join(children).split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(child)) for child in below)
