"""A job of four ranks in rows and columns that trains and then hangs in one of many ways, on a
backend of `tests/hooks/backend.cpp` or on Gloo: FAULT BACKEND LIBRARY."""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("HOOKED_STEPS", "20"))
STEP_S = 0.05
NUMBERS = 64
TIMEOUT = timedelta(seconds=float(os.environ.get("HOOKED_TIMEOUT_S", "600")))
PAUSE_S = float(os.environ.get("HOOKED_PAUSE_S", "5"))
LATE_S = float(os.environ.get("HOOKED_LATE_S", "0.1"))
GUILTY = 2


def register(name: str, library: str) -> None:
    """``late`` pushes completion about once a second, ``issue`` never."""
    spec = importlib.util.spec_from_file_location("hooked_backend", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object:
        stores = [dist.PrefixStore(messages, store) for messages in ("small", "large")]
        gloo = [dist.ProcessGroupGloo(one, rank, size, timeout) for one in stores]
        return module.wrap(*gloo, name, timeout, name == "late")

    dist.Backend.register_backend(name, create, devices="cpu")


def group(ranks: list[int], described: str) -> dist.ProcessGroup | None:
    return dist.new_group(ranks, timeout=TIMEOUT, group_desc=described)


class Job:
    """Its groups, and what a rank does in a step."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        row = [group([at, at + 1], "row") for at in (0, 2)]
        column = [group([at, at + 2], "column") for at in (0, 1)]
        self.row, self.column = row[self.rank // 2], column[self.rank % 2]
        self.second = group([0, 1], "second")

    def step(self) -> None:
        rank, mine = self.rank, torch.ones(NUMBERS)
        work = dist.all_reduce(mine, group=self.row, async_op=True)
        dist.all_gather_into_tensor(torch.empty(2 * NUMBERS), mine, group=self.column)
        assert work is not None
        work.wait()
        dist.reduce_scatter_tensor(torch.empty(NUMBERS // 2), torch.ones(NUMBERS), group=self.row)
        peer = rank ^ 1
        if rank < peer:
            dist.send(mine, peer)
            dist.recv(mine, peer)
        else:
            dist.recv(mine, peer)
            dist.send(mine, peer)
        dist.broadcast(mine, src=0)
        dist.all_to_all_single(torch.empty(NUMBERS), torch.ones(NUMBERS))
        dist.all_reduce(mine)
        time.sleep(STEP_S)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()
        dist.barrier()


def say_that_it_hangs() -> None:
    print(f"hangs at {time.time_ns()}", flush=True)


def load_shard() -> None:
    """A data loader that never returns."""
    say_that_it_hangs()
    time.sleep(3600)


def absent(job: Job) -> None:
    """One rank does not come."""
    if job.rank == GUILTY:
        load_shard()


def crossed(job: Job) -> None:
    """Ranks 0 and 1 enter two groups in opposite order."""
    if job.rank in (0, 1):
        groups = [job.row, job.second]
        say_that_it_hangs()
        for group in groups if job.rank == 0 else groups[::-1]:
            dist.all_reduce(torch.ones(NUMBERS), group=group)


def size(job: Job) -> None:
    """One rank reduces a tensor of another size."""
    if job.rank == GUILTY:
        say_that_it_hangs()
    dist.all_reduce(torch.ones(NUMBERS * (4 if job.rank == GUILTY else 1)))


def killed(job: Job) -> None:
    """One rank is killed while others wait for it."""
    if job.rank == GUILTY:
        time.sleep(1.0)
        say_that_it_hangs()
        os.kill(os.getpid(), signal.SIGKILL)


def receive(job: Job) -> None:
    """Rank 1 waits for what rank 0 never sends."""
    if job.rank == 1:
        say_that_it_hangs()
        dist.recv(torch.empty(NUMBERS), 0)


def pipeline(job: Job) -> None:
    """Rank 1 waits for what rank 0, which does not come, never sends."""
    if job.rank == 0:
        load_shard()
    elif job.rank == 1:
        dist.recv(torch.empty(NUMBERS), 0)


def healthy(job: Job) -> None:
    """It goes on for ever; every forty steps all ranks pause."""
    while True:
        job.steps(40)
        time.sleep(PAUSE_S)


def stragglers(job: Job) -> None:
    """One rank is late in each step."""
    while True:
        time.sleep(LATE_S * (job.rank == GUILTY))
        job.step()


FAULTS: dict[str, Callable[[Job], None]] = {
    one.__name__: one
    for one in (absent, crossed, size, killed, receive, pipeline, healthy, stragglers)
}


def main() -> None:
    fault, backend, library = sys.argv[1:]
    torch.set_num_threads(1)
    if backend != "gloo":
        register(backend, library)
    dist.init_process_group(backend, timeout=TIMEOUT)
    job = Job()
    job.steps(STEPS)
    FAULTS[fault](job)
    job.steps(STEPS)


if __name__ == "__main__":
    main()
