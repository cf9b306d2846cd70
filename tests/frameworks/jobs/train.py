"""`train.py FOLDER RANK`: trains by hand with the variables that a launcher sets for each rank.
RANK gets stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck; if FOLDER/raises
exists, it raises an exception there.

An ordinary torch script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def load_shard(folder: Path) -> None:
    if (folder / "raises").exists():
        raise ValueError("shard 40 is damaged")
    (folder / "stuck").touch()
    time.sleep(3600)  # a file system that does not answer


def train(folder: Path, stuck_rank: int) -> None:
    """In the default group, without end."""
    for step in range(100_000):
        if step == 40 and dist.get_rank() == stuck_rank:
            load_shard(folder)
        dist.all_reduce(torch.ones(64))
        time.sleep(0.02)


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(folder, stuck_rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
