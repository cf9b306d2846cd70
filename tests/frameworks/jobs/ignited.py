"""`ignited.py FOLDER RANK`: two ranks that Ignite spawns, with its engine. RANK gets stuck in
`load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary Ignite script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Engine

from tests.frameworks.jobs.train import load_shard


def train(local_rank: int, folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    model = idist.auto_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(engine: Engine, batch: torch.Tensor) -> float:
        if engine.state.iteration == 40 and idist.get_rank() == stuck_rank:
            load_shard(folder)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        return float(loss)

    Engine(step).run([torch.ones(4, 8)] * 100_000, max_epochs=1)


def main(folder: Path, stuck_rank: int) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        parallel.run(train, folder, stuck_rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
