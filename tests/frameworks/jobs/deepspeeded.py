"""`deepspeeded.py --folder FOLDER --rank RANK`: trains a model with DeepSpeed's engine. RANK gets
stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary DeepSpeed script that knows nothing of frd.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from tests.frameworks.jobs.train import load_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--local_rank", type=int)  # what the launcher adds
    args = parser.parse_args()

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(8, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": 4},
    )
    for step in range(100_000):
        if step == 40 and dist.get_rank() == args.rank:
            load_shard(args.folder)
        engine.backward(engine(torch.ones(4, 8)).square().mean())
        engine.step()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
