"""A training job in which one rank may have only so much memory, and asks for more."""

import argparse
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist

BATCH_BYTES = 8 << 20


def allow(more_bytes: int) -> None:
    """What `ulimit -d` does in a launcher, counted from what the process has now."""
    status = Path("/proc/self/status").read_text()
    (data_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(data_kib) * 1024 + more_bytes, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=2, help="the rank that runs out of memory")
    parser.add_argument("--step", type=int, default=300, help="the step from which on it grows")
    parser.add_argument("--limit", type=int, default=320, help="MiB that it may have on top")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weight = torch.zeros(64, 64)
    activations = []
    step = 0
    while True:
        if dist.get_rank() == args.rank and step >= args.step:
            if step == args.step:
                allow(args.limit << 20)
            activations.append(torch.ones(BATCH_BYTES, dtype=torch.uint8))
        gradient = torch.randn(64, 64) + weight
        dist.all_reduce(gradient)
        weight -= 1e-3 * gradient / dist.get_world_size()
        step += 1
        time.sleep(0.02)


if __name__ == "__main__":
    main()
