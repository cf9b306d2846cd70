"""A job in which nothing is wrong: KIND SECONDS [RANK]. With RANK, this rank gets stuck then."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from tests.gpu.jobs.job import NUMBERS, every_kind, load_batch, rank, settle, start, world


def graphs(device: torch.device) -> None:
    """A CUDA graph is captured, slowly, while a collective is in flight, and replayed."""
    if rank == 0:
        torch.cuda._sleep(400_000_000)
    work = dist.all_reduce(torch.ones(NUMBERS, device=device), async_op=True)
    tensor = torch.ones(NUMBERS, device=device)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(10):
            tensor = tensor * 2 - 1
            time.sleep(0.05)
    work.wait()
    graph.replay()
    settle(device)


class Sharded:
    """FSDP2: parameters are gathered layer by layer, gradients are scattered."""

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.fsdp import fully_shard

        layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)]
        self.model = nn.Sequential(*layers).to(device)
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.device = device

    def step(self) -> None:
        self.model(torch.rand(64, 512, device=self.device)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        settle(self.device)
        time.sleep(0.02)


class Pipelined:
    """A stage on each rank, with the schedule 1F1B."""

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        part = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).to(device)
        stage = PipelineStage(part, rank, world, device)
        self.schedule = Schedule1F1B(stage, 2 * world, loss_fn=nn.functional.mse_loss)
        self.device = device

    def step(self) -> None:
        batch = torch.rand(16 * world, 256, device=self.device)
        if rank == 0:
            self.schedule.step(batch)
        elif rank == world - 1:
            self.schedule.step(target=batch)
        else:
            self.schedule.step()
        settle(self.device)
        time.sleep(0.02)


class Replayed:
    """The whole step is one CUDA graph, its all_reduce included: no recorder shows a replay."""

    def __init__(self, device: torch.device) -> None:
        self.weight = torch.rand(256, 256, device=device)
        self.batch = torch.ones(256, 256, device=device)
        self.device = device
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        settle(device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.compute()

    def compute(self) -> None:
        gradient = self.batch @ self.weight
        dist.all_reduce(gradient)
        self.weight.sub_(gradient, alpha=1e-6)

    def step(self) -> None:
        self.graph.replay()
        settle(self.device)
        time.sleep(0.02)


MODELS: dict[str, type[Sharded] | type[Pipelined] | type[Replayed]] = {
    "sharded": Sharded,
    "pipelined": Pipelined,
    "replayed": Replayed,
}


def main() -> None:
    kind, seconds = sys.argv[1], float(sys.argv[2])
    device = start()
    if kind in MODELS:
        step = MODELS[kind](device).step
    else:
        step = {"mixed": lambda: every_kind(device), "graphs": lambda: graphs(device)}[kind]
    guilty = int(sys.argv[3]) if len(sys.argv) > 3 else None
    go_on = torch.ones(1, device=device)
    begun = time.monotonic()
    count = 0
    while go_on.item():
        if rank == guilty and time.monotonic() - begun > seconds:
            load_batch()
        step()
        count += 1
        if guilty is None and count % 5 == 0:
            go_on.fill_(float(rank != 0 or time.monotonic() - begun < seconds))
            dist.broadcast(go_on, 0)
    print(f"{count} steps", flush=True)
    dist.destroy_process_group()


main()
