"""Twelve ranks of one job, each of which ends in a different way on request.

Forked from one process, so that torch is loaded once; `main` waits for them as a launcher does and
prints the wait status of each. A rank ends when its file appears in the folder that is the first
argument.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from frd_agent import tap

LINUX = tuple(int(part) for part in os.uname().release.split(".")[:2])
COLLECTS_AFTER_S = 0.0 if LINUX >= (6, 15) else 0.1
"""Older kernels do not report the status of a process that its parent has collected; torchrun looks
for ends ten times a second."""


def by_itself() -> None: ...


def exit_1() -> NoReturn:
    sys.exit(1)


def exit_0() -> NoReturn:
    sys.exit(0)


def load_batch(text: str) -> NoReturn:
    json.loads(text)
    raise AssertionError


def bad_batch() -> NoReturn:
    load_batch("{bad batch}")


def hard_exit() -> NoReturn:
    os._exit(3)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def handles_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def aborted() -> NoReturn:
    os.abort()


def survives_an_error() -> None:
    """As an interactive interpreter does: the error is printed, the program goes on."""
    sys.last_type, sys.last_value = RuntimeError, RuntimeError("survived")


class Samples:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> NoReturn:
        raise ValueError(f"bad sample {index}")


def bad_sample() -> None:
    next(iter(DataLoader(Samples(), num_workers=1)))


WAYS: tuple[Callable[[], None], ...] = (
    by_itself, exit_1, exit_0, bad_batch, hard_exit, terminated, handles_sigterm, interrupted,
    killed, aborted, survives_an_error, bad_sample,
)  # fmt: skip


def rank(number: int, port: int, folder: Path) -> None:
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(len(WAYS)), "LOCAL_RANK": str(number)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    tap.install()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    while not (folder / str(number)).exists():
        time.sleep(0.005)
    # torch alone now and then aborts at the end of an interpreter that still has groups.
    dist.destroy_process_group()
    WAYS[number]()


def main(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers: dict[int, int] = {}
    for number in range(len(WAYS)):
        if (pid := os.fork()) == 0:
            rank(number, port, folder)
            return
        numbers[pid] = number
    for _ in WAYS:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        time.sleep(COLLECTS_AFTER_S)
        pid, status = os.wait()
        print(numbers[pid], status, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
