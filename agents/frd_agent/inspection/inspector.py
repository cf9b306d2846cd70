"""Inspects ranks while the service asks about them, on a separate thread.

A request is a lease: the rank is sampled once a second until nothing has been asked about it for
`LEASE_S`, and then forgotten. Nothing is read of any other rank. A request is answered immediately
with what the last sample showed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from frd.wire.waits import WaitReport
from frd_agent.counters import Counters
from frd_agent.inspection.claims import UNKNOWN
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.sampler import Processes, RankOf, RankSampler
from frd_agent.inspection.traces.followed import Traces
from frd_agent.inspection.tracking import ENOUGH
from frd_agent.node_time import NodeTime
from frd_agent.ranks.rank_process import RankProcess

LEASE_S: Final = 10.0
EVERY_S: Final = 1.0
NEW_S: Final = 0.4
"""The same until there are enough samples of a rank for a claim."""
MAX_RANKS: Final = 64
"""Of one node that are inspected at a time."""
_SHARE: Final = 1 / 50
"""Samples become less frequent if all of them together would use more of a core than this."""
_JOIN_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lease:
    sampler: RankSampler
    until_s: float
    rank_of: RankOf
    report: WaitReport = field(default=UNKNOWN)
    samples: int = 0


class Inspector:
    """Safe to use from any thread. The thread starts with the first request, and it is a daemon:
    a file of /proc that blocks costs inspections, and never the agent."""

    def __init__(self, stats: Counters, node_time: NodeTime | None = None) -> None:
        self._stats = stats
        self._time = NodeTime(stats) if node_time is None else node_time
        self._helper = Helper()
        self._traces = Traces(self._time.one_to_raw)
        self._leases: dict[tuple[int, int] | None, _Lease] = {}
        """By the key of the process."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._processes = Processes()
        self._failing = False
        self._every_s = EVERY_S

    def ask(self, process: RankProcess, rank_of: RankOf) -> WaitReport:
        """Renew the lease on a rank process, and return what is known. `rank_of`: all rank
        processes of the node. Nothing is read of processes that the rank's `may_read` refuses."""
        until_s, key = time.monotonic() + LEASE_S, process.key
        with self._lock:
            if (lease := self._leases.get(key)) is not None:
                lease.until_s, lease.rank_of = until_s, rank_of
                return lease.report
            if key is None or len(self._leases) >= MAX_RANKS or self._stop.is_set():
                return UNKNOWN
            common = self._processes, self._helper, self._traces
            self._leases[key] = _Lease(RankSampler(process, *common), until_s, rank_of)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="frd-inspect", daemon=True)
                self._thread.start()
        self._wake.set()
        return UNKNOWN

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            began, cost_s = time.monotonic(), self._round()
            if not self._leases:
                self._wake.wait()
            self._wake.clear()
            wait_s = max(self._every_s, cost_s / _SHARE) - (time.monotonic() - began)
            if self._leases and wait_s > 0:
                self._stop.wait(wait_s)

    def _round(self) -> float:
        """Sample every rank once; returns the processor time that it took."""
        before = time.thread_time()
        now_s = time.monotonic()
        with self._lock:
            for key in [key for key, lease in self._leases.items() if lease.until_s < now_s]:
                del self._leases[key]
            leases = list(self._leases.values())
        if leases:
            with self._failures_logged():
                self._processes.look(now_s)
        for lease in leases:
            with self._failures_logged():
                now_ns = self._time.now()
                lease.samples += 1
                report = lease.sampler.sample(now_ns, lease.rank_of)
                lease.report = replace(report, as_of_ns=now_ns)
        self._every_s = NEW_S if any(one.samples < ENOUGH for one in leases) else EVERY_S
        self._stats.inspected = len(leases)
        self._stats.inspection_timeouts = self._helper.timeouts + self._traces.helper.timeouts
        self._stats.broken_trace_lines = self._traces.broken
        return time.thread_time() - before

    @contextmanager
    def _failures_logged(self) -> Iterator[None]:
        """One rank must not end the inspection of others."""
        try:
            yield
        except Exception:
            if not self._failing:
                log.exception("a rank could not be inspected")
            self._failing = True
