"""What the main thread of a rank waits in, as far as its frames show it.

Of torch.distributed only calls that leave no entry in a Flight Recorder, or may leave none, are
known here; a rank in a recorded op has its entry. The main thread must be in the call itself:
nothing but torch, the standard library and the package of the call between its innermost frame and
the call. Work that C++ waits for leaves no frame (`Work.wait` of an `irecv`, a read, `time.sleep`,
a device in `Tensor.item`): the stack ends in the line that called it (`native_line`).

A stack shows one moment. Two of them show one wait if the main thread has hardly run in between
(`is_one_wait`): a wait for a rank takes no processor time, and no step of a program takes none. A
wait for a device may take all of a core, so only its frames count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from frd.flight.stacks.text import ProcessStack, StackFrame, is_machinery, is_of_standard_library
from frd.model import DEVICE, IDLE, POLL

_C10D: Final = "torch/distributed/distributed_c10d.py"
_FILE_LOCK: Final = "filelock/_api.py"
_C10D_CALLS: Final = {
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
_STORE: Final = "store"
_ANY: Final = ""
_RECEIVES: Final = (
    *("recv", "recv_json", "recv_multipart", "recv_pyobj", "recv_serialized", "recv_string"),
)
_PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    _C10D: _C10D_CALLS,
    "torch/distributed/elastic/utils/store.py": {_ANY: _STORE},
    "torch/distributed/rendezvous.py": {_ANY: _STORE},
    "torch/accelerator/__init__.py": {"synchronize": DEVICE},
    "torch/cuda/__init__.py": {"synchronize": DEVICE},
    "torch/cuda/streams.py": {"synchronize": DEVICE},
    "torch/xpu/__init__.py": {"synchronize": DEVICE},
    "torch/xpu/streams.py": {"synchronize": DEVICE},
    "torch/utils/file_baton.py": {"wait": POLL},
    _FILE_LOCK: {"acquire": POLL},
    "uvloop/__init__.py": {"run": IDLE},
    "zmq/sugar/poll.py": {"poll": IDLE},
    "zmq/sugar/socket.py": dict.fromkeys(("poll", *_RECEIVES), IDLE),
    "grpc/_server.py": {"wait_for_termination": IDLE},
    "ray/_private/worker.py": {"main_loop": IDLE},
    "vllm/distributed/device_communicators/shm_broadcast.py": {
        "acquire_read": IDLE,
        "dequeue": IDLE,
    },
}
"""By the end of a file's path, its functions (`_ANY`: all of them), each with the op of the wait;
of an event loop its own functions, for a coroutine that runs has frames above them."""
_STANDARD: Final[Mapping[str, Mapping[str, str]]] = {
    "socket.py": {"accept": IDLE},
    "socketserver.py": {"serve_forever": IDLE},
    "multiprocessing/connection.py": {"accept": IDLE},
    "multiprocessing/queues.py": {"get": IDLE},
    "queue.py": {"get": IDLE},
    "asyncio/base_events.py": {_ANY: IDLE},
    "asyncio/runners.py": {"run": IDLE},  # of a loop in C, such as uvloop
    "code.py": {"raw_input": IDLE},
}
"""The same in the standard library: other packages have files of these names, too."""
_PACKAGES: Final = re.compile(r"/(?:site|dist)-packages/(?:filelock|zmq|grpc|uvloop)/")
"""Their frames above a place are those of the call."""
_DATA: Final = "torch/utils/data/"
_LITTLE: Final = 0.05
"""Share of the time in which a rank runs that polls."""
_WAKES_NS: Final = 1_000_000
"""Processor time that a wait of all for each other may use between two looks: that for the store
wakes every ten seconds to look at its time-out, which takes some hundred microseconds. A wait for a
peer uses none."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the main thread is in."""

    op: str
    """As in `frd.model.UnrecordedWait`, ``store`` for a wait for the store outside of calls of
    torch.distributed; empty: in nothing that is known here."""
    where: str
    """The line of the user that called it: ``train.py:88 in exchange``."""
    ran_ns: int | None
    """Processor time that the main thread has used, if it used none while the stack was read. None
    also in a collective that leaves an entry: that it rests there says nothing new."""
    lines: tuple[str, ...] = ()
    """The numbers of all lines of the user, innermost first: another step may come to the call by
    another way."""
    is_for_lock: bool = False
    """It polls for the lock of a file, which the kernel knows."""


def place_of(process: ProcessStack) -> Call | None:
    """What the main thread is in; None if it is not known, or has left the program."""
    if not process.main or process.has_left:
        return None
    own = process.own
    op, where = _op(process), "" if is_machinery(own[0]) else str(own[0])
    lines = tuple([frame.line for frame in own])
    is_for_lock = op == POLL and any(frame.file.endswith(_FILE_LOCK) for frame in process.main)
    call = Call(op, where, process.ran_ns, lines, is_for_lock)
    is_recorded = not call.op and any(map(_is_of_c10d, _inside(process)))
    return replace(call, ran_ns=None) if is_recorded else call


def is_one_wait(before: Call, after: Call, passed_ns: int) -> bool:
    """Two looks at a rank, `passed_ns` apart, show it in the same wait, or at the same rest."""
    if (before.op, before.where, before.lines) != (after.op, after.where, after.lines):
        return False
    if after.op in (DEVICE, IDLE):
        return True
    if before.ran_ns is None or after.ran_ns is None:
        return False
    most: float = 0 if after.op in ("", "send", "recv") else _WAKES_NS
    if after.op == POLL:
        most = passed_ns * _LITTLE
    return 0 <= after.ran_ns - before.ran_ns <= most


def native_line(process: ProcessStack) -> str:
    """The line of the program in which the main thread is, or from which it is in native code, such
    as ``train.py:88 in exchange``; empty if it is in Python code of the standard library."""
    if not process.main or is_of_standard_library(process.main[0]):
        return ""
    return str(process.own[0])


def _inside(process: ProcessStack) -> list[StackFrame]:
    """The frames from the innermost one to the program's, without that."""
    found = []
    for frame in process.main:
        if not (is_machinery(frame) or _PACKAGES.search(frame.file) or _op_of(frame)):
            break
        found.append(frame)
    return found


def _op(process: ProcessStack) -> str:
    ops = [op for frame in _inside(process) if (op := _op_of(frame))]
    op = next((op for op in ops if op != _STORE), ops[0] if ops else "")
    return "" if op == IDLE and any(map(_gives_data, process.main)) else op


def _op_of(frame: StackFrame) -> str:
    places = _STANDARD if is_of_standard_library(frame) else _PLACES
    for file, functions in places.items():
        if frame.file.endswith(file) and frame.file[-len(file) - 1 : -len(file)] in ("", "/"):
            return functions.get(frame.name) or functions.get(_ANY, "")
    return ""


def _is_of_c10d(frame: StackFrame) -> bool:
    return frame.file.endswith(_C10D)


def _gives_data(frame: StackFrame) -> bool:
    """A loader waits for data, whatever it waits in."""
    return _DATA in frame.file or frame.name in ("__iter__", "__next__")
