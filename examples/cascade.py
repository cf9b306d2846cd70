"""Two layers of groups: the last rank stops, and most ranks wait in groups it is no member of.

The last but one rank is the bridge: it exchanges with the last rank first, and then with each half
of the others. When the last rank stops coming, the bridge waits for it, and everyone else waits for
the bridge.
"""

import argparse
import time

import torch
import torch.distributed as dist


def validate_shard(stuck: bool) -> None:
    if stuck:
        time.sleep(3600)  # reads a file that another process holds locked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--step", type=int, default=60, help="the step at which the last rank stops"
    )
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    bridge, last = world - 2, world - 1
    half = (world - 2) // 2
    halves = [
        dist.new_group([*range(half), bridge], group_desc="first_half"),
        dist.new_group([*range(half, world - 2), bridge], group_desc="second_half"),
    ]
    tail = dist.new_group([bridge, last], group_desc="tail")
    for step in range(args.step + 1):
        if rank == last:
            validate_shard(step == args.step)
        if rank >= bridge:
            dist.all_reduce(torch.ones(128), group=tail)
        if rank < half or rank == bridge:
            dist.all_reduce(torch.ones(1024), group=halves[0])
        if rank != last and rank >= half:
            dist.all_reduce(torch.ones(1024), group=halves[1])
        time.sleep(0.02)


if __name__ == "__main__":
    main()
