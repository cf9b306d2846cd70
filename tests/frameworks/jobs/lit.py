"""`lit.py FOLDER RANK STRATEGY`: two ranks of Lightning's Trainer; STRATEGY is ddp, ddp_spawn or
ddp_fork. The data set of RANK gets stuck in `load_shard` at step 40 and leaves the file
FOLDER/stuck.

An ordinary Lightning script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.frameworks.jobs.train import load_shard


class Shards:
    def __init__(self, folder: Path, stuck_rank: int) -> None:
        self.folder, self.stuck_rank = folder, stuck_rank
        self.reads = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        self.reads += 1
        if self.reads == 40 and dist.get_rank() == self.stuck_rank:
            load_shard(self.folder)
        return torch.ones(8)


class Model(lightning.LightningModule):  # type: ignore[misc]  # installed elsewhere
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main(folder: Path, stuck_rank: int, strategy: str) -> None:
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(Shards(folder, stuck_rank)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
