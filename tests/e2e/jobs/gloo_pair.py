"""One of two ranks that uses two groups, then writes both forms of its dump: RANK FOLDER."""

import importlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

RECORDER = importlib.import_module("torch._C._distributed_c10d")  # not in torch's stubs


def main(rank: int, folder: Path) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # the default of torch 2.10 is 0
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    pair = dist.new_group([0, 1], group_desc="pair")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(2, 3), 0, group=pair)
    dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)
    (folder / f"{rank}.json").write_bytes(RECORDER._dump_fr_trace_json(True, False))
    (folder / f"{rank}.pickle").write_bytes(RECORDER._dump_fr_trace(True, True, False))
    dist.destroy_process_group()


main(int(sys.argv[1]), Path(sys.argv[2]))
