"""Ranks of which some wait in calls of torch.distributed that leave no entry: PLACE.

Of three ranks:
circle     0 and 2 make a group of all ranks; 1 is in an all_reduce
batches    a pipeline whose last stage, 2, goes on with 3 micro-batches where the others have 4

Of four ranks:
pipeline   2 computes for ever, 3 receives from it, the others are in an all_reduce
posted     the same, but 3 has posted the receive, and is in `work.wait()`
chain      sends and receives alone, from 0 to 3; 2 computes for ever
barrier    2 does not come to a monitored_barrier
new_group  2 does not make the group that the others make
root       a broadcast to which rank 2 passes another source
"""

import sys
import time

import torch
import torch.distributed as dist

ONE = torch.ones(4)


def compute() -> None:
    while True:
        pass


def circle(rank: int) -> None:
    if rank == 1:
        dist.all_reduce(ONE)
    dist.new_group([0, 1, 2])


def batches(rank: int) -> None:
    for step in range(1_000_000):
        for _ in range(3 if rank == 2 and step >= 20 else 4):
            run_stage(rank)
        dist.all_reduce(ONE)


def run_stage(rank: int) -> None:
    if rank > 0:
        dist.recv(ONE, rank - 1)
    if rank < 2:
        dist.send(ONE, rank + 1)
        dist.recv(ONE, rank + 1)
    if rank > 0:
        dist.send(ONE, rank - 1)


def pipeline(rank: int) -> None:
    if rank == 2:
        compute()
    if rank == 3:
        dist.recv(ONE, 2)
    dist.all_reduce(ONE)


def posted(rank: int) -> None:
    if rank == 2:
        compute()
    if rank == 3:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, ONE, 2)]):
            work.wait()
    dist.all_reduce(ONE)


def chain(rank: int) -> None:
    for step in range(1_000_000):
        if rank > 0:
            dist.recv(ONE, rank - 1)
        if rank == 2 and step == 3:
            compute()
        if rank < 3:
            dist.send(ONE, rank + 1)
        answer(rank)


def answer(rank: int) -> None:
    """The way back: no rank is more than a step ahead."""
    if rank < 3:
        dist.recv(ONE, rank + 1)
    if rank > 0:
        dist.send(ONE, rank - 1)


def barrier(rank: int) -> None:
    if rank == 2:
        compute()
    dist.monitored_barrier()


def new_group(rank: int) -> None:
    if rank == 2:
        compute()
    dist.new_group([0, 1, 2, 3])


def root(rank: int) -> None:
    if rank == 2:
        dist.broadcast(torch.ones(1 << 20), 3)
    dist.broadcast(torch.ones(1 << 20), 1)


PLACES = {
    place.__name__: place
    for place in (circle, batches, pipeline, posted, chain, barrier, new_group, root)
}


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    PLACES[sys.argv[1]](dist.get_rank())
    time.sleep(600)


main()
