"""A rank of a job of one, which does what a training program may do to its own process.

    python sacred.py HOW [ARGUMENT ...]

It knows nothing of frd, but waits until the tap, if there is one, has settled. What it prints, and
how it ends, must not depend on the tap.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

MIB = 1 << 20


def train() -> None:
    weight = torch.ones(64, 64, requires_grad=True)
    for _ in range(3):
        loss = (weight @ torch.ones(64, 64)).sum()
        loss.backward()
        dist.all_reduce(weight.grad)


def settle() -> None:
    """Until the tap's identity says whether there is a worker server."""
    directory = os.environ.get("FRD_RUN_DIR")
    deadline = time.monotonic() + 20
    while directory and time.monotonic() < deadline:
        for path in Path(directory).glob("*.json"):
            identity = json.loads(path.read_text())
            if identity["socket"] or identity.get("socket_error"):
                time.sleep(0.3)  # the server starts its threads on a thread of its own
                return
        time.sleep(0.02)


def wait_for(*names: str) -> None:
    """As Slurm's `--signal=USR1@60` is used, or a checkpoint that SIGTERM must not break."""
    numbers = {int(name) for name in names}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    dist.init_process_group("gloo")
    train()
    settle()
    print("ready", *sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))), flush=True)
    for _ in numbers:
        while not signal.sigpending():  # it comes in the middle of a step
            train()
        print("got", int(signal.sigwait(numbers)), flush=True)


def limit(kind: str, distance: str, *more: str) -> None:
    """After all threads of the program run."""
    dist.init_process_group("gloo")
    train()
    LIMITS[kind](int(distance), *more)
    settle()
    train()
    print("trained", flush=True)


def _threads(distance: int) -> None:
    _limit_threads(_count("Threads") + distance)


def _limit_threads(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if os.getuid() == 0:  # which has no such limit
        os.setuid(61_000 + os.getpid() % 4_000)  # no other process has this user


def _quarter(distance: int) -> None:
    """Of a program with many threads: so that a quarter would remain after the server's."""
    for _ in range(250):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    server = max(8, os.sysconf("SC_NPROCESSORS_ONLN")) + 1
    _limit_threads(-(-(_count("Threads") + server) * 4 // 3) + distance)


def _cgroup(distance: int, folder: str) -> None:
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    Path(folder, "pids.max").write_text(str(_count("Threads") + distance))


def _address_space(mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_count("VmSize") * 1024 + mib * MIB,) * 2)


def _data(mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_count("VmData") * 1024 + mib * MIB,) * 2)


def _files(distance: int) -> None:
    """The program then opens all that it may."""
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100 + distance,) * 2)
    KEPT.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(99))


def _count(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


LIMITS: dict[str, Callable[..., None]] = {
    function.__name__[1:]: function
    for function in (_threads, _quarter, _cgroup, _address_space, _data, _files)
}


def small_files() -> None:
    """A program that limits its files, and has the default action for SIGXFSZ."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    dist.init_process_group("gloo")
    settle()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    time.sleep(1.5)  # the tap publishes once a second
    train()
    print("trained", flush=True)


def temporary(folder: str) -> None:
    """A program that chooses its folder for temporary files only when it trains."""
    dist.init_process_group("gloo")
    settle()
    os.environ["TMPDIR"] = folder
    print(tempfile.gettempdir(), flush=True)


def fork(threads: str, children: str) -> None:
    """From several threads, as data loaders and launchers of helpers do."""
    dist.init_process_group("gloo")
    train()
    settle()
    with ThreadPoolExecutor(int(threads)) as pool:
        ended = list(pool.map(_child, range(int(children))))
    print(sorted(set(ended)), flush=True)


def _child(number: int) -> int:
    """Its status. It uses what a lock that another thread held at the fork would block."""
    if (pid := os.fork()) == 0:
        signal.alarm(20)
        tempfile.gettempdir()
        json.loads(json.dumps({"number": number}))
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def count_threads() -> None:
    """Programs that join all threads at their end, or expect one of their own only."""
    dist.init_process_group("gloo")
    settle()
    traced: set[str] = set()
    threading.settrace(lambda frame, *_: traced.add(frame.f_code.co_filename))
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    print(threading.active_count(), sorted(traced), flush=True)


def stand() -> None:
    """Trains until its stdin closes."""
    dist.init_process_group("gloo")
    train()
    settle()
    print("ready", flush=True)
    while sys.stdin.readline():
        train()
        print("step", flush=True)


KEPT: list[int] = []
COMMANDS = (wait_for, limit, small_files, temporary, fork, count_threads, stand)
HOW: dict[str, Callable[..., None]] = {function.__name__: function for function in COMMANDS}
if __name__ == "__main__":
    HOW[sys.argv[1]](*sys.argv[2:])
    if dist.is_initialized():
        dist.destroy_process_group()
