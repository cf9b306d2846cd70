"""Real processes that wait for storage: a file server that does not answer, and a slow device."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from frd.model import Certainty, WaitKind
from frd_agent.counters import Counters
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.syscalls import syscall_of
from frd_agent.inspection.traces.followed import Traces
from frd_agent.node_time import NodeTime
from tests.unit.agent.inspection.test_holders import SYS_PTRACE, only_capabilities
from tests.world.hanging_fuse import SOURCE, Nas
from tests.world.io_traces import DIALECTS, T0_US, Call, Writer
from tests.world.suspects import Inspection, inspect, suspect

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


# -- traces ----------------------------------------------------------------------------------------
# Real processes that write a DFTracer trace while they wait, and what their report says of it.


PID = 987_654_321
"""Stands for the pid of the process that writes the lines."""
BLOCKED = """
import gzip, os, sys, threading, time

def as_own(path):
    return open(path, "rb").read().replace(b"987654321", str(os.getpid()).encode())

def members(lines, a_member=1):
    parts = [lines[at : at + a_member] for at in range(0, len(lines), a_member)]
    return b"".join(gzip.compress(b"".join(part)) for part in parts)

def write(trace, data):
    fd = os.open(trace, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, data)
    return fd

lines, trace, slow = sys.argv[1:4]
slow = os.open(slow, os.O_RDONLY)
text = as_own(lines)
"""
WRITES = "write(trace, text)"
READS = """
print("ready", flush=True)
os.read(slow, 1)
"""
Lines: TypeAlias = list[str]


@pytest.fixture
def traces() -> Traces:
    """With a deadline for a busy machine."""
    return Traces(NodeTime(Counters()).one_to_raw, Helper(deadline_s=5.0))


class Job:
    """A process that writes a trace, and then is in a read of a FIFO."""

    def __init__(self, folder: Path, fifo: Path, traces: Traces) -> None:
        self.folder, self.fifo, self.traces = folder, fifo, traces
        self.last_read = (
            f"its trace ends with read() of 65536 bytes of {fifo}, 2 min before that was first "
            "seen; the last step in its trace is epoch 2 step 118"
        )

    def calls(self, *, ago_s: float = 100.0) -> list[Call]:
        """A step, and a read that ended `ago_s` ago, after the file was opened."""
        at, file = time.time_ns() // 1000 - T0_US - round(ago_s * 1e6), str(self.fifo)
        return [
            Call("forward", at - 3_000, 1_000, cat="compute", args={"epoch": 2, "step": 118}),
            Call("open64", at - 1_500, 100, file=file, ret=5),
            Call("read", at - 1_000, 1_000, file=file, ret=65_536),
        ]

    def lines(self, dialect: str = "v2.2", *, define: bool = True, ago_s: float = 100.0) -> Lines:
        return list(Writer(dialect, PID).lines(self.calls(ago_s=ago_s), define=define))

    def arguments(self, lines: Lines, trace: str = "job-app.pfw") -> tuple[Path, Path, Path]:
        (self.folder / "lines").write_text("\n".join(lines) + "\n")
        return self.folder / "lines", self.folder / trace, self.fifo

    def report(self, lines: Lines, program: str = WRITES, trace: str = "job-app.pfw") -> str:
        """What is said of the trace of a process that writes `lines` to it by `program`."""
        with suspect(BLOCKED + program + READS, *self.arguments(lines, trace)) as rank:
            found = inspect(rank.pid, enough=lambda found: bool(found.rest), traces=self.traces)
        assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
        assert found.what == str(self.fifo)
        return found.rest


@pytest.fixture
def job(tmp_path: Path, fifo: Path, traces: Traces) -> Job:
    return Job(tmp_path, fifo, traces)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_live_trace(job: Job, dialect: str) -> None:
    """The last call that ended, its file, when that was, and the step, in every dialect."""
    assert job.report(job.lines(dialect)) == job.last_read
    assert job.traces.broken == 0


def test_a_hash_that_the_trace_does_not_define(job: Job) -> None:
    """A child that was forked has its parent's hashes; the file is known, because it is open."""
    assert job.report(job.lines(define=False)) == job.last_read


BUFFERED = {
    "empty": ("write(trace, b'')", "job.pfw"),
    "empty, gzipped": ("write(trace, b'')", "job.pfw.gz"),
    "large members": ("write(trace, members([text] * 4000, 2000))", "job.pfw.gz"),
    "a full buffer": ("write(trace, text.ljust((16 << 20) + 100))", "job.pfw"),
}


@pytest.mark.parametrize("how", BUFFERED)
def test_a_buffered_trace(job: Job, how: str) -> None:
    """What is in it is old, and what is not in it may have happened: only that is said."""
    assert job.report(job.lines(), *BUFFERED[how]) == "its trace is buffered, not live"


def test_damage(job: Job) -> None:
    """Lines that are cut, glued or no JSON are counted, and half a line at the end waits."""
    lines = job.lines()
    glued = lines[-3][:40] + lines[-2]
    program = f"write(trace, b'no json\\n' + text + {lines[-1][:50]!r}.encode())"
    assert job.report([*lines[:-2], glued, lines[-1]], program) == job.last_read
    assert job.traces.broken == 2


def test_a_damaged_member(job: Job) -> None:
    """The members after it are read."""
    program = """
first, *others = text.splitlines(keepends=True)
bad = bytearray(members([first]))
bad[12:20] = bytes(8)
write(trace, bytes(bad) + members(others))
"""
    assert job.report(job.lines(), program, "job.pfw.gz") == job.last_read
    assert job.traces.broken >= 1


def test_it_grows_and_is_cut_off(job: Job, tmp_path: Path) -> None:
    """A thread writes on while the main thread waits; then the file begins again."""
    os.mkfifo(tmp_path / "orders")
    later = tmp_path / "later"
    program = f"""
fd = write(trace, text)
def follow():
    for order in open({str(tmp_path / "orders")!r}):
        if order == "cut\\n":
            os.ftruncate(fd, 0)
            os.write(fd, text)
        else:
            os.write(fd, as_own({str(later)!r}))
threading.Thread(target=follow, daemon=True).start()
"""
    with (
        suspect(BLOCKED + program + READS, *job.arguments(job.lines())) as rank,
        (tmp_path / "orders").open("w", buffering=1) as orders,
    ):
        inspection = Inspection(rank.pid)
        inspection.until(lambda found: found.rest == job.last_read)
        at = time.time_ns() // 1000 - T0_US
        line = Writer("v2.2", PID).call(9, Call("close", at, 1, file=str(job.fifo), ret=0))
        later.write_text(line + "\n")
        orders.write("grow\n")
        inspection.until(lambda found: "its trace goes on: calls" in found.rest)
        orders.write("cut\n")
        inspection.until(lambda found: found.rest == job.last_read)


def test_a_worker_with_its_own_trace(job: Job, tmp_path: Path) -> None:
    """The rank waits for its child, whose trace names the read; the step is the rank's."""
    step, *worker = job.calls()
    (tmp_path / "of-worker").write_text("\n".join(Writer("v2.2", PID).lines(worker)) + "\n")
    program = f"""
write(trace, text)
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.close(read_end)
    write(trace.replace("app", "fork"), as_own({str(tmp_path / "of-worker")!r}))
    os.read(slow, 1)
os.close(write_end)
print("ready", flush=True)
os.read(read_end, 1)
"""
    arguments = job.arguments(list(Writer("v2.2", PID).lines([step])))
    with suspect(BLOCKED + program, *arguments) as rank:
        found = inspect(rank.pid, enough=lambda found: "trace" in found.rest)
    assert (found.kind, found.what) == (WaitKind.FILE_READ, str(job.fifo))
    assert found.pid != rank.pid
    read = job.last_read.partition(" that was")[0]
    assert read.replace("its trace", f"the trace of pid {found.pid}") in found.rest
    assert found.rest.endswith("; the last step in the rank's trace is epoch 2 step 118")


def test_a_file_that_is_about_to_be_opened(job: Job) -> None:
    """DFTracer defines the file's hash just before the first call, which has not ended."""
    defined = Writer("v2.2", PID).metadata("FH", "/data/next.tar", "0123456789abcdef")
    said = job.report([*job.lines(), defined])
    assert said.startswith("its trace ends with the begin of a call on /data/next.tar")


def test_a_time_that_cannot_be(job: Job) -> None:
    """A clock that is not the node's: nothing is said about when."""
    said = job.report(job.lines(ago_s=400 * 86_400))
    assert said.startswith(f"its trace ends with read() of 65536 bytes of {job.fifo}; the last")


def test_no_right_to_read_it(job: Job) -> None:
    """A trace of another user: said, with its name."""
    program = "os.fchmod(fd := write(trace, text), 0o600); os.fchown(fd, 65534, 65534)"
    with only_capabilities(SYS_PTRACE):
        said = job.report(job.lines(), program)
    assert said == f"its trace ({job.folder}/job-app.pfw) cannot be read: Permission denied"


def test_no_trace(tmp_path: Path, fifo: Path) -> None:
    """One that is only read is not its trace."""
    trace = tmp_path / "other.pfw"
    trace.write_text("{}\n")
    program = f"""
        import os
        other, slow = open({str(trace)!r}), os.open({str(fifo)!r}, os.O_RDONLY)
        print("ready", flush=True)
        os.read(slow, 1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.rest) == (WaitKind.FILE_READ, "")


@pytest.mark.skipif(
    syscall_of(208).name != "io_getevents", reason="numbers of calls are those of x86-64"
)
def test_a_call_that_names_no_file(job: Job) -> None:
    """/proc shows asynchronous I/O and no file: the one of the last traced call likely is it."""
    program = """
import ctypes
write(trace, text)
call, context = ctypes.CDLL(None).syscall, ctypes.c_ulong(0)
assert call(206, 8, ctypes.byref(context)) == 0
print("ready", flush=True)
call(208, context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref((ctypes.c_char * 64)()), None)
"""
    with suspect(BLOCKED + program, *job.arguments(job.lines())) as rank:
        found = inspect(rank.pid, enough=lambda found: found.kind is WaitKind.FILE_READ)
        assert (found.pid, found.topic) == (rank.pid, "data")
    assert (found.certainty, found.what) == (Certainty.LIKELY, str(job.fifo))
    assert found.says.startswith(f"it has ended no traced call after read() of {job.fifo} (")
    assert found.rest.startswith("its main thread has been in io_getevents()")


# -- storage that does not answer ------------------------------------------------------------------


def test_it_is_where_the_rank_is_stuck(nas: Nas, traces: Traces) -> None:
    """The trace is not touched, and that is said."""
    program = """
        import os, sys
        trace = os.open(sys.argv[1] + "/job.pfw", os.O_RDWR)
        os.lseek(trace, 100, os.SEEK_SET)
        shard = os.open(sys.argv[1] + "/shard.bin", os.O_RDONLY)
        print("ready", flush=True)
        os.read(shard, 100)
    """
    with suspect(program, nas.folder) as rank, closing(nas):
        found = inspect(rank.pid, enough=lambda found: bool(found.rest), traces=traces)
    why = "is not read: it is on the file system that the rank is stuck in"
    assert found.rest == f"its trace ({nas.folder}/job.pfw) {why}"
    assert traces.helper.timeouts == 0


def test_it_does_not_answer(nas: Nas) -> None:
    """The rank waits for something else, and the storage of the trace hangs: only the helper does.
    The trace is then left alone, and ranks are inspected on."""
    program = """
        import os, sys, time
        trace = os.open(sys.argv[1] + "/job.pfw", os.O_RDWR)
        os.lseek(trace, 100, os.SEEK_SET)
        print("ready", flush=True)
        time.sleep(300)
    """
    traces = Traces(NodeTime(Counters()).one_to_raw)
    with suspect(program, nas.folder) as rank, closing(nas):
        found = inspect(rank.pid, enough=lambda found: bool(found.rest), traces=traces)
        assert traces.helper.hangs
        assert traces.helper.timeouts == 1
    assert found.kind is WaitKind.SLEEP
    assert found.rest == f"its trace ({nas.folder}/job.pfw) could not be read in time"
