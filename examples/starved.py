"""A training job of which one rank starves: its DataLoader worker reads a file that never comes.

The shard is a FIFO into which no process writes, which is how a file on a hung network file system
looks to its reader.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS = 1_000


class Shards(Dataset):
    def __init__(self, folder: Path, stuck_at: int) -> None:
        self.shard = folder / "shard-00.tar"
        self.shard.write_bytes(bytes(4096))
        self.late = folder / "shard-17.tar"
        self.stuck_at = stuck_at
        os.mkfifo(self.late)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        return read_sample(self.late if step == self.stuck_at else self.shard)


def read_sample(path: Path) -> torch.Tensor:
    file = os.open(path, os.O_RDWR)  # a FIFO that is opened for both does not wait for a writer
    try:
        return torch.tensor(list(os.read(file, 64)), dtype=torch.float32)
    finally:
        os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, default=2, help="the rank that starves")
    parser.add_argument("--step", type=int, default=60, help="the step at which it does")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory(prefix="frd-shards-") as folder:
        shards = Shards(Path(folder), args.step if rank == args.rank else -1)
        weight = torch.zeros(64)
        for batch in DataLoader(shards, batch_size=None, num_workers=2):
            gradient = batch + weight
            dist.all_reduce(gradient)
            weight -= 1e-3 * gradient / dist.get_world_size()


if __name__ == "__main__":
    main()
