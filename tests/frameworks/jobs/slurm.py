"""`slurm.py FOLDER RANK`: a rank that srun starts; it knows its number from Slurm's variables only.
RANK gets stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary torch script that knows nothing of frd.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.frameworks.jobs.train import train


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 10_000
    meet = f"tcp://{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    train(folder, stuck_rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
