"""Whether the stack of a rank shows that it waits in a call of torch.distributed.

Only calls that leave no entry in a Flight Recorder, or may leave none, are known here; a rank in a
recorded op has its entry. The main thread must be in the call itself: nothing but torch and the
standard library between its innermost frame and the call. Work that C++ waits for (`Work.wait` of
an `irecv`) leaves no frame: the stack ends in the line that called it (`native_line`), like that of
any other native call.

A stack shows one moment. Two of them show one wait if the main thread has not run in between
(`Call.ran_ns`): a wait takes no processor time, and no step of a program takes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frd.flight.stacks.text import (
    ProcessStack,
    StackFrame,
    is_machinery,
    is_of_standard_library,
    processes,
)

_C10D: Final = "torch/distributed/distributed_c10d.py"
_STORE: Final = "torch/distributed/elastic/utils/store.py"
_CALLS: Final = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "split_group": "split_group",
    "shrink_group": "shrink_group",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "batch_isend_irecv": "batch_isend_irecv",
    "all_gather_object": "all_gather_object",
    "gather_object": "gather_object",
    "scatter_object_list": "scatter_object_list",
    "broadcast_object_list": "broadcast_object_list",
}
"""Functions of `_C10D`, each with the op of the wait."""
_RENDEZVOUS: Final = "torch/distributed/rendezvous.py"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of torch.distributed that the main thread is in."""

    op: str
    """``recv``, ``new_group``; ``store`` for a wait for the store outside of such calls."""
    where: str
    """The line of the user that called it: ``train.py:88 in exchange``."""
    ran_ns: int | None
    """Processor time that the main thread has used, if it used none while the stack was read."""


def call_of(text: str) -> Call | None:
    """The call that the stack text of a rank shows; None if its main thread is elsewhere."""
    process = next(iter(processes(text)))
    op = "" if process.has_left else _op(process)
    if not op:
        return None
    own = process.own
    where = str(own[0]) if own and not is_machinery(own[0]) else ""
    return Call(op, where, process.ran_ns)


def native_line(text: str) -> str:
    """The line of the program in which the main thread is, or from which it is in native code, such
    as ``train.py:88 in exchange``; empty if it is in Python code of the standard library."""
    process = next(iter(processes(text)))
    if not process.main or is_of_standard_library(process.main[0]):
        return ""
    return str(process.own[0])


def has_stack(text: str) -> bool:
    """The text shows the Python stack of the main thread, and where its program is."""
    process = next(iter(processes(text)))
    return bool(process.main) and not process.has_left


def _op(process: ProcessStack) -> str:
    found = ""
    for frame in process.main:
        if not is_machinery(frame):
            break
        if op := _op_of(frame):
            if op != "store":
                return op
            found = op
    return found


def _op_of(frame: StackFrame) -> str:
    if frame.file.endswith(_C10D):
        return _CALLS.get(frame.name, "")
    return "store" if frame.file.endswith((_STORE, _RENDEZVOUS)) else ""
