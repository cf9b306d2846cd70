"""What the soaks of `bench.soak` and `bench.soak_fleet` watch, and what they require."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.ingest import _rss_bytes as rss_bytes
from tests.world.account import Account

RING: Final = 200
"""Entries: more than the ranks record while an agent is away."""
AGENT_EVERY_S: Final = 6.0
SERVICE_EVERY_S: Final = 60.0
AWAY_S: Final = (0.2, 3.0)
UNWRITTEN_S: Final = 12.0
"""Rows are recorded, read by an agent within 7 s and sent; what a service has not handed to the
system when it is killed, within the next tick, is not in its journal."""
SAMPLE_EVERY_S: Final = 5.0
SETTLE_S: Final = 60.0
"""Growth of a process in this time after its start does not count."""
PATIENCE_S: Final = 180.0
MOST_GROWTH: Final = 1024 * 1024
"""Bytes a minute."""


@dataclass
class Watch:
    """Measurements during the run."""

    began: float = field(default_factory=time.monotonic)
    kills: Counter[str] = field(default_factory=Counter)
    service_killed_at: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    rss: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By process: times and bytes."""
    findings: dict[str, str] = field(default_factory=dict)
    """Summaries by id."""

    def sizes(self, pids: Iterable[int]) -> None:
        now = time.monotonic()
        for pid in pids:
            with contextlib.suppress(OSError):
                self.rss.setdefault(pid, []).append((now, rss_bytes(pid)))

    def growth(self, pid: int, settle_s: float = SETTLE_S) -> float | None:
        """Bytes a minute, from a line through the samples; None for a young process."""
        seen = self.rss.get(pid, [])
        settled = [(at, size) for at, size in seen if at - seen[0][0] > settle_s]
        if not settled or settled[-1][0] - settled[0][0] < SETTLE_S:
            return None
        times, sizes = zip(*settled, strict=True)
        return 60 * statistics.linear_regression(times, sizes).slope

    def course(self, pid: int) -> list[float]:
        """Its size about once a minute, in MB."""
        seen = self.rss.get(pid, [])
        return [round(size / 1e6, 1) for _, size in seen[:: max(round(60 / SAMPLE_EVERY_S), 1)]]

    def unwritten(self, account: Account, created_at: Sequence[float]) -> int:
        """Missing collectives that may have been lost with a killed service: `created_at` is the
        time of each collective from 1 on."""
        return sum(
            any(0 < killed - created_at[seq - 1] < UNWRITTEN_S for killed in self.service_killed_at)
            for seqs in account.missing.values()
            for seq in seqs
        )

    def progress(self, steps: int, doing: str = "") -> None:
        if sys.stderr.isatty():
            passed = (time.monotonic() - self.began) / 60
            kills = ", ".join(f"{n} {who}" for who, n in self.kills.items())
            text = f"{passed:5.1f} min  {steps} steps  killed: {kills}  {doing}"
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)


def broken(kept: Mapping[str, bool]) -> list[str]:
    """The requirements that were not met."""
    return [promise for promise, is_kept in kept.items() if not is_kept]


@contextlib.contextmanager
def kept_on_failure() -> Iterator[str]:
    """A temporary directory with the logs."""
    folder = tempfile.mkdtemp(prefix="frd-bench-")
    try:
        yield folder
    except Exception:
        print(f"soak: logs and journal are in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
