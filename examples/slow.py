"""One rank is late once, by several seconds, but it comes; the job goes on."""

import argparse
import time

import torch
import torch.distributed as dist


def save_checkpoint(seconds: float) -> None:
    time.sleep(seconds)  # a slow disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=1, help="the rank that is late")
    parser.add_argument("--step", type=int, default=60, help="the step at which it is")
    parser.add_argument("--seconds", type=float, default=8.0, help="how late it is")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for step in range(args.steps):
        if dist.get_rank() == args.rank and step == args.step:
            save_checkpoint(args.seconds)
        dist.all_reduce(torch.ones(1024))
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
