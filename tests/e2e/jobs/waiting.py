"""Three ranks, of which rank 2 waits for ever before a collective: CALL OBJECT.

fsync   of a file, as a checkpoint on a file server that does not answer
socket  for an answer of the host and port, as a request to a server that does not answer
"""

import os
import socket
import sys

import torch
import torch.distributed as dist


def save_checkpoint(path: str) -> None:
    os.fsync(os.open(path, os.O_RDWR))


def report(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.recv(1)


CALLS = {"fsync": save_checkpoint, "socket": report}


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 2:
        CALLS[sys.argv[1]](sys.argv[2])
    dist.all_reduce(torch.ones(4))


main()
