"""A job that trains for a moment and then hangs in one of many ways: FAULT RANK."""

import os
import sys

import torch
import torch.distributed as dist

from tests.gpu.jobs.job import (
    NUMBERS,
    every_kind,
    load_batch,
    rank,
    say_that_it_hangs,
    settle,
    start,
    steps,
    world,
)

STEPS = 10
LARGE = 16 << 20
"""Elements of a message that does not fit into NCCL's buffers."""
ENDLESS_CYCLES = 2_000_000_000_000


def cpu(guilty: int, device: torch.device) -> None:
    """One rank does not get its batch."""
    if rank == guilty:
        load_batch()
    steps(1, device)


def kernel(guilty: int, device: torch.device) -> None:
    """A kernel of one rank never ends, so its device never starts the all_reduce after it."""
    if rank == guilty:
        say_that_it_hangs()
        torch.cuda._sleep(ENDLESS_CYCLES)
    steps(1, device)


def mismatch(guilty: int, device: torch.device) -> None:
    """One rank reduces a tensor of another size."""
    if rank == guilty:
        say_that_it_hangs()
    dist.all_reduce(torch.ones(LARGE if rank == guilty else NUMBERS, device=device))
    settle(device)
    steps(1, device)


def order(guilty: int, device: torch.device) -> None:
    """Two ranks enter two groups in opposite order."""
    pair = [guilty, (guilty + 1) % world]
    first, second = dist.new_group(pair), dist.new_group(pair)
    if rank in pair:
        groups = [first, second]
        for group in groups:
            dist.all_reduce(torch.ones(8, device=device), group=group)
        settle(device)
        say_that_it_hangs()
        for group in groups if rank == guilty else reversed(groups):
            dist.all_reduce(torch.ones(LARGE, device=device), group=group)
            settle(device)
    steps(1, device)


def sends(guilty: int, device: torch.device, *, is_received: bool) -> None:
    """Every rank sends to the next in one batch, and receives from the one before."""
    tensor = torch.ones(LARGE, device=device)
    ops = [dist.P2POp(dist.isend, tensor, (rank + 1) % world)]
    if is_received or rank != guilty:
        ops.append(dist.P2POp(dist.irecv, torch.empty_like(tensor), (rank - 1) % world))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    settle(device)


def receive(guilty: int, device: torch.device) -> None:
    """One rank leaves out its receive and goes on to the next step."""
    sends(guilty, device, is_received=True)
    if rank == guilty:
        say_that_it_hangs()
    sends(guilty, device, is_received=False)
    steps(1, device)


def batch(guilty: int, device: torch.device) -> None:
    """One rank does not enter the batch of sends and receives."""
    sends(guilty, device, is_received=True)
    if rank == guilty:
        load_batch()
    sends(guilty, device, is_received=True)


def communicators(guilty: int, device: torch.device) -> None:
    """Ranks in rows and columns, as in tensor and data parallelism; one of them gets stuck."""
    half = world // 2
    rows = [list(range(half)), list(range(half, world))]
    columns = [[at, at + half] for at in range(half)]
    mine = [
        group
        for ranks in [*rows, *columns]
        if (group := dist.new_group(ranks, group_desc=f"of_{len(ranks)}")) and rank in ranks
    ]
    for step in range(10):
        for group in mine:
            if step == 8 and rank == guilty and group is mine[1]:
                load_batch()
            dist.all_reduce(torch.ones(NUMBERS, device=device), group=group)
        settle(device)


FAULTS = {
    fault.__name__: fault for fault in (cpu, kernel, mismatch, order, receive, batch, communicators)
}


def main() -> None:
    fault, guilty = sys.argv[1], int(sys.argv[2])
    device = start(float(os.environ.get("FRD_GPU_TIMEOUT_S", "600")))
    steps(STEPS, device)
    if device.type == "cuda":
        every_kind(device)
    FAULTS[fault](guilty, device)
    settle(device)


main()
