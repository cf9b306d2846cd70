"""Four ranks that wait outside of torch.distributed, for each other or for no rank: PLACE [FILE].

flock     0 and 1 wait for a file's lock, 3 in an all_reduce; 2 has the lock and waits for a reply
filelock  the same with the package filelock, which polls
shard     1, 2 and 3 poll for a file; 0 has to write it and waits for a reply
mount     all read the file FILE
requests  all poll for a request; when one has come, they train
device    0, 2 and 3 wait for their devices, and use a core each; 1 waits for a reply
prefetch  the same, but 1 waits for a thread that gets its batches
"""

import fcntl
import os
import queue
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock

ONE = torch.ones(4)
FOLDER = Path(tempfile.gettempdir())
"""Of the job."""


def train(steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(ONE)
        time.sleep(0.02)


def ask() -> None:
    """A server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).recv(1)


def poll(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


def flock(rank: int) -> None:
    with (FOLDER / "checkpoint.lock").open("a") as file:
        if rank == 2:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank < 2:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif rank == 2:
            ask()
    dist.all_reduce(ONE)


def filelock(rank: int) -> None:
    lock = FileLock(FOLDER / "squad.lock")
    if rank == 2:
        lock.acquire()
    dist.barrier()
    if rank < 2:
        lock.acquire()
    elif rank == 2:
        ask()
    dist.all_reduce(ONE)


def shard(rank: int) -> None:
    if rank == 0:
        ask()
    poll(FOLDER / "shard-2.done")


def mount(rank: int) -> None:
    Path(sys.argv[2]).read_bytes()


def requests(rank: int) -> None:
    poll(FOLDER / "request")
    train(1_000_000)


def device(rank: int) -> None:
    if rank == 1:
        ask()
    synchronize()


def prefetch(rank: int) -> None:
    if rank == 1:
        take(queue.Queue())
    synchronize()


def take(batches: queue.Queue[object]) -> None:
    threading.Thread(target=ask).start()
    batches.get()


def synchronize() -> None:
    os.nice(10)
    spin: dict[str, object] = {}
    text = "def synchronize():\n    while True:\n        pass\n"
    exec(compile(text, torch.cuda.__file__, "exec"), spin)  # noqa: S102 a frame as on a GPU
    spin["synchronize"]()  # type: ignore[operator]


PLACES = {
    place.__name__: place for place in (flock, filelock, shard, mount, requests, device, prefetch)
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(40)
    PLACES[sys.argv[1]](dist.get_rank())


main()
