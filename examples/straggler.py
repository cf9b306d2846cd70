"""One rank comes late to every step: nothing hangs, but all others wait for it again and again."""

import argparse
import time

import torch
import torch.distributed as dist


def load_batch(seconds: float) -> None:
    time.sleep(seconds)  # an overloaded host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=2, help="the rank that is late")
    parser.add_argument("--seconds", type=float, default=0.06, help="how late it is")
    parser.add_argument("--every", type=int, default=1, help="in one step of so many")
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for step in range(args.steps):
        time.sleep(0.02)
        if dist.get_rank() == args.rank and step % args.every == 0:
            load_batch(args.seconds)
        dist.all_reduce(torch.ones(1024))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
