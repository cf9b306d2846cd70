"""Inspects ranks while the service asks about them, on a separate thread.

A request is a lease: the rank is sampled once a second until nothing has been asked about it for
`LEASE_S`, and then forgotten. Nothing is read of any other rank. A request is answered immediately
with what the last sample showed. A sampler knows no time and no thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from frd.model import Holder, NodeRawNs
from frd.wire.waits import WaitReport
from frd_agent.counters import Counters
from frd_agent.inspection.claims import MAX_FAMILY, UNKNOWN, ProcessView, RankView
from frd_agent.inspection.reading.locks import HeldLock, NodeLocks
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.reading.rights import missing_right
from frd_agent.inspection.reading.threads import (
    ProcessSample,
    ThreadSample,
    comm,
    has_object,
    read_process,
)
from frd_agent.inspection.targets import Resolver, Target
from frd_agent.inspection.traces.followed import Traces
from frd_agent.inspection.traces.witness import Witness
from frd_agent.inspection.tracking import ENOUGH, Tracker, Wait
from frd_agent.inspection.wait_chain import waits_for
from frd_agent.node_time import NodeTime
from frd_agent.proc import Stat, by_parent, descendants, read_all
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
SCAN_S: Final = 2.0
_SCAN_SHARE: Final = 1 / 400
"""A node with very many processes is scanned more rarely, to take no more than this of a core."""
_MAX_DEPTH: Final = 64

RankOf: TypeAlias = Mapping[int, int | None]
"""The rank of each rank process of the node, by pid; None if it is of another job."""

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


class Processes:
    """Lives on one thread."""

    def __init__(self) -> None:
        self.locks = NodeLocks()
        """As of the last `look`."""
        self._stats: dict[int, Stat] = {}
        self._children: dict[int, list[int]] = {}
        self._scan_at_s = 0.0

    def look(self, now_s: float) -> None:
        """Read the tree again, when that is due. Call it once for each round of samples."""
        self.locks.forget()
        if now_s < self._scan_at_s:
            return
        began = time.thread_time()
        try:
            self._stats = read_all()
        except OSError:
            return  # short of descriptors: the tree as it was
        self._children = by_parent(self._stats)
        cost_s = time.thread_time() - began
        self._scan_at_s = now_s + max(SCAN_S, cost_s / _SCAN_SHARE)

    def family(self, pid: int, ranks: Iterable[int]) -> list[int]:
        """The process and its descendants that are no other rank's, nearest first."""
        below = descendants(pid, self._children, but=frozenset(ranks), most=MAX_FAMILY - 1)
        return [pid, *below]

    def children(self, pid: int) -> list[int]:
        return self._children.get(pid, [])

    def everyone(self) -> list[int]:
        return list(self._stats)

    def above(self, pid: int) -> list[int]:
        """Its parent, the parent of that, and so on; without the first process of the node."""
        found: list[int] = []
        stat = self._stats.get(pid)
        while stat is not None and stat.parent > 1 and len(found) < _MAX_DEPTH:
            found.append(stat.parent)
            stat = self._stats.get(stat.parent)
        return found

    def holder(self, pid: int, rank_of: RankOf) -> Holder:
        """A process, with the rank that it or a parent of it is."""
        ranks = [rank_of[one] for one in (pid, *self.above(pid)) if one in rank_of]
        return Holder(pid, ranks[0] if ranks else None, comm(pid, pid))


_MAX_HOLDERS: Final = 8
"""Processes outside of the rank that are sampled because they hold what it waits for."""


class RankSampler:
    """Of one rank process. Lives on one thread."""

    def __init__(
        self,
        process: RankProcess,
        processes: Processes,
        helper: Helper,
        traces: Traces,
    ) -> None:
        self._pid = process.pid or 0
        self._may_read = process.may_read
        self._witness = Witness(traces)
        self._processes = processes
        self._helper = helper
        self._tracker = Tracker()
        self._outside: tuple[int, ...] = ()
        self._locked: set[HeldLock] = set()
        """By other ranks at the last sample."""

    def sample(self, now_ns: NodeRawNs, rank_of: RankOf) -> WaitReport:
        """What the rank waits for, with this sample."""
        family = self._processes.family(self._pid, [pid for pid in rank_of if pid != self._pid])
        inspected = (*family, *(pid for pid in self._outside if pid not in family))
        resolver = Resolver(
            [pid for pid in family if self._may_read(pid)],
            lambda: [pid for pid in self._nearest(family, rank_of) if self._may_read(pid)],
            self._helper,
        )
        views = {}
        for pid in inspected:
            sample = read_process(pid) if self._may_read(pid) else None
            if sample is not None:
                view = self._view(sample, resolver, now_ns)
                if self._may_read(pid):  # it was the same process all the time
                    views[pid] = view
        self._tracker.keep(
            {(wait.pid, wait.tid) for view in views.values() for wait in (view.main, *view.others)}
        )
        if self._pid not in views:
            return UNKNOWN
        is_asleep = views[self._pid].main.is_asleep
        locked = self._locked_for_long(rank_of) if is_asleep else []
        held = _holders(views.values(), locked)
        self._outside = tuple([pid for pid in held if pid not in family][:_MAX_HOLDERS])
        is_denied = not views[self._pid].main.is_readable
        whole = RankView(
            self._pid,
            tuple(family),
            views,
            {pid: self._processes.holder(pid, rank_of) for pid in held},
            frozenset(self._processes.above(self._pid)),
            tuple(locked),
            missing_right(self._pid) if is_denied else "",
        )
        return self._witness.add(waits_for(whole), whole, now_ns)

    def _view(self, sample: ProcessSample, resolver: Resolver, now_ns: NodeRawNs) -> ProcessView:
        waits = [self._wait(sample.pid, thread, resolver, now_ns) for thread in sample.threads]
        name = comm(sample.pid, sample.pid)
        children = tuple(self._processes.children(sample.pid))
        return ProcessView(sample.pid, name, waits[0], tuple(waits[1:]), children)

    def _wait(self, pid: int, thread: ThreadSample, resolver: Resolver, now_ns: NodeRawNs) -> Wait:
        def resolve() -> tuple[Target | None, str]:
            name = comm(pid, thread.tid)
            call = thread.call
            if call is None or not (thread.tid == pid or has_object(call)):
                return None, name
            return resolver.target(pid, thread, call), name

        return self._tracker.see(pid, thread, now_ns, resolve)

    def _nearest(self, family: Sequence[int], rank_of: RankOf) -> list[int]:
        """All processes of the node, those of its ranks first."""
        everyone = self._processes.everyone()
        return list(dict.fromkeys([*family, *self._below(rank_of, rank_of), *everyone]))

    def _below(self, ranks: Iterable[int], rank_of: RankOf) -> list[int]:
        """The processes of these ranks."""
        return [
            pid
            for rank in ranks
            for pid in self._processes.family(rank, [one for one in rank_of if one != rank])
        ]

    def _locked_for_long(self, rank_of: RankOf) -> list[HeldLock]:
        """What other ranks of the job have locked at this sample and at the last one."""
        ranks = [pid for pid, rank in rank_of.items() if pid != self._pid and rank is not None]
        locks = self._processes.locks
        others = locks.holders.keys() & {*self._below(ranks, rank_of)}
        held = [locks.held(pid) for pid in others if self._may_read(pid)]
        before, self._locked = self._locked, set[HeldLock]().union(*held)
        return sorted(self._locked & before, key=lambda lock: (lock.pid, lock.path))


def _holders(views: Iterable[ProcessView], locked: Iterable[HeldLock]) -> list[int]:
    """Processes that hold what others wait for; holders of locks first."""
    targets = [
        wait.target
        for view in views
        for wait in (view.main, *view.others)
        if wait.target is not None
    ]
    locks = [target.holder for target in targets if target.holder]
    locks += [lock.pid for lock in locked]
    ends = [end.pid for target in targets for one in target.objects for end in one.ends]
    family = [view.pid for view in views]
    return list(dict.fromkeys([*locks, *ends, *family]))
