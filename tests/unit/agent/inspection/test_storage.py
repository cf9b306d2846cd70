"""Real processes that wait for storage: a file server that does not answer, and a slow device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from frd.model import Certainty, WaitKind
from tests.world.hanging_fuse import SOURCE, Nas
from tests.world.suspects import inspect, suspect

BLKIO = Path("/sys/fs/cgroup/blkio")
SLOW_BPS = 65_536


CALLS = {
    "read": "os.read(os.open(path + '/shard.bin', os.O_RDONLY), 100)",
    "fsync": "os.fsync(os.open(path + '/shard.bin', os.O_RDWR))",
    "openat": "os.open(path + '/index', os.O_RDONLY)",
}
EXPECTED = {
    "read": (WaitKind.FILE_READ, "shard.bin", "data"),
    "fsync": (WaitKind.FILE_SYNC, "shard.bin", "storage"),
    "openat": (WaitKind.FILE_OPEN, "index", "a file"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_file_server_that_does_not_answer(nas: Nas, call: str) -> None:
    """The call, the file and its mount are named; the agent itself never touches the mount."""
    program = f"""
        import os, sys
        path = sys.argv[1]
        print("ready", flush=True)
        {CALLS[call]}
    """
    with suspect(program, nas.folder) as rank, closing(nas):
        found = inspect(rank.pid)
    kind, name, topic = EXPECTED[call]
    assert (found.kind, found.certainty) == (kind, Certainty.SEEN)
    assert (found.what, found.topic) == (f"{nas.folder}/{name}", topic)
    assert (found.mount, found.fs) == (str(nas.folder), f"fuse {SOURCE}")
    place = f"{nas.folder}/{name} (fuse {SOURCE} on {nas.folder})"
    assert found.says == f"its main thread has been in {call}() of {place}"


def test_a_page_fault(nas: Nas) -> None:
    """No system call names the file: the only mapped data file is likely it."""
    program = """
        import mmap, os, sys
        fd = os.open(sys.argv[1] + "/shard.bin", os.O_RDONLY)
        room = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
        print("ready", flush=True)
        room[0]
    """
    with suspect(program, nas.folder) as rank, closing(nas):
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.PAGE_FAULT, Certainty.LIKELY)
    assert (found.what, found.topic) == (f"{nas.folder}/shard.bin", "data")


@contextmanager
def slow_device(folder: Path) -> Iterator[Path]:
    """A control group whose processes read and write the device of `folder` at `SLOW_BPS`."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    group = BLKIO / f"frd-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group that limits a device: {group}: {error.strerror}")
    try:
        for way in ("read", "write"):
            (group / f"blkio.throttle.{way}_bps_device").write_text(f"{number} {SLOW_BPS}")
        yield group
    except OSError as error:
        pytest.skip(f"device {number} cannot be limited: {error.strerror}")
    finally:
        group.rmdir()


def test_a_slow_device_that_is_read_in_pieces(tmp_path: Path) -> None:
    """Each piece takes a moment: the file and the call are named, and that the file is read on."""
    program = """
        import os, sys
        fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
        os.write(fd, bytes(8 << 20))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
            procs.write(str(os.getpid()))
        print("ready", flush=True)
        for at in range(0, 8 << 20, 16384):
            os.pread(fd, 16384, at)
    """
    path = tmp_path / "shard-17.tar"
    with slow_device(tmp_path) as slow, suspect(program, slow, path) as rank:
        found = inspect(
            rank.pid, enough=lambda one: "slow" in one.rest and one.certainty is Certainty.SEEN
        )
    assert found.kind is WaitKind.FILE_READ
    assert found.what == str(path)
    assert "has been in pread() " in found.says
    assert found.rest == "its position in the file changes: it is slow rather than stuck"
