"""`hf_trainer.py FOLDER RANK`: trains a model with the Trainer of transformers. The data set
of RANK gets stuck in `load_shard` at step 40 and leaves the file FOLDER/stuck.

An ordinary script for torchrun that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainingArguments

from tests.frameworks.jobs.train import load_shard


class Shards:
    def __init__(self, folder: Path, stuck_rank: int) -> None:
        self.folder, self.stuck_rank = folder, stuck_rank
        self.reads = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.02)
        self.reads += 1
        if self.reads == 40 and dist.get_rank() == self.stuck_rank:
            load_shard(self.folder)
        return {"x": torch.ones(8)}


class Model(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        per_device_train_batch_size=1,
        max_steps=100_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=Model(), args=arguments, train_dataset=Shards(folder, stuck_rank)).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
