"""`elastic.py FOLDER RANK`: a job that torchrun starts again when its world changes. Once the file
FOLDER/go is there, RANK gets stuck in `load_shard` and leaves the file FOLDER/stuck. If the file
FOLDER/fail is there, rank 0 removes it and fails, while the others are outside of collectives.

An ordinary torch script that knows nothing of frd.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.frameworks.jobs.train import load_shard


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for _ in range(100_000):
        if dist.get_rank() == stuck_rank and (folder / "go").exists():
            load_shard(folder)
        fails = torch.tensor([float((folder / "fail").exists())])
        dist.all_reduce(fails, op=dist.ReduceOp.MIN)
        if fails.item() and dist.get_rank() == 0:
            (folder / "fail").unlink()
            os._exit(3)
        elif fails.item():
            time.sleep(3600)  # what a rank on a GPU does, which sees no connection close
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
