"""Real processes that wait for locks and sockets, or look as if they did: who holds them, and who
only looks like the holder."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from frd.model import Certainty, WaitKind
from frd_agent.inspection.reading.files import open_file, read_watched
from frd_agent.inspection.reading.locks import (
    FLOCK,
    OFD,
    FileLock,
    NodeLocks,
    lock_holder,
    parse_lock,
)
from frd_agent.inspection.reading.memory import Polled
from frd_agent.inspection.reading.rights import missing_right
from tests.world.suspects import inspect, of_kind, suspect

WAITS = """
    import fcntl, sys
    file = open(sys.argv[1])
    print("ready", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
"""


TWICE = """
    import fcntl, sys
    first, file = open(sys.argv[1]), open(sys.argv[1])
    fcntl.flock(first, fcntl.LOCK_EX)
    print("ready", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
"""


@pytest.mark.parametrize("then", ["file.close(); time.sleep(300)", "os._exit(0)"])
def test_a_lock_that_a_child_inherited(tmp_path: Path, then: str) -> None:
    """The process that took the lock has closed the file, or has ended; its child still has it."""
    holds = f"""
        import fcntl, os, sys, time
        if os.fork() == 0:
            file = open(sys.argv[1], "w")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fork() == 0:
                file.write(str(os.getpid()))
                file.flush()
                print("ready", flush=True)
                time.sleep(300)
            {then}
        os.wait()
        time.sleep(300)
    """
    path = tmp_path / ".lock"
    with suspect(holds, path), suspect(WAITS, path) as rank:
        found = inspect(rank.pid)
        assert found.holder is not None
        assert found.holder.pid == int(path.read_text())
    assert (found.kind, found.certainty) == (WaitKind.LOCK_FILE, Certainty.SEEN)


def ranges(command: str, then: str) -> str:
    """A program that locks ten bytes of a file, from its second argument on."""
    return f"""
        import fcntl, struct, sys, time
        file = open(sys.argv[1], "a+b")
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, int(sys.argv[2]), 10, 0)
        {command}
        {then}
    """


SAYS = 'print("ready", flush=True)'
SET, WAIT = 37, 38
"""F_OFD_SETLK and F_OFD_SETLKW: the kernel does not know the process of such locks."""
HELD = ranges(f"fcntl.fcntl(file, {SET}, lock)", f"{SAYS}; time.sleep(300)")
WANTED = ranges(SAYS, f"fcntl.fcntl(file, {WAIT}, lock)")


def test_locks_of_two_ranges_of_a_file(tmp_path: Path) -> None:
    """Two processes have locked other bytes of one file: the holder is the one of the same range.
    Once two ranks wait, the kernel no longer shows which of them waits for which lock."""
    path = tmp_path / "index"
    with (
        suspect(HELD, path, 0) as first,
        suspect(HELD, path, 100) as second,
        suspect(WANTED, path, 100) as rank,
    ):
        ranks = {first.pid: 1, rank.pid: 0}
        alone = inspect(rank.pid, ranks)
        with suspect(WANTED, path, 0):
            both = inspect(rank.pid, ranks)
    assert alone.holder is not None
    assert (alone.holder.pid, alone.holder.rank) == (second.pid, None)
    assert (both.kind, both.holder) == (WaitKind.LOCK_FILE, None)


def test_a_lock_of_the_process_itself(tmp_path: Path) -> None:
    """A program locks a file that it has opened and locked before."""
    path = tmp_path / ".lock"
    path.touch()
    with suspect(TWICE, path) as rank:
        found = inspect(rank.pid)
        assert found.holder is not None
        assert (found.holder.pid, found.holder.rank) == (rank.pid, 0)
    assert (found.kind, found.certainty) == (WaitKind.LOCK_FILE, Certainty.SEEN)
    assert found.says.endswith(", which the process itself holds by another open file")
    assert found.rest == ""


def test_another_kind_of_lock() -> None:
    """A lock of fcntl on the same file, for which another process waits, excludes no flock."""
    other, holder, pid = os.getppid(), os.getpid(), 2**22 + 1
    rows = [
        f"1: POSIX ADVISORY WRITE {other} fe:00:77 0 EOF",
        "1: -> OFDLCK ADVISORY WRITE -1 fe:00:77 0 EOF",
        f"2: FLOCK ADVISORY WRITE {holder} fe:00:77 0 EOF",
        f"2: -> FLOCK ADVISORY WRITE {pid} fe:00:77 0 EOF",
    ]
    locks = [row for row in map(parse_lock, rows) if row is not None]
    assert lock_holder(locks, FileLock(FLOCK, "", 0), pid, list) == holder
    assert lock_holder(locks, FileLock(OFD, "", 0), pid, list) == other


def test_locks_are_read_once_in_a_round(tmp_path: Path) -> None:
    """All ranks that are inspected see the same. Of a lock that another process has by now, no
    descriptor shows anything; but only the next round shows that."""
    locks = NodeLocks()
    with ExitStack() as opened:
        files = [opened.enter_context((tmp_path / name).open("w")) for name in ("a", "b")]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        held = locks.held(os.getpid())
        assert {one.path for one in held} >= {file.name for file in files}
        fcntl.flock(files[0], fcntl.LOCK_UN)
        assert locks.held(os.getpid()) is held
        locks.forget()
        [gone] = held - locks.held(os.getpid())
    assert gone.path == files[0].name


def test_a_unix_socket(tmp_path: Path) -> None:
    """A client of a server that does not answer: its own end has no path, and does not listen."""
    program = """
        import socket, sys
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        print("ready", flush=True)
        client.recv(1)
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        with suspect(program, tmp_path / "socket") as rank:
            found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.SOCKET, Certainty.LIKELY)
    assert found.topic == "a reply from another process"
    assert found.says == "its main thread has been in recv() from a socket"


def joins(function: str, argument: str = "None") -> str:
    """A program that joins a thread in this function of the C library, which waits for the end of a
    thread as for a lock that processes share."""
    return f"""
        import ctypes, os, sys
        c = ctypes.CDLL(None)
        c.fdopen.restype = ctypes.c_void_p
        thread, function = ctypes.c_ulong(), ctypes.cast(c.{function}, ctypes.c_void_p)
        c.pthread_create(ctypes.byref(thread), None, function, {argument})
        print("ready", flush=True)
        c.pthread_join(thread, None)
    """


def test_a_thread_that_is_joined(fifo: Path) -> None:
    """What the joined thread waits for, if that is known, is what the process waits for."""
    with suspect(joins("pause")) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.LOCK_INNER, Certainty.SEEN)
    assert found.topic == "another thread"
    assert "has been waiting for the end of its thread" in found.says
    stream = 'ctypes.c_void_p(c.fdopen(os.open(sys.argv[1], os.O_RDONLY), b"r"))'
    with suspect(joins("getc", stream), fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
    assert found.what == str(fifo)
    assert found.rest.startswith("its main thread waits for the end of its thread")


# -- sockets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["None", "20"])
def test_a_silent_server(timeout: str) -> None:
    """With a timeout the socket is polled; its peer is the same. Once the server has forked, which
    of both processes is to answer is not known, and none is named."""
    program = f"""
        import socket, sys
        client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        client.settimeout({timeout})
        print("ready", flush=True)
        client.recv(1)
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        suspect(program, server.getsockname()[1]) as rank,
        server.accept()[0] as client,
    ):
        address = "{}:{}".format(*server.getsockname())
        found = inspect(rank.pid)
        with subprocess.Popen(["sleep", "300"], pass_fds=[client.fileno()]) as other:
            shared = inspect(rank.pid)
            other.kill()
    assert (found.kind, found.certainty) == (WaitKind.SOCKET, Certainty.SEEN)
    assert (found.what, found.topic) == (address, f"a reply from {address}")
    assert found.holder is not None
    assert found.holder.pid == os.getpid()
    assert (shared.what, shared.holder) == (address, None)


def test_a_connection_that_is_not_accepted() -> None:
    """The backlog of the listening socket is full: the connection is never established."""
    program = """
        import socket, sys
        client = socket.socket()
        print("ready", flush=True)
        client.connect(("127.0.0.1", int(sys.argv[1])))
    """
    with socket.socket() as server, socket.socket() as one, socket.socket() as two:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (one, two):
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        address = "{}:{}".format(*server.getsockname())
        with suspect(program, server.getsockname()[1]) as rank:
            found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.SOCKET, Certainty.SEEN)
    assert (found.what, found.topic) == (address, f"a connection to {address}")


def test_an_event_loop_that_only_sleeps() -> None:
    """asyncio waits in epoll, where it watches two sockets that it made itself: that is no peer."""
    program = """
        import asyncio
        print("ready", flush=True)
        asyncio.run(asyncio.sleep(300))
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.UNKNOWN, Certainty.UNKNOWN)


def test_a_socket_next_to_that_of_a_child() -> None:
    """Two unix sockets made one after the other are of two servers; a child that sleeps has one of
    them. Which process is at the other end is not shown, so nothing is certain."""
    program = """
        import os, socket, sys, time
        server = socket.socket(socket.AF_UNIX)
        server.bind(b"\\0frd-test-%d" % os.getpid())
        server.listen()
        mine, other = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        mine.connect(server.getsockname())
        if not os.fork():
            mine.close()
            time.sleep(300)
        other.close()
        print("ready", flush=True)
        mine.recv(1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert found.certainty is not Certainty.SEEN


def test_what_an_epoll_instance_watches_is_read_apart() -> None:
    """The kernel keeps a reader waiting while a watched file hangs in another thread's poll. So it
    is read only where it is needed, with a deadline."""
    with select.epoll() as epoll, socket.socket() as one:
        epoll.register(one)
        assert open_file(os.getpid(), epoll.fileno(), {}).inode == 0
        assert read_watched(os.getpid(), epoll.fileno()) == (Polled(one.fileno()),)


def test_a_socket_that_takes_no_data() -> None:
    """The rank polls a connection until it can write: it waits for the peer to take data."""
    program = """
        import select, socket, sys
        client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        client.setblocking(False)
        try:
            while True:
                client.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        poll = select.poll()
        poll.register(client, select.POLLOUT)
        print("ready", flush=True)
        poll.poll()
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with suspect(program, port) as rank, server.accept()[0]:
            found = inspect(rank.pid)
    assert (found.kind, found.topic) == (WaitKind.SOCKET, f"127.0.0.1:{port} to take data")


# -- rights ----------------------------------------------------------------------------------------
# What is said of a process that the agent may not read: the missing right, and nothing else.


NOBODY = 65_534
SYS_PTRACE, DAC_READ_SEARCH = 19, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def only_capabilities(*kept: int) -> Iterator[None]:
    """This thread, of root, has only these effective capabilities."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, after = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    if os.geteuid() != 0:
        pytest.skip("only root can give up capabilities and take them again")
    _LIBC.capget(header, before)
    ctypes.memmove(after, before, ctypes.sizeof(before))
    after[0] = sum(1 << number for number in kept) & before[1]
    after[3] = 0
    assert _LIBC.capset(header, after) == 0
    try:
        yield
    finally:
        assert _LIBC.capset(header, before) == 0


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    process = subprocess.Popen(["sleep", "300"], user=NOBODY)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        ((), "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        ((SYS_PTRACE,), "CAP_DAC_READ_SEARCH"),
        ((DAC_READ_SEARCH,), "CAP_SYS_PTRACE"),
    ],
)
def test_another_user(stranger: int, kept: tuple[int, ...], missing: str) -> None:
    """The agent needs both capabilities for a process of another user."""
    with only_capabilities(*kept):
        found = inspect(stranger)
    assert (found.kind, found.certainty) == (WaitKind.NOT_ALLOWED, Certainty.UNKNOWN)
    assert found.says == (
        f"the agent (uid 0) may not read a process of uid {NOBODY}: "
        f"run the agent as uid {NOBODY}, or give it {missing}"
    )
    assert (found.what, found.holder, found.rest) == ("", None, "")


def test_another_group() -> None:
    """The kernel requires the same group, too: a container may have its own runAsGroup."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another group")
    with subprocess.Popen(["sleep", "300"], group=4000) as process:
        with only_capabilities():
            found = inspect(process.pid)
        process.kill()
    assert found.kind is WaitKind.NOT_ALLOWED
    assert found.says == (
        "the agent (gid 0) may not read a process of gid 4000: run the agent with that group "
        "(runAsGroup in Kubernetes), or give it CAP_SYS_PTRACE"
    )


def test_a_process_that_is_not_dumpable() -> None:
    """A process of the same user may protect itself."""
    program = """
        import ctypes, time
        ctypes.CDLL(None).prctl(4, 0)
        print("ready", flush=True)
        time.sleep(300)
    """
    with suspect(program) as rank, only_capabilities():
        found = inspect(rank.pid)
    assert found.kind is WaitKind.NOT_ALLOWED
    assert found.says.endswith("give the agent CAP_SYS_PTRACE")


def test_what_needs_no_right(stranger: int) -> None:
    """With both capabilities everything is seen of a process of another user. If it is stopped,
    that is seen without them, whatever it would do."""
    with only_capabilities(SYS_PTRACE, DAC_READ_SEARCH):
        assert inspect(stranger).kind is WaitKind.SLEEP
    os.kill(stranger, 19)
    with only_capabilities():
        assert inspect(stranger, enough=of_kind(WaitKind.STOPPED)).certainty is Certainty.SEEN


def test_a_kernel_with_yama(proc_files: Path) -> None:
    """A process of the same user: who may read it is said with the setting's value."""
    (proc_files / "sys/kernel/yama").mkdir(parents=True)
    (proc_files / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    (proc_files / "7").mkdir()
    uid, gid = os.geteuid(), os.getegid()
    (proc_files / "7/status").write_text(f"Uid:\t{uid} {uid}\nGid:\t{gid} {gid} {gid}\n")
    assert missing_right(7) == (
        f"the agent (uid {uid}) may not read this process of the same user: "
        "kernel.yama.ptrace_scope is 1: start the job with `frd-agent exec --allow-ptrace`, set it "
        "to 0, or give the agent CAP_SYS_PTRACE"
    )
