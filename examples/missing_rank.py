"""A training job whose data loader gets stuck on one rank; the others wait in all_reduce."""

import argparse
import time

import torch
import torch.distributed as dist


def load_batch(step: int, stuck: bool) -> torch.Tensor:
    if stuck:
        time.sleep(3600)  # a network file system that does not answer
    return torch.randn(64, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=2, help="the rank that gets stuck")
    parser.add_argument("--step", type=int, default=60, help="the step at which it does")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weight = torch.zeros(64, 64)
    for step in range(args.step + 1):
        batch = load_batch(step, dist.get_rank() == args.rank and step == args.step)
        gradient = batch @ weight + batch
        dist.all_reduce(gradient)
        weight -= 1e-3 * gradient / dist.get_world_size()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
