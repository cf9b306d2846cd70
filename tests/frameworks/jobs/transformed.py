"""`transformed.py FOLDER RANK`: trains with the Trainer of Transformers. The data set of RANK gets
stuck in `load_shard` at its 40th sample and leaves the file FOLDER/stuck.

An ordinary script that knows nothing of frd.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments

from tests.frameworks.jobs.train import load_shard


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]  # installed elsewhere
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


class Model(torch.nn.Module):  # type: ignore[misc]  # installed elsewhere
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def main(folder: Path, stuck_rank: int) -> None:
    torch.set_num_threads(1)
    options = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        max_steps=100_000,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
    )
    Trainer(Model(), options, train_dataset=Samples(folder, stuck_rank)).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
