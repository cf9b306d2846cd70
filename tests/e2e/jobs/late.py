"""Two ranks are late, one rarely by much, one always by little; all ranks record when they join."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where each rank writes its arrivals, in ns")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    arrivals: list[int] = []
    start, go_on = time.monotonic(), torch.ones(1)
    while go_on.item():
        step = len(arrivals)
        time.sleep(0.01 + 0.2 * (rank == 1 and step % 10 == 0) + 0.02 * (rank == 3))
        go_on.fill_(time.monotonic() - start < args.seconds)
        arrivals.append(time.time_ns())
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
    (args.folder / f"{rank}.txt").write_text("\n".join(map(str, arrivals)))
    time.sleep(3600)  # its end would end the finding, too


if __name__ == "__main__":
    main()
