"""A training job in which one rank keeps a copy of every batch that it has trained on."""

import argparse
import time

import torch
import torch.distributed as dist

BATCH_BYTES = 4 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=2, help="the rank that keeps its batches")
    parser.add_argument("--step", type=int, default=300, help="the step from which on it does")
    parser.add_argument("--keep", type=int, default=320, help="MiB after which it stops to")
    parser.add_argument("--mark", type=int, default=64, help="say when it has kept so many MiB")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    weight = torch.zeros(64, 64)
    batch = torch.ones(BATCH_BYTES, dtype=torch.uint8)
    kept = []
    step = 0
    while True:
        kept_mib = len(kept) * BATCH_BYTES >> 20
        if dist.get_rank() == args.rank and step >= args.step and kept_mib < args.keep:
            kept.append(batch.clone())
            if kept_mib < args.mark <= len(kept) * BATCH_BYTES >> 20:
                print(f"{args.mark} MiB kept at {time.time_ns()}", flush=True)
        gradient = batch[:4096].view(64, 64) * 1e-3 + weight
        dist.all_reduce(gradient)
        weight -= 1e-3 * gradient / dist.get_world_size()
        step += 1
        time.sleep(0.02)


if __name__ == "__main__":
    main()
