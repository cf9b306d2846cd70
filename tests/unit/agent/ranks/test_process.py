"""Real processes: there, stopped, dead, zombie, and a number that is used again."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frd.model import NodeRawNs
from frd_agent.proc import Stat, Vital, read_stat
from frd_agent.ranks.process import Listener, Process, listener
from tests.world.daemons import until

LINUX = tuple(int(part) for part in os.uname().release.split(".")[:2])


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_runs_stops_and_goes(child: subprocess.Popen[bytes]) -> None:
    """SIGSTOP makes it stopped, SIGCONT running, SIGKILL a zombie, which counts as gone."""
    process = Process.pin(child.pid)
    assert process is not None
    assert process.look() is Vital.RUNNING
    child.send_signal(signal.SIGSTOP)
    until(lambda: process.look() is Vital.STOPPED)
    assert process.describe() == f"process {child.pid} is stopped (state T)"
    if process.pidfd is not None:
        assert process.look(is_moving=True) is Vital.RUNNING, "its counters say more than /proc"
    child.send_signal(signal.SIGCONT)
    until(lambda: process.look() is Vital.RUNNING)
    child.kill()
    until(lambda: process.look(is_moving=True) is Vital.GONE)
    stat = read_stat(child.pid)
    assert stat is not None
    assert stat.state == "Z"
    assert Process.pin(child.pid) is None
    child.wait()
    assert process.describe() == f"process {child.pid} is gone"
    process.close()


def test_the_pidfd_becomes_readable_at_the_end(child: subprocess.Popen[bytes]) -> None:
    """A process that is not the parent sees the death immediately by waiting on the pidfd."""
    import select

    process = Process.pin(child.pid)
    assert process is not None
    if process.pidfd is None:
        pytest.skip("this kernel has no pidfd")
    assert select.select([process.pidfd], [], [], 0)[0] == []
    child.kill()
    assert select.select([process.pidfd], [], [], 10)[0] == [process.pidfd]
    process.close()
    assert process.pidfd is None


def test_the_status_is_known_before_and_after_its_parent_collects_it(
    child: subprocess.Popen[bytes],
) -> None:
    """The status of a zombie is in /proc. After its parent has collected it, the pidfd has the
    status. The time of the end is that of the first look."""
    early, late = Process.pin(child.pid), Process.pin(child.pid)
    assert early is not None
    assert late is not None
    assert (early.end, late.end) == (None, None)
    child.kill()
    until(lambda: early.look() is Vital.GONE)
    seen = early.end
    assert seen is not None
    assert seen.wait_status == signal.SIGKILL
    child.wait()
    assert early.ended(NodeRawNs(0)) == seen
    assert late.look() is Vital.GONE
    assert late.end is not None
    assert late.end.wait_status == (signal.SIGKILL if LINUX >= (6, 15) else None)
    early.close()
    late.close()


def test_a_status_that_proc_hides(child: subprocess.Popen[bytes]) -> None:
    """To a reader without permission /proc says that every zombie left with 0. The reader does not
    believe it: the process counts as running until the pidfd has the status, or for a second."""
    if os.geteuid() != 0:
        pytest.skip("only root can give up its permissions")
    from_other, to_other = (os.pipe() for _ in range(2))

    def watch() -> None:
        os.setresuid(65534, 65534, 65534)
        process = Process.pin(child.pid)
        assert process is not None
        os.write(from_other[1], b"pinned\n")
        until(lambda: "Z" in process.describe())
        os.write(from_other[1], state_of(process))
        os.read(to_other[0], 1)
        until(lambda: process.look() is Vital.GONE)
        os.write(from_other[1], state_of(process))

    def state_of(process: Process) -> bytes:
        vital, end = process.look(), process.end
        return f"{vital.name} {end.wait_status if end else ''}\n".encode()

    with forked(watch), open(from_other[0]) as lines:
        assert lines.readline() == "pinned\n"
        child.kill()
        assert lines.readline() == "RUNNING None\n"
        child.wait()
        os.write(to_other[1], b"x")
        assert lines.readline() == f"GONE {9 if LINUX >= (6, 15) else None}\n"
    for fd in (from_other[1], *to_other):
        os.close(fd)


@contextlib.contextmanager
def forked(work: Callable[[], None]) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_used_again_number_is_another_process(child: subprocess.Popen[bytes]) -> None:
    """The former owner had started at another time: this process is not taken for it."""
    now = Process.pin(child.pid)
    assert now is not None
    _, started = now.key
    now.close()
    assert Process.pin(child.pid, start_ticks=started - 1) is None


def test_a_name_with_spaces_and_parentheses(proc_files: Path) -> None:
    """The command's name is in /proc/<pid>/stat as it is, whatever it contains."""
    (proc_files / "7").mkdir()
    fields = ["R", "1", *["0"] * 17, "4242", "0"]
    (proc_files / "7" / "stat").write_text(f"7 (py (x) R Z) {' '.join(fields)}\n")
    assert read_stat(7) == Stat("R", 1, 0, 4242, 0, 0, 0)
    fields = ["Z", *map(str, range(4, 52)), "9"]
    (proc_files / "7" / "stat").write_text(f"7 (py (x) R Z) {' '.join(fields)}\n")
    assert read_stat(7) == Stat("Z", 4, 14 + 15, 22, 26, 28, 9)
    assert read_stat(8) is None


def test_short_of_descriptors_no_process_is_dead(child: subprocess.Popen[bytes]) -> None:
    """An agent that cannot open files does not take a process that it cannot see for gone."""
    process = Process.pin(child.pid)
    assert process is not None
    with descriptors(left=0):
        assert process.look() is Vital.RUNNING
        assert process.describe() == f"process {child.pid} cannot be read: Too many open files"
        with pytest.raises(OSError, match="Too many open files"):
            Process.pin(child.pid)
        with pytest.raises(OSError, match="Too many open files"):
            listener("/nowhere.sock")
    assert process.look() is Vital.RUNNING
    child.kill()
    until(lambda: process.look() is Vital.GONE)
    process.close()


@contextlib.contextmanager
def descriptors(left: int) -> Iterator[None]:
    """This process may have so many more at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_listens_on_a_socket(tmp_path: Path) -> None:
    """The kernel names the process that listens, in our own pid namespace."""
    path = str(tmp_path / "rank.sock")
    assert listener(path) is Listener.NONE
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        assert listener(path) == os.getpid()
    assert listener(path) is Listener.NONE
