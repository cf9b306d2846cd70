"""How a rank's process ended: combines the tap's record with the kernel's status.

Neither is enough alone. The record has the exception and its traceback, but nothing about
`sys.exit(1)`, `os._exit` and signals; the status, as `os.waitpid` returns it, has those but no
text. The status can be missing: the parent reaped the process before the agent could read it, or
the process is in another pid namespace. Pure.
"""

from __future__ import annotations

import os
import re
from signal import SIGINT, SIGKILL, SIGTERM, valid_signals
from typing import Final

from frd.flight.stacks.text import StackFrame, own_of
from frd.model import ExitInfo, ExitKind, MemoryEvent, MemoryEventKind, NodeRawNs, RankState
from frd_agent.ranks.tap_files import ExitRecord

_BY_SIGNAL: Final = 128
"""A handler or a shell that ends the process because of signal n exits with 128 + n."""
_INTERRUPT: Final = "KeyboardInterrupt"
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_FRAME: Final = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d{1,9}), in (?P<name>.*)')
_WORKER: Final = re.compile(r"DataLoader worker process \d+")
"""The name of a worker in torch's messages."""
_HOST_OOM: Final = re.compile(
    r"(?!OutOfMemoryError)\w*MemoryError\b"  # Python's own, numpy's
    r"|.*DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|.*\[Errno 12\]"
    r"|.*std::bad_alloc"
)
_REQUESTED_BYTES: Final = re.compile(r"tried to allocate (\d{1,18}) bytes")


def exit_info(record: ExitRecord | None, wait_status: int | None) -> ExitInfo:
    """`wait_status` is in the kernel's encoding, None if unknown."""
    killed_by, status = _decoded(wait_status)
    exception, where = "", ""
    if record is not None and record.kind == "exception":
        frames = [StackFrame(file, str(line), name) for file, line, name in record.frames]
        exception, where = _worker_exception(record) or (record.detail, _place(frames))
    if record is not None and record.interrupted and status != 0 and _INTERRUPT not in exception:
        exception = f"{_INTERRUPT}, then {exception}" if exception else _INTERRUPT
    kind = _kind(record, exception, killed_by, status)
    by_signal = killed_by or _signal_in(status)
    return ExitInfo(
        kind=kind,
        # It came while the program left because of the exception.
        signal=0 if kind is ExitKind.EXCEPTION and by_signal == SIGTERM else by_signal,
        status=status,
        exception=exception,
        where=where,
    )


def ended_at(how: ExitInfo, recorded_at_ns: NodeRawNs | None, seen_at_ns: NodeRawNs) -> NodeRawNs:
    """When the end began. The tap writes the record before the process closes its connections, so
    its time is before any effect on peers; the time seen from outside is later."""
    if recorded_at_ns is None or how.kind is ExitKind.SIGNAL:
        return seen_at_ns
    return min(recorded_at_ns, seen_at_ns)


def may_be_oom(how: ExitInfo) -> bool:
    """Whether the kernel's out-of-memory killer may have ended the process."""
    return how.signal == SIGKILL or how.kind is ExitKind.UNKNOWN


def _place(frames: list[StackFrame]) -> str:
    """``train.py:88 load_batch``"""
    return own_of(frames)[0].place if frames else ""


def _worker_exception(record: ExitRecord) -> tuple[str, str] | None:
    """The exception of a data loader's worker and its place; None if no worker raised it."""
    lines = record.original.rpartition(_TRACEBACK)[2].splitlines()
    frames = [match for line in lines if (match := _FRAME.fullmatch(line))]
    raised = [line for line in lines if line and not line[0].isspace()]
    if not frames or not raised:
        return None
    place = _place([StackFrame(**frame.groupdict()) for frame in reversed(frames)])
    worker = _WORKER.search(record.detail)
    return f"{raised[0]}, in {worker[0] if worker else 'a data loader worker'}", place


def state_after(how: ExitInfo) -> RankState:
    return RankState.FINISHED if how.kind is ExitKind.CLEAN else RankState.EXITED


def _decoded(wait_status: int | None) -> tuple[int, int | None]:
    """The signal that killed the process (0: none), and the status that it exited with."""
    if wait_status is None:
        return 0, None
    if os.WIFSIGNALED(wait_status):
        return os.WTERMSIG(wait_status), None
    return 0, os.WEXITSTATUS(wait_status)


def _signal_in(status: int | None) -> int:
    number = (status or 0) - _BY_SIGNAL
    return number if number in valid_signals() else 0


def _kind(
    record: ExitRecord | None, exception: str, killed_by: int, status: int | None
) -> ExitKind:
    if status == 0:
        # An exception on record was printed and survived, as an interactive interpreter does.
        return ExitKind.CLEAN
    if exception:
        interrupted = re.match(rf"{_INTERRUPT}\b", exception) is not None
        return ExitKind.INTERRUPT if interrupted else ExitKind.EXCEPTION
    if SIGINT in (killed_by, _signal_in(status)):
        return ExitKind.INTERRUPT
    if killed_by:
        return ExitKind.SIGNAL
    if status:
        return ExitKind.STATUS
    return ExitKind.UNKNOWN if record is None else ExitKind.CLEAN


def out_of_memory(record: ExitRecord, at_ns: NodeRawNs, rank: int) -> MemoryEvent | None:
    """The exit as an out-of-memory event of `rank` at `at_ns`, if an allocation of host memory
    failed.

    Host memory has no observer; for device memory torch's own observer has reported more.
    """
    if record.kind != "exception" or _HOST_OOM.match(record.detail) is None:
        return None
    asked = _REQUESTED_BYTES.search(record.detail)
    return MemoryEvent(
        rank=rank,
        kind=MemoryEventKind.OOM,
        at_ns=at_ns,
        requested_bytes=int(asked[1]) if asked else 0,
        detail=record.detail,
    )
