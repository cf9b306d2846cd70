"""A rank that serves torch's worker socket and then stands in one place: SOCKET sleep|gil."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer


def load_batch(how: str) -> None:
    print("standing", flush=True)
    if how == "gil":
        ctypes.PyDLL(None).sleep(300)  # unlike CDLL, keeps the GIL during the call
    time.sleep(300)


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    server = _WorkerServer(sys.argv[1])
    for _ in range(50):
        dist.all_reduce(torch.ones(4))
    load_batch(sys.argv[2])
    server.shutdown()


main()
