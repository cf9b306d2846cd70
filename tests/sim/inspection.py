"""What an agent finds out about suspects, as `frd_agent.inspection` does it from /proc.

A rank is sampled once a second from the first question on, until nothing has been asked about it
for a while. A question is answered with what the last sample showed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from frd.model import Certainty, Holder, NodeRawNs, WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import UNKNOWN
from frd_agent.inspection.inspector import EVERY_S, LEASE_S, NEW_S
from frd_agent.inspection.tracking import ENOUGH
from tests.sim.places import Place, Sys, place_of
from tests.sim.ranks import SimRank

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent
    from tests.sim.watched import Process

_EVERY: Final = round(EVERY_S * 1e9)
_NEW: Final = round(NEW_S * 1e9)
_LEASE: Final = round(LEASE_S * 1e9)
_MOUNT: Final[dict[str, Any]] = {"mount": "/data", "fs": "nfs4 server:/export"}
_TIMED: Final = "another thread of the process, with a time-out"


@dataclass(slots=True)
class _Lease:
    until: int
    """True time."""
    wait: tuple[object, ...] = ()
    """What it waited for at the last sample."""
    since_ns: int = 0
    samples: int = 0
    taken: int = 0
    ran_ns: int = 0
    at: int = 0
    """True time of the last sample."""
    busy_since_ns: int = 0
    report: WaitReport = UNKNOWN


class Inspection:
    """`holder_of`: the process of a rank on this node, as the agent sees it."""

    def __init__(
        self, agent: SimAgent, holder_of: Callable[[Process, SimRank], Holder | None]
    ) -> None:
        self._agent = agent
        self._holder_of = holder_of
        self._leases: dict[int, _Lease] = {}
        """By pid."""

    def ask(self, process: Process) -> WaitReport:
        now = self._agent.kernel.now
        lease = self._leases.get(process.info.pid)
        if lease is None:
            self._leases[process.info.pid] = _Lease(now + _LEASE)
            self._agent.kernel.after(0, lambda: self._sample(process))
            return UNKNOWN
        lease.until = now + _LEASE
        return lease.report

    def _sample(self, process: Process) -> None:
        agent, rank = self._agent, process.rank
        agent.settle()
        lease, now = self._leases[process.info.pid], agent.kernel.now
        if lease.until < now or not rank.alive or agent.is_stopped:
            del self._leases[process.info.pid]
            return
        place, ran_ns, now_ns = place_of(rank), rank.thread.ran_ns(now), agent.raw_ns()
        wait = (Sys.EXITS if rank.stopped else place.sys, place.path, rank.stopped)
        is_busy = lease.samples > 0 and (ran_ns - lease.ran_ns) * 2 >= now - lease.at
        lease.busy_since_ns = (lease.busy_since_ns or now_ns) if is_busy else 0
        is_same = lease.samples > 0 and wait == lease.wait
        lease.samples = lease.samples + 1 if is_same else 1
        lease.since_ns = lease.since_ns if is_same else now_ns
        lease.wait, lease.ran_ns, lease.at = wait, ran_ns, now
        report = self._report(process, place, lease)
        lease.report = replace(report, as_of_ns=now_ns)
        lease.taken += 1
        every = _NEW if lease.taken < ENOUGH else _EVERY
        agent.kernel.after(every, lambda: self._sample(process))

    def _report(self, process: Process, place: Place, lease: _Lease) -> WaitReport:
        if lease.busy_since_ns:
            does = "has been on the CPU (1.0 cores)"
            return _claim(process, WaitKind.ON_CPU, "nothing", does, lease.busy_since_ns)
        if lease.samples < ENOUGH:
            return UNKNOWN
        since_ns = lease.since_ns
        if process.rank.stopped:
            does, topic = "has been stopped by a signal (state T)", "a signal that continues it"
            return _claim(process, WaitKind.STOPPED, topic, does, since_ns)
        match place.sys:
            case Sys.READ:
                return _of_read(process, place, since_ns)
            case Sys.LOCK:
                return self._of_lock(process, place, since_ns)
            case Sys.SLEEP:
                return self._of_poll(process, place, since_ns)
            case Sys.ACCEPT:
                does, topic = "has been in accept() on 10.0.0.1:8000", "a connection"
                found = _claim(process, WaitKind.SOCKET, topic, does, since_ns)
                return replace(found, is_idle=self._agent.around.hidden)
            case Sys.STORE:
                does = "has been in poll() calls from 10.0.0.1:29500"
                found = _claim(
                    process, WaitKind.SOCKET, "a reply from 10.0.0.1:29500", does, since_ns
                )
                return replace(found, waits_for=replace(found.waits_for, what="10.0.0.1:29500"))
            case Sys.PEER | Sys.NATIVE:
                does = f"has been waiting for {_TIMED}"
                found = _claim(process, WaitKind.LOCK_INNER, "another thread", does, since_ns)
                waits_for = replace(found.waits_for, what=_TIMED)
                return replace(found, waits_for=waits_for, may_be_for_peer=True)
            case _:
                return UNKNOWN

    def _of_poll(self, process: Process, place: Place, since_ns: int) -> WaitReport:
        does = "has been asleep (clock_nanosleep)"
        found = _claim(process, WaitKind.SLEEP, "a timer", does, since_ns)
        holder = self._holder_of(process, place.holder) if place.holder is not None else None
        if holder is not None:
            waits_for = replace(found.waits_for, certainty=Certainty.LIKELY, topic="a lock")
            found = replace(found, waits_for=replace(waits_for, what=place.path, holder=holder))
        return replace(found, is_poll=self._agent.around.hidden)

    def _of_lock(self, process: Process, place: Place, since_ns: int) -> WaitReport:
        assert place.holder is not None
        holder = self._holder_of(process, place.holder)
        does = f"has been in flock() of {place.path} (nfs4 server:/export on /data)"
        rest = "its holder is not visible to the agent"
        if holder is not None:
            does += f", held by process python (pid {holder.pid}, rank {holder.rank})"
            rest = "the holder has been in read() of a file"
        found = _claim(process, WaitKind.LOCK_FILE, "a lock", does, since_ns)
        waits_for = replace(found.waits_for, what=place.path, holder=holder, rest=rest, **_MOUNT)
        return replace(found, waits_for=waits_for)


def _of_read(process: Process, place: Place, since_ns: int) -> WaitReport:
    """Of some files the agent cannot see the name."""
    what = place.path if process.info.pid % 4 else ""
    of = f" of {what} (nfs4 server:/export on /data)" if what else ""
    found = _claim(process, WaitKind.FILE_READ, "data", f"has been in read(){of}", since_ns)
    if not what:
        return replace(found, waits_for=replace(found.waits_for, certainty=Certainty.LIKELY))
    return replace(found, waits_for=replace(found.waits_for, what=what, **_MOUNT))


def _claim(process: Process, kind: WaitKind, topic: str, does: str, since_ns: int) -> WaitReport:
    waits_for = WaitsFor(
        kind,
        Certainty.SEEN,
        pid=process.info.pid,
        process="python",
        thread="python",
        topic=topic,
        says=f"its main thread {does}",
    )
    return WaitReport(waits_for, NodeRawNs(since_ns))
