"""A gloo job that runs until it is killed: all_reduce after all_reduce, each rank at its own pace.

PAUSE seconds between two; rank LATE needs EXTRA seconds more, and joins no more while the file STOP
exists. Nothing here sleeps: under libfaketime, which the tests of clocks use, ``time.sleep`` of
Python 3.11 and later fails.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path


def rest(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = rest  # type: ignore[assignment]  # the tap of this process, too

import torch  # noqa: E402  # after that
import torch.distributed as dist  # noqa: E402


def main() -> None:
    pause, late, extra, stop = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    ones = torch.ones(16)
    while True:
        dist.all_reduce(ones)
        rest(pause)
        if rank == late:
            rest(extra)
            while Path(stop).exists():
                rest(0.1)


main()
