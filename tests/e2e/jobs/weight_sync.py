"""Five processes, two jobs: ranks 0 and 1 of a launcher are the trainer, the others the rollout.

Rank 0 of the trainer sends its weights through a group that it shares with the three ranks of the
rollout. In step 20 rank 2 of the rollout does not come back from `generate`.
"""

import datetime
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

NUMBER = int(os.environ["RANK"])
ROLLOUT = 3
WEIGHTS = torch.ones(64)


def join(job: str, rank: int, world: int) -> None:
    variables = {"FRD_JOB": job, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in variables.items()})
    path = f"{tempfile.gettempdir()}/{job}"
    dist.init_process_group("gloo", store=dist.FileStore(path, world), rank=rank, world_size=world)


def shared_group(rank: int) -> dist.ProcessGroup:
    """With members of both jobs, which torch has no function for: as frameworks make it."""
    world = 1 + ROLLOUT
    store = dist.FileStore(f"{tempfile.gettempdir()}/weights", world)
    timeout = datetime.timedelta(minutes=30)
    made, _ = c10d._new_process_group_helper(
        world, rank, [], "gloo", store, group_name="weights", timeout=timeout
    )
    c10d._world.pg_group_ranks[made] = {member: member for member in range(world)}
    return made


def generate(rank: int, step: int) -> None:
    if rank == 2 and step == 20:
        time.sleep(3600)
    time.sleep(0.02)


def roll_out(rank: int) -> None:
    join("rollout", rank, ROLLOUT)
    group = shared_group(1 + rank)
    for step in range(1_000_000):
        generate(rank, step)
        dist.broadcast(WEIGHTS, group=group, group_src=0)


def train(rank: int) -> None:
    join("trainer", rank, 2)
    group = shared_group(0) if rank == 0 else None
    while True:
        dist.all_reduce(WEIGHTS)
        if group is not None:
            dist.broadcast(WEIGHTS, group=group, group_src=0)
        dist.barrier()


if NUMBER < 2:
    train(NUMBER)
else:
    roll_out(NUMBER - 2)
