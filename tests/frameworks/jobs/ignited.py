"""`ignited.py FOLDER RANK`: two ranks of Ignite's Parallel train a model. The engine of RANK gets
stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary Ignite script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import nn

from tests.frameworks.jobs.train import load_shard


def training(local_rank: int, folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    model = idist.auto_model(nn.Linear(8, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=1e-3))

    def step(engine: Any, batch: int) -> None:
        if engine.state.iteration == 40 and idist.get_rank() == stuck_rank:
            load_shard(folder)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)

    Engine(step).run(range(100_000), max_epochs=1)


def main(folder: Path, stuck_rank: int) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        parallel.run(training, folder, stuck_rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
