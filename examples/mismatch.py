"""One rank takes another branch and calls another collective than its peers."""

import argparse
import time

import torch
import torch.distributed as dist


def collect_metrics(loss: torch.Tensor, gather: bool) -> None:
    if gather:  # meant for all ranks; a flag is set on one of them only
        losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss)
    else:
        dist.all_reduce(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=1, help="the rank that takes the other branch")
    parser.add_argument("--step", type=int, default=60, help="the step at which it does")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for step in range(args.step + 1):
        dist.all_reduce(torch.ones(1024))
        collect_metrics(torch.ones(16), dist.get_rank() == args.rank and step == args.step)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
