"""A rank that serves torch's worker socket and is then stuck in one place: SOCKET sleep|gil."""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer


def load_batch(how: str) -> None:
    if how == "gil":
        libc = ctypes.PyDLL(None)  # unlike CDLL, keeps the GIL during calls
        sys.setswitchinterval(1000)  # and between them
        libc.write(1, b"standing\n", 9)
        libc.sleep(300)
    print("standing", flush=True)
    time.sleep(300)


def main() -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # the default of torch 2.10 is 0
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    server = _WorkerServer(sys.argv[1])
    for _ in range(50):
        dist.all_reduce(torch.ones(4))
    load_batch(sys.argv[2])
    server.shutdown()


main()
