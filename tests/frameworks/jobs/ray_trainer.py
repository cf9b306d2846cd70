"""`ray_trainer.py FOLDER RANK [ADDRESS [RUN_DIR]]`: three workers of Ray Train, in the Ray that it
starts or in the one at ADDRESS, and with frd's run directory if it is given. RANK gets stuck in
`load_shard` at step 40 and leaves the file FOLDER/stuck; if FOLDER/raises exists, it raises an
exception there.

An ordinary Ray script: frd is in no line but that of the run directory.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer


def load_shard(folder: Path) -> None:
    if (folder / "raises").exists():
        raise ValueError("shard 40 is damaged")
    (folder / "stuck").touch()
    time.sleep(3600)  # a file system that does not answer


def train(config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    for step in range(100_000):
        if step == 40 and ray.train.get_context().get_world_rank() == config["stuck_rank"]:
            load_shard(Path(config["folder"]))
        dist.all_reduce(torch.ones(64))
        time.sleep(0.02)


def main(folder: str, stuck_rank: int, address: str = "", run_dir: str = "") -> None:
    variables = {"env_vars": {"FRD_RUN_DIR": run_dir}} if run_dir else None
    if address:
        ray.init(address=address, runtime_env=variables)
    else:
        ray.init(num_cpus=4, include_dashboard=False, runtime_env=variables)
    TorchTrainer(
        train,
        train_loop_config={"folder": folder, "stuck_rank": stuck_rank},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=3),
        run_config=ray.train.RunConfig(storage_path=folder),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
