"""Where the main thread of a simulated rank is: in which frames, and in which system call."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.sim.threads import Mode

if TYPE_CHECKING:
    from tests.sim.ops import Op
    from tests.sim.ranks import SimRank

_JOB: Final = "/home/u/job"
_TORCH: Final = "/opt/venv/lib/python3.11/site-packages/torch"


class Frame(NamedTuple):
    file: str
    line: int
    name: str


_C10D: Final = f"{_TORCH}/distributed/distributed_c10d.py"
_LOGGER: Final = Frame(f"{_TORCH}/distributed/c10d_logger.py", 83, "wrapper")
_MAIN: Final = (Frame(f"{_JOB}/train.py", 261, "main"), Frame(f"{_JOB}/train.py", 264, "<module>"))
_STEP: Final = (Frame(f"{_JOB}/train.py", 240, "train_step"), *_MAIN)
_SYNCHRONIZE: Final = Frame(f"{_TORCH}/cuda/__init__.py", 985, "synchronize")


class Sys(StrEnum):
    """What the kernel shows of the thread."""

    CPU = "cpu"
    """In no call: on a processor, or ready for one."""
    READ = "read"
    LOCK = "lock"
    """flock."""
    PEER = "peer"
    """A private futex with a time-out: it waits for a thread of Gloo."""
    STORE = "store"
    """A poll of the socket to the store."""
    SLEEP = "sleep"
    NATIVE = "native"
    """A private futex with a time-out, of another library."""
    ACCEPT = "accept"
    """It waits for a client."""
    EXITS = "exits"


WAITS: Final = frozenset({Sys.LOCK, Sys.PEER, Sys.STORE, Sys.NATIVE})
"""Waits that may be for another rank."""


_MODES: Final = {
    Sys.CPU: Mode.RUNS,
    Sys.SLEEP: Mode.POLLS,
    Sys.STORE: Mode.STORE,
}


@dataclass(frozen=True, slots=True)
class Place:
    frames: tuple[Frame, ...]
    """Innermost first."""
    sys: Sys
    path: str = ""
    """Of the file that it reads or whose lock it waits for."""
    holder: SimRank | None = None
    """Whose process holds what it waits for."""

    @property
    def looks_again(self) -> bool:
        """It waits, and uses processor time for that: it polls, or spins for its device."""
        return self.sys is Sys.SLEEP or self.frames[0] == _SYNCHRONIZE

    @property
    def mode(self) -> Mode:
        return _MODES.get(self.sys, Mode.RESTS)


# -- ranks that a fault holds ----------------------------------------------------------------------


def reading(dice: random.Random) -> Place:
    """A file of a file server does not come."""
    inner = (
        Frame(f"{_JOB}/data.py", 57, "read_shard"),
        Frame(f"{_JOB}/train.py", 88, "load_batch"),
    )
    if dice.random() < 0.3:
        inner = (
            Frame(f"{_TORCH}/serialization.py", 1561, "load"),
            Frame(f"{_JOB}/train.py", 63, "load_checkpoint"),
        )
    return Place((*inner, *_STEP), Sys.READ, f"/data/shard-{dice.randrange(100)}.tar")


def computing() -> Place:
    return Place((Frame(f"{_JOB}/data.py", 31, "tokenize"), *_STEP), Sys.CPU)


def polling() -> Place:
    """For a file that never comes."""
    return Place((Frame(f"{_JOB}/train.py", 143, "wait_for_token"), *_STEP), Sys.SLEEP)


def synchronizing() -> Place:
    """For a graph that its device replays, and in which the device may wait for others."""
    return Place((_SYNCHRONIZE, Frame(f"{_JOB}/train.py", 152, "replay"), *_STEP), Sys.CPU)


def serving(dice: random.Random) -> Place:
    """A worker has no request."""
    serve = (Frame(f"{_JOB}/serve.py", 36, "serve"), *_MAIN)
    accept = Frame("/usr/lib/python3.11/socket.py", 294, "accept")
    get = Frame("/usr/lib/python3.11/queue.py", 171, "get")
    wait = Frame("/usr/lib/python3.11/threading.py", 327, "wait")
    inner, sys = dice.choice((((accept,), Sys.ACCEPT), ((wait, get), Sys.NATIVE), ((), Sys.SLEEP)))
    return Place((*inner, *serve), sys)


def in_native() -> Place:
    """Another library waits for one of its threads, with a time-out."""
    return Place((Frame(f"{_JOB}/cache.py", 19, "sync_cache"), *_STEP), Sys.NATIVE)


def locked(path: str, holder: SimRank | None = None) -> Place:
    """In flock; without `holder`, the rank has the lock and reads."""
    save = (Frame(f"{_JOB}/train.py", 171, "update_index"), *_STEP)
    if holder is None:
        return Place((Frame(f"{_JOB}/index.py", 40, "merge"), *save), Sys.READ, path + ".db")
    return Place((Frame(f"{_JOB}/index.py", 12, "lock"), *save), Sys.LOCK, path, holder)


def polling_lock(path: str, holder: SimRank) -> Place:
    """The package filelock tries again and again to get a lock."""
    acquire = Frame("/opt/venv/lib/python3.11/site-packages/filelock/_api.py", 344, "acquire")
    own = (Frame(f"{_JOB}/index.py", 12, "lock"), Frame(f"{_JOB}/train.py", 171, "update_index"))
    return Place((acquire, *own, *_STEP), Sys.SLEEP, path, holder)


def exiting() -> Place:
    """The program has left its main module."""
    return Place((Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),), Sys.EXITS)


def saving() -> Place:
    """It works on a checkpoint."""
    inner = Frame(f"{_TORCH}/serialization.py", 967, "_save")
    return Place((inner, Frame(f"{_JOB}/train.py", 188, "save_checkpoint"), *_MAIN), Sys.CPU)


def drawn(dice: random.Random) -> Place:
    """Whatever holds a rank."""
    return dice.choice((reading(dice), computing(), polling(), in_native()))


# -- calls of torch.distributed --------------------------------------------------------------------

CALLS: Final = ("new_group", "barrier", "all_gather_object", "monitored_barrier", "store")
"""Calls without a record, in which all ranks of the job meet."""


def in_call(op: str, line: int = 205) -> Place:
    """A call that leaves no record."""
    own = (Frame(f"{_JOB}/train.py", line, "regroup"), *_MAIN)
    match op:
        case "new_group":
            helper = Frame(_C10D, 2169, "_new_process_group_helper")
            inner = (helper, Frame(_C10D, 6056, "_new_group_with_tag"), Frame(_C10D, 5863, op))
            return Place((*inner, _LOGGER, *own), Sys.STORE)
        case "store":
            frame = Frame(f"{_TORCH}/distributed/elastic/utils/store.py", 40, "get_all")
            return Place((frame, *own), Sys.STORE)
        case "all_gather_object":
            inner = (Frame(_C10D, 4066, "all_gather"), _LOGGER, Frame(_C10D, 3140, op))
            return Place((*inner, _LOGGER, *own), Sys.PEER)
        case _:
            return Place((Frame(_C10D, 5356, op), _LOGGER, *own), Sys.PEER)


def in_message(*, sends: bool) -> Place:
    """A send or a receive of Gloo, which no recorder shows."""
    name, line = ("send", 71) if sends else ("recv", 64)
    own = (Frame(f"{_JOB}/pipeline.py", line, "exchange"), Frame(f"{_JOB}/pipeline.py", 102, "run"))
    return Place((Frame(_C10D, 2799, name), _LOGGER, *own, *_STEP), Sys.PEER)


def place_of(rank: SimRank) -> Place:
    """Where the main thread of a living rank is now."""
    if rank.place is not None:
        return rank.place
    if rank.is_held:
        return exiting()
    if not rank.waits:
        saves = rank.at == 0 and len(rank.tasks) > len(rank.program.step) and rank.step > 0
        return saving() if saves else _working(rank)
    last = rank.queue[-1].op if rank.queue else None
    if last is not None and last.group.backend == "gloo":
        return _in_gloo(rank, last)
    own = Frame(f"{_JOB}/train.py", 130 + rank.at, "step")
    inner = (_SYNCHRONIZE,) if rank.needs == 0 else ()
    return Place((*inner, own, *_STEP), Sys.CPU)


def _working(rank: SimRank) -> Place:
    return Place((Frame(f"{_JOB}/model.py", 20 + rank.at, "forward"), *_STEP), Sys.CPU)


def _in_gloo(rank: SimRank, op: Op) -> Place:
    if op.is_p2p:
        return in_message(sends=op.is_send)
    own = (Frame(f"{_JOB}/train.py", 130 + rank.at, "step"), *_STEP)
    name = "barrier" if op.name == "barrier" else "all_reduce"
    return Place((Frame(_C10D, 3252, name), _LOGGER, *own), Sys.PEER)
