"""A run directory by hand: the identity that a tap publishes, and what an agent's ranks share."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from frd_agent import tap
from frd_agent.counters import Counters
from frd_agent.memory.samples import Samples
from frd_agent.node_time import NodeTime
from frd_agent.proc import read_stat
from frd_agent.ranks.poll_schedule import PollPolicy
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import RankContext
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.tap_files import TapIdentity
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.outbox import Outbox
from frd_agent.uplink.reports import Reports

TOKEN = "0123456789ab"


NOBODY = 2**22 + 1
"""More than the number of any process."""


def identity(**changes: Any) -> dict[str, Any]:
    """Of a process of this machine, if `pid` is one."""
    stat = read_stat(changes.get("pid", NOBODY))
    return {
        "schema": 1,
        "token": TOKEN,
        "job": "j",
        "attempt": 2,
        "rank": 1,
        "local_rank": 1,
        "world_size": 4,
        "pid": NOBODY,
        "start_ticks": stat.start_ticks if stat is not None else 1,
        "pid_namespace": tap.pid_namespace(),
        "host": "n1",
        "boot_id": "b",
        "torch_version": "2.13.0",
        "backends": ["gloo"],
        "devices": ["GPU-x"],
        "started_at_ns": 5,
        "socket": f"{TOKEN}.sock",
        "shm": f"{TOKEN}.shm",
        "groups": [{"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3], "backend": "gloo"}],
        "exit": None,
    } | changes


@contextmanager
def volume(folder: Path, mode: int) -> Iterator[None]:
    """A separate mount at `folder`, as an emptyDir is one in a pod. Needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode={mode:o}", "frd", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def forked(do: Callable[[], Any]) -> Any:
    """The JSON value that `do` gives in a forked process, which may become another user. This
    process stays root, because other threads of it may need that at any time."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            codecs.lookup("unicode_escape")  # Python's own files may not be readable for all users
            os.write(writer, json.dumps(do()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


def process_of(pid: int, owner: int | None = None) -> RankProcess:
    """As an agent sees the process of a rank, of which it may read what belongs to that user."""
    said = msgspec.convert(identity(pid=pid, socket=None, shm=None), TapIdentity)
    return RankProcess(said, None, Process.pin(pid), owner)


def shared() -> RankContext:
    """All ranks report to one place."""
    dictionary, stats = Dictionary(), Counters()
    reports = Reports(
        job="j",
        outbox=Outbox(100_000),
        current=CurrentState(dictionary.attempt_of),
        samples=Samples(1, dictionary.series_number),
        wake=lambda: None,
        is_connected=lambda: True,
    )
    return RankContext(
        dictionary=dictionary,
        reports=lambda attempt: reports,
        stats=stats,
        time=NodeTime(stats),
        policy=PollPolicy(),
        dumping=asyncio.Semaphore(1),
    )
