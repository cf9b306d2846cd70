"""A gloo job whose rank 0 saves a checkpoint for as long as the file SAVING exists.

All other ranks wait for it in a barrier meanwhile; rank 0 makes the file STARTED when it begins.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def save(saving: Path, started: Path) -> None:
    while saving.exists():
        started.touch()
        time.sleep(0.02)


def main() -> None:
    saving, started = map(Path, sys.argv[1:])
    dist.init_process_group("gloo")
    ones = torch.ones(16)
    while True:
        for _ in range(5):
            dist.all_reduce(ones)
            time.sleep(0.02)
        if dist.get_rank() == 0:
            save(saving, started)
        dist.barrier()


main()
