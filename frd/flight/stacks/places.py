"""A phrase for what a rank is doing, if its stack shows a known place.

One table: frames of these functions in these files, anywhere on the stack of the main thread. If
several match, the first in the table is used, because a checkpoint also waits in collectives and a
debugger may stop anywhere. Calls of C code (`Work.wait`, `Tensor.item`) leave no frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from frd.flight.stacks.text import (
    ProcessStack,
    StackFrame,
    is_machinery,
    lines_of,
    own_of,
    processes,
)
from frd.model import Activity, WorkerStack

MAX_WORKERS: Final = 16
_MAX_WORKER_LINES: Final = 16
_MAX_NAMED: Final = 3
"""Workers that are listed in one phrase."""
_WAITS_FOR_WORK: Final = "waits for work"

Phrase = Callable[[StackFrame, ProcessStack], str]


@dataclass(frozen=True, slots=True)
class _Place:
    phrase: str | Phrase
    file: str
    """What the file's path ends in; a folder if it ends in ``/``; empty: any file."""
    functions: frozenset[str] = frozenset()
    """Empty: any."""

    def holds(self, frame: StackFrame) -> bool:
        if self.functions and frame.name not in self.functions:
            return False
        return self.file in frame.file if self.file.endswith("/") else _ends(frame.file, self.file)


def _ends(path: str, file: str) -> bool:
    return not file or path == file or path.endswith(f"/{file}")


def _place(phrase: str | Phrase, file: str, *functions: str) -> _Place:
    return _Place(phrase, file, frozenset(functions))


# -- phrases that depend on more than the frame ----------------------------------------------------


def _ended(frame: StackFrame, process: ProcessStack) -> str:
    threads = sorted(process.threads, key=lambda one: all(map(is_machinery, one)))
    where = f": {own_of(threads[0])[0].place}" if threads else ""
    return f"the program has ended, a non-daemon thread keeps it alive{where}"


def _waits_for_thread(frame: StackFrame, process: ProcessStack) -> str:
    own = [one for one in process.threads if not all(map(is_machinery, one))]
    where = f": {own_of(own[0])[0].place}" if len(own) == 1 else ""
    return f"waits for a thread to end{where}"


def _waits_for_data(frame: StackFrame, process: ProcessStack) -> str:
    """Names the workers that work on a batch; an idle one delays nothing."""
    loaders = [child for child in process.children if _is_loader(child)]
    working = {child.pid: where for child in loaders if (where := _works_at(child))}
    if loaders and all(map(_is_idle, loaders)):
        return f"waits for its DataLoader, all {len(loaders)} workers of which wait for work"
    if not working:
        return "waits for its DataLoader workers"
    if len(working) == 1:
        [(pid, where)] = working.items()
        return f"waits for its DataLoader worker pid {pid}: {where}"
    named = list(working.items())[:_MAX_NAMED]
    more = f" and {len(working) - _MAX_NAMED} more" if len(working) > _MAX_NAMED else ""
    if len(set(working.values())) == 1:
        pids = ", ".join(str(pid) for pid, _ in named)
        return f"waits for its DataLoader workers pids {pids}{more}: {named[0][1]}"
    each = ", ".join(f"pid {pid}: {where}" for pid, where in named)
    return f"waits for its DataLoader workers ({each}{more})"


def _is_loader(child: ProcessStack) -> bool:
    return child.name == "pt_data_worker" or any(f.name == "_worker_loop" for f in child.main)


def _is_idle(child: ProcessStack) -> bool:
    """A DataLoader worker that has no batch to work on."""
    for inner, frame in zip(child.main, child.main[1:], strict=False):
        if frame.name == "_worker_loop":
            return inner.name == "get" and inner.file.endswith("/queues.py")
    return False


def _works_at(child: ProcessStack) -> str:
    """Empty for a worker that is idle or whose place is unknown."""
    if child.main:
        return "" if _is_idle(child) else child.own[0].place
    return child.kernel if "disk sleep" in child.kernel else ""


_FUNCTION = re.compile(r"[^\W\d]\w*")


def _in_barrier(frame: StackFrame, process: ProcessStack) -> str:
    return f"in a barrier{_of_function(process)}"


def _in_function(frame: StackFrame, process: ProcessStack) -> str:
    return f"in {frame.name}{_of_function(process)}"


def _of_function(process: ProcessStack) -> str:
    own = process.own
    if not own or is_machinery(own[0]) or not _FUNCTION.fullmatch(own[0].name):
        return ""
    return f" in {own[0].name}()"


_C10D = "torch/distributed/distributed_c10d.py"
_COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_object"),
    *("gather", "gather_object", "scatter", "scatter_object_list", "all_to_all"),
    *("all_to_all_single", "broadcast", "broadcast_object_list", "batch_isend_irecv", "send"),
    *("send_object_list", "isend", "recv", "recv_object_list", "irecv"),
)
_LOADER = "torch/utils/data/dataloader.py"
_DCP = "torch/distributed/checkpoint"

_PLACES: Final = (
    _place("in the debugger", "pdb.py", "interaction"),
    _place("in the debugger", "IPython/core/debugger.py", "interaction", "cmdloop"),
    _place("in the debugger", "pydevd.py", "do_wait_suspend"),
    _place(_ended, "threading.py", "_shutdown"),
    _place(
        "the program has ended, child processes of it have not",
        "multiprocessing/util.py",
        "_exit_function",
    ),
    _place("loading a batch", "torch/utils/data/_utils/fetch.py"),
    _place(_waits_for_data, _LOADER, "_try_get_data", "_get_data"),
    _place("starting its DataLoader workers", _LOADER, "_get_iterator"),
    _place("waits for its DataLoader workers to end", _LOADER, "_shutdown_workers"),
    _place("saving a checkpoint", f"{_DCP}/state_dict_saver.py"),
    _place("loading a checkpoint", f"{_DCP}/state_dict_loader.py"),
    _place("saving a checkpoint", "torch/serialization.py", "save", "_save", "_legacy_save"),
    _place("loading a checkpoint", "torch/serialization.py", "load", "_load", "_legacy_load"),
    _place("saving a checkpoint", "safetensors/torch.py", "save_file", "save_model"),
    _place("loading a checkpoint", "safetensors/torch.py", "load_file", "load_model"),
    _place("saving a checkpoint", "", "save_checkpoint", "_save_checkpoint"),
    _place("loading a checkpoint", "", "load_checkpoint", "_load_checkpoint"),
    _place(
        "waits for another process that builds an extension (a lock file)",
        "torch/utils/file_baton.py",
        "wait",
    ),
    _place("compiling an extension", "torch/utils/cpp_extension.py"),
    _place("compiling", "torch/_dynamo/convert_frame.py"),
    _place("compiling", "torch/_inductor/compile_fx.py"),
    _place("compiling", "torch/_inductor/async_compile.py"),
    _place("compiling", "triton/compiler/compiler.py"),
    _place(_in_barrier, _C10D, "barrier", "monitored_barrier"),
    _place(_in_function, _C10D, "init_process_group", "destroy_process_group"),
    _place(_in_function, _C10D, "new_group", "new_subgroups", "split_group", "shrink_group"),
    _place(_in_function, _C10D, *_COLLECTIVES),
    _place("in Work.wait", "torch/distributed/_functional_collectives.py", "wait_tensor", "wait"),
    _place("in Work.wait", "torch/futures/__init__.py", "wait"),
    _place("waits for its device in synchronize", "torch/cuda/__init__.py", "synchronize"),
    _place("waits for its device in synchronize", "torch/cuda/streams.py", "synchronize"),
    _place("waits for its device in synchronize", "torch/accelerator/__init__.py", "synchronize"),
    _place("waits for a subprocess", "subprocess.py", "wait", "communicate"),
    _place(_waits_for_thread, "threading.py", "join"),
    _place("in the backward pass", "torch/autograd/graph.py", "_engine_run_backward"),
)


def doing(process: ProcessStack) -> str:
    """A phrase for where the main thread is; empty for an unknown place."""
    for place in _PLACES:
        for frame in process.main:
            if place.holds(frame):
                phrase = place.phrase
                return phrase if isinstance(phrase, str) else phrase(frame, process)
    return "collecting garbage" if process.collects else ""


def activity_of(text: str) -> Activity:
    """The activity that the text of a rank's stack shows; empty for a text without a stack. Of an
    interpreter that ends, only why it has not ended yet."""
    process, *process.children = processes(text)
    if process.has_left:
        said = doing(process)
        return Activity(doing=said if said.startswith("the program") else "")
    busy = "busy" if process.usage.startswith("busy") else ""
    workers = sorted(
        (_worker(child) for child in process.children), key=lambda one: one.doing == _WAITS_FOR_WORK
    )
    return Activity(
        stack=lines_of(process.own),
        inside=process.inside,
        doing=doing(process) or busy,
        usage=process.usage,
        note=process.advice,
        workers=tuple(workers[:MAX_WORKERS]),
    )


def _worker(child: ProcessStack) -> WorkerStack:
    stack = lines_of(child.own, _MAX_WORKER_LINES)
    if not stack and child.kernel:
        stack = (child.kernel,)
    return WorkerStack(
        pid=child.pid,
        name=child.name,
        stack=stack,
        inside=child.inside,
        doing=_WAITS_FOR_WORK if _is_idle(child) else doing(child),
        usage=child.usage,
    )
