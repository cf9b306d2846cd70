"""absent.py FILE: some collectives, then rank 1 stays away until FILE exists, and raises an
exception. It runs on any release of torch, also without frd.
"""

from __future__ import annotations

import pathlib
import sys
import time

import torch
from torch import distributed as dist

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(10))
while dist.get_rank() == 1:
    if pathlib.Path(sys.argv[1]).exists():
        raise LookupError("no such shard")
    time.sleep(0.1)
dist.all_reduce(torch.ones(10))
