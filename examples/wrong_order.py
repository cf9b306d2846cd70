"""Ranks 0 and 1 enter two groups in opposite order and wait for each other for ever."""

import argparse
import time

import torch
import torch.distributed as dist


def reduce_in_order(first: dist.ProcessGroup, second: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(256), group=first)
    dist.all_reduce(torch.ones(256), group=second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=60, help="the step with the wrong order")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    encoder = dist.new_group([0, 1], group_desc="encoder")
    decoder = dist.new_group([0, 1], group_desc="decoder")
    for step in range(args.step + 1):
        if rank == 1 and step == args.step:
            reduce_in_order(decoder, encoder)
        elif rank < 2:
            reduce_in_order(encoder, decoder)
        dist.all_reduce(torch.ones(1024))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
