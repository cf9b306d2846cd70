"""System calls by number: what a thread in one of them waits for, and where its object is.

Numbers differ between architectures but never between kernels, while the names of kernel functions
(wchan) change with every second release. So a blocked call is recognized by its number only. A
number that is not in the table is a call by that number, of the class OTHER: nothing is guessed.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Class(Enum):
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    OPEN = "open"
    """Looks up a path, which may block like an open: open, stat, unlink, exec."""
    LOCK = "lock"
    POLL = "poll"
    SELECT = "select"
    EPOLL = "epoll"
    RECEIVE = "receive"
    SEND = "send"
    CONNECT = "connect"
    ACCEPT = "accept"
    FUTEX = "futex"
    SEMAPHORE = "semaphore"
    """System V."""
    SLEEP = "sleep"
    CHILD = "child"
    FAULT = "fault"
    """Blocked in the kernel without a system call: a page fault, mostly."""
    FROZEN = "frozen"
    """Kept from running by its control group, whatever it was in."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Syscall:
    name: str
    kind: Class
    fd: int | None = None
    """Index of the argument that is a file descriptor."""
    path: int | None = None
    """Index of the argument that points to a path; with `fd`, relative to that directory."""
    timeout: int | None = None
    """Index of the argument that limits the wait, where one exists."""
    offset: int | None = None
    """Index of the argument that is a position in the file."""


VFORK: Final = "vfork"
"""Waits until its child has started another program, which a file system may keep up."""
SENDFILE: Final = "sendfile"
SENDFILE_OUT: Final = Syscall(SENDFILE, Class.WRITE, 0)
"""One that waits for what it writes to; the row in the table reads."""
FAULT: Final = Syscall("page fault", Class.FAULT)
FROZEN: Final = Syscall("freezer", Class.FROZEN)
NO_CALL: Final = -1
"""The number that the kernel shows of a thread that is blocked outside of a system call."""

# Name, class, fd, path, timeout, number on x86-64, number on aarch64 and the other newer
# architectures (riscv64, loongarch64); None where the call does not exist.
_TABLE: Final[tuple[tuple[Syscall, int | None, int | None], ...]] = (
    (Syscall("read", Class.READ, 0), 0, 63),
    (Syscall("pread", Class.READ, 0, offset=3), 17, 67),
    (Syscall("readv", Class.READ, 0), 19, 65),
    (Syscall("preadv", Class.READ, 0, offset=3), 295, 69),
    (Syscall("preadv2", Class.READ, 0, offset=3), 327, 286),
    (Syscall("getdents", Class.READ, 0), 217, 61),
    (Syscall(SENDFILE, Class.READ, 1), 40, 71),
    (Syscall("copy_file_range", Class.READ, 0), 326, 285),
    (Syscall("readahead", Class.READ, 0), 187, 213),
    (Syscall("fadvise", Class.READ, 0), 221, 223),
    (Syscall("write", Class.WRITE, 0), 1, 64),
    (Syscall("pwrite", Class.WRITE, 0, offset=3), 18, 68),
    (Syscall("writev", Class.WRITE, 0), 20, 66),
    (Syscall("pwritev", Class.WRITE, 0, offset=3), 296, 70),
    (Syscall("pwritev2", Class.WRITE, 0, offset=3), 328, 287),
    (Syscall("ftruncate", Class.WRITE, 0), 77, 46),
    (Syscall("fallocate", Class.WRITE, 0), 285, 47),
    (Syscall("fsync", Class.SYNC, 0), 74, 82),
    (Syscall("fdatasync", Class.SYNC, 0), 75, 83),
    (Syscall("sync_file_range", Class.SYNC, 0), 277, 84),
    (Syscall("syncfs", Class.SYNC, 0), 306, 267),
    (Syscall("sync", Class.SYNC), 162, 81),
    (Syscall("msync", Class.SYNC), 26, 227),
    (Syscall("close", Class.SYNC, 0), 3, 57),
    (Syscall("fstat", Class.OPEN, 0), 5, 80),
    (Syscall("fstatfs", Class.OPEN, 0), 138, 44),
    (Syscall("lseek", Class.OPEN, 0), 8, 62),
    (Syscall("fgetxattr", Class.OPEN, 0), 193, 10),
    (Syscall("getxattr", Class.OPEN, path=0), 191, 8),
    (Syscall("lgetxattr", Class.OPEN, path=0), 192, 9),
    (Syscall("listxattr", Class.OPEN, path=0), 194, 11),
    (Syscall("open", Class.OPEN, path=0), 2, None),
    (Syscall("openat", Class.OPEN, 0, 1), 257, 56),
    (Syscall("openat2", Class.OPEN, 0, 1), 437, 437),
    (Syscall("creat", Class.OPEN, path=0), 85, None),
    (Syscall("stat", Class.OPEN, path=0), 4, None),
    (Syscall("lstat", Class.OPEN, path=0), 6, None),
    (Syscall("stat", Class.OPEN, 0, 1), 262, 79),
    (Syscall("statx", Class.OPEN, 0, 1), 332, 291),
    (Syscall("access", Class.OPEN, path=0), 21, None),
    (Syscall("access", Class.OPEN, 0, 1), 269, 48),
    (Syscall("access", Class.OPEN, 0, 1), 439, 439),
    (Syscall("readlink", Class.OPEN, path=0), 89, None),
    (Syscall("readlink", Class.OPEN, 0, 1), 267, 78),
    (Syscall("mkdir", Class.OPEN, path=0), 83, None),
    (Syscall("mkdir", Class.OPEN, 0, 1), 258, 34),
    (Syscall("rename", Class.OPEN, path=0), 82, None),
    (Syscall("rename", Class.OPEN, 0, 1), 264, 38),
    (Syscall("rename", Class.OPEN, 0, 1), 316, 276),
    (Syscall("unlink", Class.OPEN, path=0), 87, None),
    (Syscall("unlink", Class.OPEN, 0, 1), 263, 35),
    (Syscall("rmdir", Class.OPEN, path=0), 84, None),
    (Syscall("chdir", Class.OPEN, path=0), 80, 49),
    (Syscall("truncate", Class.OPEN, path=0), 76, 45),
    (Syscall("statfs", Class.OPEN, path=0), 137, 43),
    (Syscall("execve", Class.OPEN, path=0), 59, 221),
    (Syscall("flock", Class.LOCK, 0), 73, 32),
    (Syscall("fcntl", Class.LOCK, 0), 72, 25),
    (Syscall("poll", Class.POLL, timeout=2), 7, None),
    (Syscall("ppoll", Class.POLL, timeout=2), 271, 73),
    (Syscall("select", Class.SELECT, timeout=4), 23, None),
    (Syscall("pselect", Class.SELECT, timeout=4), 270, 72),
    (Syscall("epoll_wait", Class.EPOLL, 0, timeout=3), 232, None),
    (Syscall("epoll_wait", Class.EPOLL, 0, timeout=3), 281, 22),
    (Syscall("epoll_wait", Class.EPOLL, 0, timeout=3), 441, 441),
    (Syscall("recv", Class.RECEIVE, 0), 45, 207),
    (Syscall("recvmsg", Class.RECEIVE, 0), 47, 212),
    (Syscall("recvmmsg", Class.RECEIVE, 0), 299, 243),
    (Syscall("send", Class.SEND, 0), 44, 206),
    (Syscall("sendmsg", Class.SEND, 0), 46, 211),
    (Syscall("sendmmsg", Class.SEND, 0), 307, 269),
    (Syscall("connect", Class.CONNECT, 0), 42, 203),
    (Syscall("accept", Class.ACCEPT, 0), 43, 202),
    (Syscall("accept", Class.ACCEPT, 0), 288, 242),
    (Syscall("futex", Class.FUTEX, timeout=3), 202, 98),
    (Syscall("semop", Class.SEMAPHORE), 65, 193),
    (Syscall("semtimedop", Class.SEMAPHORE), 220, 192),
    (Syscall("nanosleep", Class.SLEEP), 35, 101),
    (Syscall("clock_nanosleep", Class.SLEEP), 230, 115),
    (Syscall("wait4", Class.CHILD), 61, 260),
    (Syscall("waitid", Class.CHILD), 247, 95),
    (Syscall(VFORK, Class.CHILD), 58, None),
    (Syscall("pause", Class.OTHER), 34, None),
    (Syscall("sigtimedwait", Class.OTHER), 128, 137),
    (Syscall("sigsuspend", Class.OTHER), 130, 133),
    (Syscall("ioctl", Class.OTHER, 0), 16, 29),
    (Syscall("io_uring_enter", Class.OTHER, 0), 426, 426),
    (Syscall("io_getevents", Class.OTHER), 208, 4),
    (Syscall("mmap", Class.OTHER), 9, 222),
    (Syscall("munmap", Class.OTHER), 11, 215),
    (Syscall("restart_syscall", Class.OTHER), 219, 128),
)
_X86: Final = {x86: call for call, x86, _ in _TABLE if x86 is not None}
_GENERIC: Final = {number: call for call, _, number in _TABLE if number is not None}
_TABLES: Final = {
    "x86_64": _X86,
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
}
POLLS: Final = (Class.POLL, Class.SELECT, Class.EPOLL)
FUTEX_PRIVATE: Final = 128
F_SETLKW: Final = 7
F_OFD_SETLKW: Final = 38


def syscall_of(number: int, machine: str | None = None) -> Syscall:
    """The call with this number on `machine` (by default, this one)."""
    if number == NO_CALL:
        return FAULT
    table = _TABLES.get(machine or platform.machine(), {})
    return table.get(number) or Syscall(f"system call {number}", Class.OTHER)


def is_lock(call: Syscall, command: int) -> bool:
    """Whether a call of the class LOCK waits for a lock: fcntl does much else."""
    return call.name != "fcntl" or command in (F_SETLKW, F_OFD_SETLKW)
