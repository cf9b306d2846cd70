"""A healthy job with subgroups, uneven steps, a long pause of all ranks, and memory that grows for
a while, on one rank twice as much, and then stays: SECONDS."""

import random
import sys
import time

import torch
import torch.distributed as dist


def main(seconds: float) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1], group_desc="pair") for r in range(0, world - 1, 2)]
    evens = dist.new_group(list(range(0, world, 2)), group_desc="evens")
    uneven = random.Random(rank)
    start = time.monotonic()
    go_on, paused = torch.ones(1), False
    cache: list[torch.Tensor] = []
    while go_on.item():
        if len(cache) < (40 if rank == 1 else 20):
            cache.append(torch.ones(4 << 20, dtype=torch.uint8))
        for _ in range(20):
            time.sleep(uneven.uniform(0.0, 0.03))
            dist.all_reduce(torch.ones(256), group=pairs[rank // 2])
            if rank % 2 == 0:
                dist.all_reduce(torch.ones(64), group=evens)
        passed = time.monotonic() - start
        go_on[0] = passed < seconds
        pause_now = torch.tensor([float(not paused and passed > seconds / 3)])
        dist.broadcast(go_on, src=0)
        dist.broadcast(pause_now, src=0)
        if pause_now.item():  # every rank writes its shard of a checkpoint
            time.sleep(20.0)
            paused = True
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]))
