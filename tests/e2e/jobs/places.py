"""A rank that is stuck in one known place of torch or Python: SOCKET PLACE RANK STORE.

Rank 0 prints a line when it is about to stand there; a place that takes two is started twice.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch._C._distributed_c10d import _WorkerServer
from torch.utils.data import DataLoader

SOCKET, PLACE, RANK, STORE = sys.argv[1:]
PAIRS = ("barrier", "all_reduce", "wait", "new_group", "recv", "monitored_barrier")
WORLD = 2 if PLACE in PAIRS else 1
SERVERS: list[_WorkerServer] = []
"""Not ended with `main`."""


class SlowFile:
    """Standard output that takes nothing."""

    def write(self, data: bytes) -> int:
        time.sleep(300)
        return len(data)

    def flush(self) -> None: ...


class Shards:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 5:
            time.sleep(300)
        return index


class Leftover:
    def __del__(self) -> None:
        time.sleep(300)


def save() -> None:
    torch.save({"model": torch.ones(8)}, SlowFile())


def save_sharded() -> None:
    os.mkfifo(Path(STORE).parent / "__0_0.distcp")
    dcp.save({"model": torch.ones(8)}, checkpoint_id=Path(STORE).parent, no_dist=True)


def load() -> None:
    pipe = Path(STORE).parent / "model.pt"
    os.mkfifo(pipe)
    torch.load(pipe)


def loader() -> None:
    for _ in DataLoader(Shards(), num_workers=3):
        pass


def pinned() -> None:
    for _ in DataLoader(Shards(), num_workers=2, pin_memory=True):
        pass


def in_process() -> None:
    for _ in DataLoader(Shards()):
        pass


def evaluate() -> None:
    dist.barrier()


def step() -> None:
    dist.all_reduce(torch.ones(4))


def step_async() -> None:
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def exchange() -> None:
    dist.recv(torch.ones(4), 1)


def check() -> None:
    dist.monitored_barrier()


def prefetch() -> None:
    time.sleep(300)


def compile_slowly(module: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
    time.sleep(300)
    return module.forward


def train_compiled() -> None:
    torch.compile(lambda x: x + 1, backend=compile_slowly)(torch.ones(4))


def collect() -> None:
    one = Leftover()
    one.me = one  # type: ignore[attr-defined]
    del one
    gc.collect()


def backward() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: time.sleep(300))
    y.sum().backward()


def download() -> None:
    subprocess.run(["sleep", "300"], check=True)


def inspect() -> None:
    breakpoint()


def spin() -> None:
    while True:
        pass


PLACES = {
    "save": save,
    "save_sharded": save_sharded,
    "load": load,
    "loader": loader,
    "pinned": pinned,
    "in_process": in_process,
    "barrier": evaluate,
    "all_reduce": step,
    "wait": step_async,
    "new_group": lambda: dist.new_group([0, 1]),
    "recv": exchange,
    "monitored_barrier": check,
    "shutdown": lambda: threading.Thread(target=prefetch, name="prefetch").start(),
    "compile": train_compiled,
    "collect": collect,
    "backward": backward,
    "subprocess": download,
    "debugger": inspect,
    "spin": spin,
}


def main() -> None:
    store = dist.FileStore(STORE, WORLD)
    dist.init_process_group("gloo", store=store, rank=int(RANK), world_size=WORLD)
    SERVERS.append(_WorkerServer(SOCKET))
    if RANK == "1":
        time.sleep(300)
    print("standing", flush=True)
    PLACES[PLACE]()


main()
