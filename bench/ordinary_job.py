"""A healthy training job as people write them, for `bench/soak.py --quiet`.

Every rank loads a batch in uneven time and reduces its gradients. Rank 0 alone saves a checkpoint
now and then, onto storage that takes `--checkpoint-s` for it, or evaluates for `--evaluate-s`,
while its peers wait in a barrier. On a signal the job ends as scripts do: SIGINT raises
KeyboardInterrupt, SIGTERM has the default action.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):  # type: ignore[misc]  # torch is untyped here
    """Random rows, each ready after a random time."""

    def __init__(self, uneven_s: float) -> None:
        self._uneven_s = uneven_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(random.Random(at).expovariate(1 / self._uneven_s) if self._uneven_s else 0.0)
        return torch.ones(64)


class SlowStorage(io.BytesIO):
    """Takes `seconds` for all that is written to it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._pause_s = seconds / 20
        self._pauses = 20

    def write(self, data: object) -> int:
        if self._pauses:
            self._pauses -= 1
            time.sleep(self._pause_s)
        return super().write(data)  # type: ignore[arg-type]


def save_checkpoint(model: torch.nn.Module, seconds: float, folder: Path) -> None:
    began = time.monotonic()
    storage = SlowStorage(seconds)
    torch.save(model.state_dict(), storage)
    left_s = seconds - (time.monotonic() - began)
    if left_s > 0:
        storage._pauses, storage._pause_s = 1, left_s
        torch.save(model.state_dict(), storage)
    (folder / "checkpoint.pt").write_bytes(storage.getvalue())


def evaluate(model: torch.nn.Module, seconds: float) -> None:
    began = time.monotonic()
    with torch.no_grad():
        while time.monotonic() - began < seconds:
            model(torch.ones(8, 64))
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint-s", type=float, default=0.0)
    parser.add_argument("--checkpoint-every-s", type=float, default=60.0)
    parser.add_argument("--evaluate-s", type=float, default=0.0)
    parser.add_argument("--evaluate-every-s", type=float, default=60.0)
    parser.add_argument("--uneven-s", type=float, default=0.0, help="mean time to load a sample")
    parser.add_argument("--seconds", type=float, default=1e9, help="then it ends by itself")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    loader = DataLoader(Samples(options.uneven_s), batch_size=1, num_workers=1)
    began = time.monotonic()
    due = {"checkpoint": options.checkpoint_every_s / 2, "evaluate": options.evaluate_every_s / 2}
    with tempfile.TemporaryDirectory() as folder:
        for batch in loader:
            model(batch).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            model.zero_grad()
            time.sleep(0.05)
            passed = time.monotonic() - began
            doing = [int(options.checkpoint_s > 0 and passed > due["checkpoint"])]
            doing += [int(options.evaluate_s > 0 and passed > due["evaluate"])]
            doing += [int(passed > options.seconds)]
            what = torch.tensor(doing)
            dist.broadcast(what, src=0)
            save, judge, end = what.tolist()
            if save:
                due["checkpoint"] = passed + options.checkpoint_every_s
                if rank == 0:
                    save_checkpoint(model, options.checkpoint_s, Path(folder))
                dist.barrier()
            if judge:
                due["evaluate"] = passed + options.evaluate_every_s
                if rank == 0:
                    evaluate(model, options.evaluate_s)
                dist.barrier()
            if end:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    os.nice(5)  # three of them and all of frd share the machine
    main()
