"""One step of a chain of waits as a claim: kind, object, and the words for it.

A clause is in the present perfect and without a duration: ``its loader worker (pid 25037) has been
in read() of /data/shard-17.tar (nfs4 server:/export on /data)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from frd.model import Certainty, Holder, NodeRawNs, WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.reading.files import Mount, printable
from frd_agent.inspection.reading.locks import HeldLock
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.targets import Object, Target
from frd_agent.inspection.tracking import Wait

LOADER: Final = "pt_data_worker"
"""The name that torch gives to its DataLoader workers."""
MAX_FAMILY: Final = 128
"""Processes of one rank, itself included; the nearest ones."""
_KINDS: Final = {
    Class.READ: WaitKind.FILE_READ,
    Class.WRITE: WaitKind.FILE_WRITE,
    Class.SYNC: WaitKind.FILE_SYNC,
    Class.OPEN: WaitKind.FILE_OPEN,
}
_TOPICS: Final = {
    WaitKind.FILE_READ: "data",
    WaitKind.PAGE_FAULT: "data",
    WaitKind.FILE_WRITE: "storage",
    WaitKind.FILE_SYNC: "storage",
    WaitKind.FILE_OPEN: "a file",
    WaitKind.LOCK_FILE: "a lock",
    WaitKind.LOCK_SHARED: "a lock",
    WaitKind.LOCK_INNER: "a lock",
    WaitKind.SLEEP: "a timer",
    WaitKind.STOPPED: "a signal that continues it",
    WaitKind.ZOMBIE: "its parent",
    WaitKind.ON_CPU: "nothing",
}


_SLOW: Final = "its position in the file changes: it is slow rather than stuck"


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process, as of the last sample."""

    pid: int
    name: str
    main: Wait
    others: tuple[Wait, ...] = ()
    """Its other threads, if the main thread waits for one of them."""
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known of a rank that is inspected."""

    pid: int
    family: tuple[int, ...]
    """The rank's process and its descendants."""
    processes: Mapping[int, ProcessView]
    """Of the family, and others that hold what they wait for."""
    holders: Mapping[int, Holder] = field(default_factory=dict)
    """Every process that holds something, with its rank."""
    above: frozenset[int] = frozenset()
    """The processes that have started it, up to the first one of the node."""
    locked: tuple[HeldLock, ...] = ()
    """If the rank is asleep: the files that processes of other ranks have locked for some time."""
    denial: str = ""
    """Which right is missing; empty if none is."""

    def holder(self, pid: int) -> Holder:
        return self.holders.get(pid, Holder(pid))


@dataclass(frozen=True, slots=True)
class Who:
    """The subject of a clause."""

    words: str
    pid: int = 0
    process: str = ""
    thread: str = ""


UNKNOWN: Final = WaitReport(WaitsFor(WaitKind.UNKNOWN, Certainty.UNKNOWN))
"""Not enough samples."""


def subject(view: RankView, wait: Wait) -> Who:
    process = view.processes[wait.pid]
    is_main = wait.tid == wait.pid
    thread = "main thread" if is_main else f"thread {printable(wait.thread)} (tid {wait.tid})"
    name = printable(process.name)
    if wait.pid == view.pid:
        words = f"its {thread}"
    elif wait.pid not in view.family:
        words = holder_words(view.holder(wait.pid))
    elif process.name == LOADER:
        words = f"its loader worker (pid {wait.pid})"
    else:
        words = f"its child process {name} (pid {wait.pid})"
    if wait.pid != view.pid and not is_main:
        words = f"{thread} of {words}"
    return Who(words, wait.pid, name, printable(wait.thread))


def holder_words(holder: Holder) -> str:
    of_rank = "" if holder.rank is None else f", rank {holder.rank}"
    name = printable(holder.process)
    return f"process {name} (pid {holder.pid}{of_rank})" if name else f"pid {holder.pid}{of_rank}"


def claim(
    kind: WaitKind,
    certainty: Certainty,
    who: Who,
    does: str,
    since_ns: NodeRawNs,
    **more: object,
) -> WaitReport:
    """`does`: the clause after its subject. `more`: other fields of `WaitsFor`."""
    found = WaitsFor(
        kind=kind,
        certainty=certainty,
        pid=who.pid,
        process=who.process,
        thread=who.thread,
        topic=_TOPICS.get(kind, ""),
        says=f"{who.words} {does}",
    )
    return WaitReport(replace(found, **more), since_ns)  # type: ignore[arg-type]


def in_call(wait: Wait, name: str) -> str:
    """``has been in read()``; of a thread that ran in between, ``has been in read() calls``."""
    times_out = wait.target is not None and wait.target.call.timeout is not None
    again = wait.woke and not times_out and name != "page fault"
    return f"has been in {name}() calls" if again else f"has been in {name}()"


def of_file(
    who: Who, wait: Wait, path: str, mount: Mount | None, holder: Holder | None = None
) -> WaitReport:
    """A call of a file, by its path."""
    assert wait.target is not None
    call = wait.target.call
    kind = _KINDS[call.kind]
    what = printable(path)
    does = f"{in_call(wait, call.name)}{f' of {what}' if what else ''}{mount_words(mount)}"
    is_device = path.startswith("/dev/") and not path.startswith("/dev/shm/")
    topic = "input" if is_device and kind is WaitKind.FILE_READ else _TOPICS[kind]
    return claim(
        kind,
        Certainty.SEEN if what else Certainty.LIKELY,
        who,
        does,
        wait.since_ns,
        what=what,
        topic=topic,
        holder=holder,
        rest=joined([wait.target.problem, _SLOW if wait.moved else ""]),
        **mount_fields(mount),
    )


def mount_words(mount: Mount | None) -> str:
    return f" ({printable(mount.fs)} on {printable(mount.point)})" if mount else ""


def mount_fields(mount: Mount | None) -> dict[str, str]:
    return {"mount": printable(mount.point), "fs": printable(mount.fs)} if mount else {}


def of_socket(who: Who, wait: Wait, one: Object, holder: Holder | None) -> WaitReport:
    assert wait.target is not None
    call = wait.target.call
    peer = one.peer
    address = printable(peer.address) if peer else ""
    if call.kind is Class.CONNECT or (peer and peer.is_connecting):
        topic, word = f"a connection to {address or 'another process'}", "to"
    elif one.writes or call.kind in (Class.SEND, Class.WRITE):
        topic, word = f"{address or 'another process'} to take data", "to"
    elif call.kind is Class.ACCEPT or (peer and peer.is_listening):
        topic, word = "a connection from another process", "on"
    elif peer and peer.is_own:
        topic, word = f"a client of {address}", "on"
    elif peer and peer.is_served:
        topic, word = f"a request from {address}", "from"
    else:
        topic, word = f"a reply from {address or 'another process'}", "from"
    held = f", held by {holder_words(holder)}" if holder else ""
    place = address or ("a listening socket" if word == "on" else "a socket")
    return claim(
        WaitKind.SOCKET,
        Certainty.SEEN if address else Certainty.LIKELY,
        who,
        f"{in_call(wait, call.name)} {word} {place}{held}",
        wait.since_ns,
        what=address,
        topic=topic,
        holder=holder,
    )


def of_other(who: Who, wait: Wait, target: Target) -> WaitReport:
    """A call that is known by its name at most."""
    name = f"{target.call.name}()" if "call" not in target.call.name else target.call.name
    files = [printable(one.file.link) for one in target.objects if one.file.link]
    on = f" of {files[0]}" if len(files) == 1 else f" of {len(files)} descriptors" if files else ""
    return claim(
        *(WaitKind.UNKNOWN, Certainty.UNKNOWN, who, f"has been in {name}{on}", wait.since_ns),
        what=files[0] if len(files) == 1 else "",
        rest=target.problem,
    )


def of_state(who: Who, wait: Wait) -> WaitReport | None:
    """Stopped, frozen or a zombie; else None."""
    if wait.state in "Tt":
        by = "a debugger" if wait.state == "t" else "a signal"
        does = f"has been stopped by {by} (state {wait.state})"
        return claim(WaitKind.STOPPED, Certainty.SEEN, who, does, wait.since_ns)
    if wait.target is not None and wait.target.call.kind is Class.FROZEN:
        does = "has been frozen with its control group, as a paused container is"
        topic = "its control group to be thawed"
        return claim(WaitKind.STOPPED, Certainty.SEEN, who, does, wait.since_ns, topic=topic)
    if wait.state in "ZX":
        does = "has been a zombie: it has ended, and its parent has not collected it"
        return claim(WaitKind.ZOMBIE, Certainty.SEEN, who, does, wait.since_ns)
    return None


def of_computing(who: Who, wait: Wait) -> WaitReport:
    """Not in a call: on a processor, or in one call after another."""
    if wait.busy_since_ns is not None:
        does = f"has been on the CPU ({wait.cores:.1f} cores)"
        return claim(WaitKind.ON_CPU, Certainty.SEEN, who, does, wait.busy_since_ns)
    if wait.state == "R" and wait.is_sure:
        does = "has been running or ready to run"
        return claim(WaitKind.ON_CPU, Certainty.LIKELY, who, does, wait.since_ns)
    return UNKNOWN


def of_fault(view: RankView, wait: Wait, target: Target) -> WaitReport:
    files = [printable(path) for path in target.mapped]
    only = files[0] if len(files) == 1 else ""
    rest = target.problem
    if len(files) > 1:
        rest = f"mapped data files: {', '.join(files[:4])}{', ...' if len(files) > 4 else ''}"
    likely = f", likely of {only}, the only data file that it has mapped" if only else ""
    return claim(
        WaitKind.PAGE_FAULT,
        Certainty.LIKELY,
        subject(view, wait),
        f"has been in a page fault{likely}",
        wait.since_ns,
        what=only,
        rest=rest,
    )


def likely(report: WaitReport) -> WaitReport:
    found = report.waits_for
    if found.certainty is not Certainty.SEEN:
        return report
    return replace(report, waits_for=replace(found, certainty=Certainty.LIKELY))


def joined(parts: Iterable[str]) -> str:
    """Clauses in one sentence, each once."""
    clauses = [clause for part in parts for clause in part.split("; ") if clause]
    return "; ".join(dict.fromkeys(clauses))
