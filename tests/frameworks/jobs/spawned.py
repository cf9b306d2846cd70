"""`spawned.py FOLDER RANK METHOD`: starts three ranks with torch.multiprocessing by METHOD: spawn,
fork or forkserver. RANK gets stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary torch script that knows nothing of frd.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.frameworks.jobs.train import train

RANKS = 3


def start(rank: int, port: int, folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    meet = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=RANKS)
    train(folder, stuck_rank)


def main(folder: Path, stuck_rank: int, method: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(start, (port, folder, stuck_rank), nprocs=RANKS, start_method=method)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
