"""Calls of torch.distributed that leave no entry, in stack texts recorded from real ranks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from frd.engine.evidence.answers import Stack
from frd.flight.stacks.places import activity_of
from frd.flight.stacks.text import RESTED
from frd.flight.stacks.waits import Call, is_one_wait
from frd.model import DEVICE, IDLE, POLL
from tests.stacks import call_of, elsewhere_of, has_stack
from tests.unit.flight.test_stack_places import recorded

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
WAITS = {
    "recv": ("recv", "in exchange"),
    "monitored_barrier": ("monitored_barrier", "in check"),
    "new_group": ("new_group", "in <lambda>"),
    "barrier": ("barrier", "in evaluate"),
}


def text(*frames: str) -> str:
    """The stack of a main thread as faulthandler writes it, innermost first."""
    lines = [
        f'  File "{frame.partition(" ")[0]}", line 8 in {frame.partition(" ")[2]}\n'
        for frame in frames
    ]
    return "Thread 0x00007f3f56a93b80 (most recent call first):\n" + "".join(lines)


@pytest.mark.parametrize("means", ["handler", "py-spy"])
@pytest.mark.parametrize("place", WAITS)
def test_a_rank_in_a_call(place: str, means: str) -> None:
    """Each call is known by the text of torch's handler and by that of py-spy."""
    call = call_of(recorded(place, means))
    assert call is not None
    op, where = WAITS[place]
    assert call.op == op
    assert call.where.startswith("places.py:")
    assert call.where.endswith(where)
    assert call.ran_ns is None


@pytest.mark.parametrize("means", ["handler", "py-spy"])
@pytest.mark.parametrize("place", ["all_reduce", "loader", "save", "spin", "wait", "subprocess"])
def test_a_rank_elsewhere(place: str, means: str) -> None:
    """In its own code, in a library, or in a collective, which the recorder shows."""
    assert call_of(recorded(place, means)) is None
    assert has_stack(recorded(place, means))


@pytest.mark.parametrize("means", ["handler", "py-spy"])
@pytest.mark.parametrize(
    ("place", "line"), [("wait", "in step_async"), ("recv", "in exchange"), ("subprocess", "")]
)
def test_the_line_that_native_code_was_called_from(place: str, means: str, line: str) -> None:
    """`work.wait()` and a receive end in code of the program and of torch; a wait for a child ends
    in Python's standard library."""
    found = Stack.of(recorded(place, means)).native_line
    assert found.startswith("places.py:") == bool(line)
    assert found.endswith(line)


def test_a_text_without_a_stack() -> None:
    """Of a process that only the kernel describes nothing is known."""
    assert call_of("# py-spy: not installed\n== /proc/7/wchan\n0\n") is None
    assert not has_stack("# py-spy: not installed\n== /proc/7/wchan\n0\n")
    assert Stack.of("# py-spy: not installed\n== /proc/7/wchan\n0\n").native_line == ""


def test_the_main_thread_has_not_run() -> None:
    """The agent has measured that the main thread used no processor time meanwhile."""
    said = f"# usage: idle\n{RESTED}4211 ns\n{recorded('recv', 'handler')}"
    call = call_of(said)
    assert call is not None
    assert call.ran_ns == 4211


def test_code_of_the_user_inside_a_call() -> None:
    """A hook of the user runs inside a call of torch.distributed: the rank is in its own code."""
    assert call_of(text("/job/train.py hook", f"{C10D}/distributed_c10d.py new_group")) is None


def test_a_group_that_another_call_makes() -> None:
    """The innermost call counts: new_subgroups makes its groups one by one."""
    frames = ("_store_based_barrier", "_new_group_with_tag", "new_group", "new_subgroups")
    said = text(*(f"{C10D}/distributed_c10d.py {name}" for name in frames), "/job/train.py main")
    assert call_of(said) == Call("new_group", "train.py:8 in main", None, ("8",))


@pytest.mark.parametrize(
    ("outer", "op"),
    [("distributed_c10d.py init_process_group", "init_process_group"), ("run.py main", "store")],
)
def test_the_rendezvous(outer: str, op: str) -> None:
    """The store of the job waits for its other ranks, on the way into the first group or not."""
    said = text(f"{C10D}/rendezvous.py _create_c10d_store", f"{C10D}/{outer}", "/job/train.py main")
    call = call_of(said)
    assert call is not None
    assert call.op == op


TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
LIB = "/usr/lib/python3.11"
SITE = "/opt/venv/lib/python3.11/site-packages"
SHM_BROADCAST = f"{SITE}/vllm/distributed/device_communicators/shm_broadcast.py"
KNOWN = {
    "a device": (DEVICE, f"{TORCH}/cuda/__init__.py synchronize"),
    "an event": (DEVICE, f"{TORCH}/cuda/streams.py synchronize"),
    "any accelerator": (DEVICE, f"{TORCH}/accelerator/__init__.py synchronize"),
    "a file lock": (POLL, f"{SITE}/filelock/_api.py acquire", f"{SITE}/filelock/_api.py __enter__"),
    "its moment": (POLL, f"{SITE}/filelock/_unix.py _acquire", f"{SITE}/filelock/_api.py acquire"),
    "a baton": (POLL, f"{TORCH}/utils/file_baton.py wait", f"{TORCH}/utils/cpp_extension.py load"),
    "a client": (IDLE, f"{LIB}/socket.py accept"),
    "a queue": (IDLE, f"{LIB}/threading.py wait", f"{LIB}/queue.py get"),
    "a loop": (
        IDLE,
        *(f"{LIB}/selectors.py select", f"{LIB}/asyncio/base_events.py _run_once"),
        *(f"{LIB}/asyncio/base_events.py run_forever", f"{LIB}/asyncio/runners.py run"),
    ),
    "a loop in C": (IDLE, f"{LIB}/asyncio/runners.py run", f"{SITE}/uvicorn/server.py run"),
    "a gRPC server": (
        IDLE,
        *(f"{LIB}/threading.py wait", f"{SITE}/grpc/_common.py _wait_once"),
        *(f"{SITE}/grpc/_common.py wait", f"{SITE}/grpc/_server.py wait_for_termination"),
    ),
    "a queue of ZeroMQ": (
        IDLE,
        *(f"{SITE}/zmq/sugar/socket.py recv_multipart", f"{SITE}/zmq/sugar/socket.py recv_pyobj"),
    ),
    "a queue of vLLM": (
        IDLE,
        *(f"{LIB}/contextlib.py __enter__", f"{SHM_BROADCAST} acquire_read"),
        f"{SHM_BROADCAST} dequeue",
    ),
    "an actor": (IDLE, f"{SITE}/ray/_private/worker.py main_loop"),
}
"""Places outside of torch.distributed, each with the op of the wait; innermost frames first."""


@pytest.mark.parametrize("case", KNOWN)
def test_a_wait_outside_of_torch_distributed(case: str) -> None:
    """For a device, a lock for which the rank looks again and again, or a request."""
    op, *frames = KNOWN[case]
    lock = any("filelock" in frame for frame in frames)
    expected = Call(op, "train.py:8 in step", None, ("8",), lock)
    assert call_of(text(*frames, "/job/train.py step")) == expected


@pytest.mark.parametrize(
    "frames",
    [
        (f"{LIB}/threading.py wait", f"{LIB}/queue.py get", f"{TORCH}/utils/data/dataloader.py x"),
        (f"{LIB}/threading.py wait", f"{LIB}/queue.py get", "/job/loader.py __next__"),
        (f"{LIB}/queue.py get", "/job/data.py read", f"{TORCH}/utils/data/_utils/fetch.py fetch"),
        (f"{LIB}/selectors.py select", f"{LIB}/multiprocessing/connection.py wait"),
        ("/job/hook.py f", f"{LIB}/asyncio/events.py _run", f"{LIB}/asyncio/base_events.py _run"),
        ("/job/hook.py f", f"{TORCH}/cuda/__init__.py synchronize"),
        (f"{SITE}/numpy/core.py dot", f"{SITE}/filelock/_api.py acquire"),
        (f"{LIB}/threading.py wait", f"{LIB}/queue.py get", "/job/loader.py __iter__"),
        ("/job/mysocket.py accept",),
        ("/job/queue.py get",),
        (f"{SITE}/zmq/sugar/socket.py send_multipart",),
        (f"{SHM_BROADCAST} acquire_write", f"{SHM_BROADCAST} enqueue"),
        ("/job/grpc/call.py f", f"{LIB}/asyncio/events.py _run", f"{LIB}/asyncio/runners.py run"),
    ],
)
def test_no_such_wait(frames: tuple[str, ...]) -> None:
    """A loader that waits for data, a wait for children, code above the call, and other files."""
    said = text(*frames, "/job/train.py step")
    assert call_of(said) is None
    elsewhere = elsewhere_of(said)
    assert elsewhere is not None
    assert elsewhere.op == ""


def test_two_ways_to_a_device() -> None:
    """One helper waits for the device: two lines that call it are two steps of the program."""
    said = text(f"{TORCH}/cuda/__init__.py synchronize", "/job/helper.py wait", "/job/a.py step")
    one, other = call_of(said), call_of(said.replace('a.py", line 8', 'a.py", line 9'))
    assert one is not None
    assert other is not None
    assert one.where == other.where
    assert is_one_wait(one, one, 1)
    assert not is_one_wait(one, other, 1)


def test_a_line_of_the_program() -> None:
    """Without a known call, what counts is the line and whether the main thread has run; in a
    collective, its entry says more. An interpreter that ends is nowhere."""
    rested = f"{RESTED}4211 ns\n"
    one = Call("", "train.py:8 in step", 4211, ("8",))
    assert elsewhere_of(rested + text("/job/train.py step")) == one
    collective = text(f"{C10D}/distributed_c10d.py all_reduce", "/job/train.py step")
    assert elsewhere_of(rested + collective) == replace(one, ran_ns=None)
    assert elsewhere_of(text(f"{C10D}/distributed_c10d.py recv", "/job/train.py step")) is None
    assert elsewhere_of(text(f"{LIB}/threading.py _shutdown")) is None


ENDING = {
    "at exit of torch": (f"{TORCH}/library.py _del_library", f"{LIB}/weakref.py _exitfunc"),
    "a barrier at exit": (f"{C10D}/distributed_c10d.py barrier", f"{LIB}/weakref.py _exitfunc"),
    "threads": (f"{LIB}/threading.py _shutdown",),
    "pools": (f"{LIB}/threading.py join", f"{LIB}/concurrent/futures/thread.py _python_exit"),
    "children": (
        f"{LIB}/multiprocessing/popen_fork.py wait",
        f"{LIB}/multiprocessing/util.py _exit_function",
    ),
    "a spawned process": (
        f"{LIB}/multiprocessing/util.py _exit_function",
        f"{LIB}/multiprocessing/process.py _bootstrap",
    ),
    "a callback of the program": ("/job/train.py close", f"{LIB}/weakref.py _exitfunc"),
}
"""Main threads that have left the main module of their program."""


@pytest.mark.parametrize("case", ENDING)
def test_an_interpreter_that_ends_proves_nothing(case: str) -> None:
    """No wait, no line, no place: at most why the process is still there."""
    said = text(*ENDING[case])
    assert (call_of(said), has_stack(said)) == (None, False)
    activity = activity_of(said)
    assert (activity.stack, activity.inside, activity.usage) == ((), "", "")
    assert activity.doing == "" or activity.doing.startswith("the program has ended")


@pytest.mark.parametrize(
    "outer",
    [
        ("/job/train.py <module>",),
        (f"{LIB}/multiprocessing/process.py run", f"{LIB}/multiprocessing/process.py _bootstrap"),
        (f"{LIB}/threading.py run", f"{LIB}/threading.py _bootstrap_inner"),
        ("<frozen-runpy> _run_code",),
    ],
)
def test_a_program_that_ends_itself_is_in_its_main_module(outer: tuple[str, ...]) -> None:
    """A join or a barrier on its last lines, in a script, a process, a thread or a module."""
    said = text(f"{C10D}/distributed_c10d.py barrier", "/job/train.py finish", *outer)
    assert has_stack(said)
    call = call_of(said)
    assert call is not None
    assert (call.op, call.where) == ("barrier", "train.py:8 in finish")


def test_a_stack_that_is_cut_has_not_ended() -> None:
    """A hundred frames of torch: those of the program are below them."""
    assert has_stack(text(*(f"{TORCH}/nn/modules/module.py _call_impl",) * 100))


PROGRAM = """
import faulthandler, multiprocessing, sys, threading, weakref

class Kept: pass
kept = Kept()

def show(): faulthandler.dump_traceback()

def end(how):
    if how == "finalizer":
        weakref.finalize(kept, show)
    elif how == "thread":
        main = threading.main_thread()
        def wait_for_end():
            main.join()
            show()
        threading.Thread(target=wait_for_end).start()
    elif how == "spawned":
        one = multiprocessing.get_context("spawn").Process(target=end, args=("finalizer",))
        one.start()
        one.join()
    else:
        show()

if __name__ == "__main__":
    end(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["finalizer", "thread", "spawned", "still in it"])
def test_an_interpreter_that_ends_in_real_processes(how: str, tmp_path: Path) -> None:
    """A finalizer of weakref, a thread that outlives the main module, a spawned process; and a
    program that is still in its main module."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py", how],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert has_stack(ran.stderr) == (how == "still in it"), ran.stderr
