"""A job in which the device memory of one rank rises: FAULT RANK."""

import sys
import time

import torch

from tests.gpu.jobs.job import rank, say_that_it_hangs, start, steps

MIB = 1 << 20
SHARE = 0.03
"""Of the device that a rank may use."""


def leak(device: torch.device) -> list[torch.Tensor]:
    """Keeps 64 MiB at a time, a tenth of the device in all."""
    total_mib = torch.cuda.get_device_properties(device).total_memory // MIB
    say_that_it_hangs()
    return [kept(64, 0.03, device) for _ in range(total_mib // 640)]


def kept(mib: int, every_s: float, device: torch.device) -> torch.Tensor:
    time.sleep(every_s)
    return torch.ones(mib * MIB, dtype=torch.uint8, device=device)


def take(device: torch.device) -> list[torch.Tensor]:
    """Keeps 30 GiB within seconds, which threatens no large device."""
    say_that_it_hangs()
    return [kept(256, 0.05, device) for _ in range(120)]


def oom(device: torch.device) -> list[torch.Tensor]:
    """Asks for more than it may have, and dies of it while the others wait."""
    torch.cuda.set_per_process_memory_fraction(SHARE, device)
    say_that_it_hangs()
    return [kept(128, 0.05, device) for _ in range(10_000)]


def fragments(device: torch.device) -> list[torch.Tensor]:
    """Frees every second block of a memory that is full, and then needs a large block. Four blocks
    of 5 MiB share a segment, so no segment becomes free."""
    torch.cuda.set_per_process_memory_fraction(SHARE, device)
    allowed_mib = int(SHARE * torch.cuda.get_device_properties(device).total_memory) // MIB
    say_that_it_hangs()
    blocks = [kept(5, 0.01, device) for _ in range((allowed_mib - 200) // 5)]
    alternate = blocks[::2]
    del blocks
    return [*alternate, kept(allowed_mib // 3, 0.5, device)]


def main() -> None:
    fault, guilty = sys.argv[1], int(sys.argv[2])
    device = start()
    steps(300, device)
    held = []
    if rank == guilty:
        held = {"leak": leak, "take": take, "oom": oom, "fragments": fragments}[fault](device)
    while True:
        steps(1, device)
        assert rank != guilty or held


main()
