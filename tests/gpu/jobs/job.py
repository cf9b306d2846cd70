"""What the jobs of these tests share: how a rank starts, and how it reports when it hangs."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BACKEND = os.environ.get("FRD_GPU_BACKEND", "nccl")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NUMBERS = 4096
"""Elements of the tensors that ordinary steps reduce."""


def start(timeout_s: float = 600.0) -> torch.device:
    """The default group; the device of this rank. Ranks share a GPU if there are too few."""
    if BACKEND == "gloo":
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=timeout_s))
    return device


def settle(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps(count: int, device: torch.device) -> None:
    """Small training steps: some work on the device, then its gradient is averaged."""
    weight = torch.rand(256, 256, device=device)
    for _ in range(count):
        gradient = (weight @ weight).flatten()[:NUMBERS].contiguous()
        dist.all_reduce(gradient)
        settle(device)
        time.sleep(0.02)


def every_kind(device: torch.device) -> None:
    """Batches of sends, coalesced and uneven collectives, an object, a broadcast, a barrier."""
    tensor = torch.ones(NUMBERS, device=device)
    ops = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % world),
        dist.P2POp(dist.irecv, torch.empty_like(tensor), (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(torch.empty_like(tensor), 0)
    if device.type == "cuda":  # gloo has none of these
        uneven = [torch.empty(8 + at, device=device) for at in range(world)]
        dist.all_gather(uneven, torch.ones(8 + rank, device=device))
        with dist._coalescing_manager(device=device, async_ops=True) as coalesced:
            for _ in range(3):
                dist.all_reduce(tensor)
        coalesced.wait()
        part = torch.empty(NUMBERS // world, device=device)
        dist.reduce_scatter_tensor(part, tensor[: world * len(part)])
    dist.broadcast(tensor, world - 1)
    dist.barrier()
    dist.broadcast_object_list([rank], 0)
    steps(2, device)


def say_that_it_hangs() -> None:
    """The tests read from the output when the fault began."""
    print(f"hangs at {time.time_ns()}", flush=True)


def load_batch() -> None:
    """A data loader that never returns."""
    say_that_it_hangs()
    time.sleep(3600)
