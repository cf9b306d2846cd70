"""`accelerated.py FOLDER RANK`: trains a model with Accelerate. The loader of RANK gets stuck in
`load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary Accelerate script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from tests.frameworks.jobs.train import load_shard


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    for step in range(100_000):
        if step == 40 and accelerator.process_index == stuck_rank:
            load_shard(folder)
        loss = model(torch.ones(4, 8)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
