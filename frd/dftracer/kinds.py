"""What a traced call is, by its category and name, in the terms of the report.

I/O is what the C library was asked for: categories POSIX, STDIO, MPIIO and HDF5, without calls
about processes. Fetch and compute are annotations of the Python program. An unknown call is OTHER.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    OTHER = 0
    FETCH = 1
    """The training loop waits for a batch."""
    COMPUTE = 2
    IO = 3
    """Other I/O than the next four. All from here on are I/O."""
    READ = 4
    WRITE = 5
    OPEN = 6
    CLOSE = 7


_IO_CATEGORIES: Final = frozenset({"POSIX", "STDIO", "MPIIO", "HDF5"})
_BYTES_IN: Final = frozenset({"POSIX", "STDIO"})
"""Where results are bytes. Calls of MPIIO and HDF5 end in calls of POSIX, which are counted."""
_READS: Final = frozenset(
    {"read", "pread", "pread64", "readv", "preadv", "preadv64", "preadv2", "fread"}
)
_WRITES: Final = frozenset(
    {"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64", "pwritev2", "fwrite"}
)
_OPENS: Final = frozenset(
    {"open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64"}
)
_CLOSES: Final = frozenset({"close", "fclose"})
ITEMS: Final = frozenset({"fread", "fwrite"})
"""Calls that return a number of items of ``size`` bytes."""
FORKS: Final = frozenset({"fork", "vfork"})
"""Calls that return the pid of a child."""
_OF_PROCESSES: Final = frozenset(
    {"clone", "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "exit", "_exit"}
    | {"fork", "vfork", "kill", "posix_spawn", "posix_spawnp", "wait", "wait3", "wait4", "waitid"}
    | {"waitpid", "sleep", "usleep", "nanosleep"}
)
_BEFORE_READS: Final = frozenset(
    {"fstat", "fstat64", "__fxstat", "__fxstat64", "lseek", "lseek64", "ftell", "fseek"}
)
_LOADERS: Final = frozenset({"dataloader", "data_loader"})


def kind_of(cat: str, name: str) -> Kind:
    if cat in _IO_CATEGORIES:
        return _io_kind(cat, name)
    if cat == "compute" or (cat == "ai_framework" and name.endswith("compute")):
        return Kind.COMPUTE
    if cat in _LOADERS and (name == "fetch" or name.endswith(".iter")):
        return Kind.FETCH
    return Kind.OTHER


def may_read_next(kind: Kind, name: str) -> bool:
    """Whether a read of its file usually follows a call: if the file is open and the process has
    made no other call since, it probably waits for that read, which a trace shows once it ends."""
    return kind in (Kind.READ, Kind.OPEN) or (kind is Kind.IO and name in _BEFORE_READS)


def _io_kind(cat: str, name: str) -> Kind:
    if name in _OF_PROCESSES:
        return Kind.OTHER
    if name in _CLOSES:
        return Kind.CLOSE
    if name in _OPENS:
        return Kind.OPEN
    if cat in _BYTES_IN and name in _READS:
        return Kind.READ
    if cat in _BYTES_IN and name in _WRITES:
        return Kind.WRITE
    return Kind.IO
