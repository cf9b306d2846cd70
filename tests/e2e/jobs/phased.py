"""A gloo job of two ranks that names its phases: rank 1 stays in the eval of its second epoch.

The phases of its steps are too short to be published.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from frd_agent import phase


@phase("eval")
def evaluate(epoch: int) -> None:
    time.sleep(600 if epoch == 2 and dist.get_rank() == 1 else 0.5)


def main() -> None:
    dist.init_process_group("gloo")
    ones = torch.ones(16)
    for epoch in (1, 2, 3):
        with phase(f"epoch {epoch}"):
            for _ in range(50):
                with phase("step"):
                    dist.all_reduce(ones)
                time.sleep(0.02)
            evaluate(epoch)


main()
