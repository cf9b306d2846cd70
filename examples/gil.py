"""One rank calls into C code that never returns and never lets go of Python's interpreter lock."""

import argparse
import ctypes
import time

import torch
import torch.distributed as dist


def tokenize(stuck: bool) -> None:
    if stuck:
        ctypes.PyDLL(None).sleep(3600)  # an extension module that forgot to release the lock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=2, help="the rank that gets stuck")
    parser.add_argument("--step", type=int, default=60, help="the step at which it does")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for step in range(args.step + 1):
        tokenize(dist.get_rank() == args.rank and step == args.step)
        dist.all_reduce(torch.ones(1024))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
