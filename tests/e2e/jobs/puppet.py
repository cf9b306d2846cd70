"""A rank that executes the commands on its stdin, and prints `done` after each.

An ordinary torch script that knows nothing of frd; `tests.world.puppets` sends the commands.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import PrefixStore, TCPStore
from torch.utils.data import DataLoader


class Threads:
    """A data set of the names of the threads in the worker that loads it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        return ",".join(thread.name for thread in threading.enumerate())


def init() -> None:
    dist.init_process_group("gloo")


def destroy() -> None:
    dist.destroy_process_group()


def reduce(times: str = "1") -> None:
    for _ in range(int(times)):
        dist.all_reduce(torch.ones(8))


def receive(source: str) -> None:
    dist.recv(torch.ones(8), int(source))


def wait(source: str) -> None:
    work = dist.irecv(torch.ones(8), int(source))
    assert work is not None
    work.wait()


def read(path: str) -> None:
    """Of a pipe: until another process writes to it."""
    with open(path, "rb") as file:
        file.read()


def group(desc: str) -> None:
    ranks = list(range(dist.get_world_size()))
    dist.barrier(dist.new_group(ranks, group_desc=desc))


def weights() -> None:
    """A group at its own store, as programs make it to send weights to the processes of another
    job, here to none."""
    store = PrefixStore("weights", TCPStore("127.0.0.1", 0, 1, is_master=True))
    names = {"group_name": "weights", "timeout": timedelta(minutes=1)}
    made, _ = c10d._new_process_group_helper(1, 0, [], "gloo", store, **names)
    c10d._world.pg_group_ranks[made] = {0: 0}


def load() -> None:
    """In forked workers, as a training script's data loader does it."""
    names = list(DataLoader(Threads(), num_workers=2, multiprocessing_context="fork"))
    print(f"workers {names}", flush=True)


def fork() -> None:
    """A child that leaves through the end of the interpreter, not through os._exit."""
    if (pid := os.fork()) == 0:
        sys.exit(0)
    print(f"child {os.waitpid(pid, 0)[1]}", flush=True)


def hold(seconds: str) -> None:
    """Holds the GIL."""
    sys.setswitchinterval(1000)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        pass
    sys.setswitchinterval(0.005)


def grow(mib: str) -> None:
    kept.append(b"x" * (int(mib) << 20))


def child(mib: str) -> None:
    """A forked child takes memory, and keeps it as long as this process lives."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(theirs)
        grow(mib)
        os.read(ours, 1)
        os._exit(0)
    kept.append(theirs)


def fail(text: str) -> None:
    raise RuntimeError(text)


kept: list[object] = []
KNOWN = (
    *(init, destroy, reduce, receive, wait, read, group, weights, load, fork, hold, grow, child),
    fail,
)
COMMANDS = {f.__name__: f for f in KNOWN}

for line in sys.stdin:
    command, *arguments = line.split()
    COMMANDS[command](*arguments)
    print("done", flush=True)
