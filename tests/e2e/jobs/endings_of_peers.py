"""Four ranks, of which some end because of another: PLACE.

skipped    rank 3 skips an all_reduce; Gloo aborts in a rank that then gets more than it expects
download   rank 2 fails to download a file: the server closes the connection
"""

import socket
import sys
import threading
import time
import urllib.request

import torch
import torch.distributed as dist

STEP = 15
"""Where it happens: agents have seen the job run by then."""


def skipped(rank: int, step: int) -> None:
    if rank != 3 or step != STEP:
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(64, 64))


def hang_up(server: socket.socket) -> None:
    server.accept()[0].close()


def download(rank: int, step: int) -> None:
    if rank == 2 and step == STEP:
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=hang_up, args=[server], daemon=True).start()
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/shard")
    dist.all_reduce(torch.ones(64))


def main() -> None:
    place = {"skipped": skipped, "download": download}[sys.argv[1]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if place is skipped:  # as a thread of a logger or a loader does, it keeps the process
        threading.Thread(target=time.sleep, args=(3600,)).start()
    for step in range(1_000_000):
        place(dist.get_rank(), step)
        time.sleep(0.05)


main()
