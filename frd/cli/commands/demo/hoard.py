"""What scripted culprits do to their memory: keep a batch a step, up to an amount or to a limit.

Real pages of a real process, so that what the agent samples is true; but never more than a demo
may take from the machine, and the limit is the process's own.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 40


class Hoard:
    """Batches that are kept; with `limited`, the process may have no more than `BATCHES`."""

    def __init__(self, *, limited: bool) -> None:
        self._batches: list[bytearray] = []
        self._limited = limited
        if limited:
            _allow(BATCHES * BATCH_BYTES + BATCH_BYTES // 2)

    def keep(self) -> None:
        """One batch more.

        Raises:
            MemoryError: there is no more.
        """
        if self._limited or len(self._batches) < BATCHES:
            self._batches.append(bytearray(b"\1") * BATCH_BYTES)


def _allow(more_bytes: int) -> None:
    """What `ulimit -d` does in a launcher, counted from what the process has now."""
    status = Path("/proc/self/status").read_text()
    (data_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(data_kib) * 1024 + more_bytes, most))
