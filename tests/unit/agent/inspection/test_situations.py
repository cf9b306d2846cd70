"""Real processes, each blocked in one thing: kind, object, holder and certainty."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

import pytest

from frd.model import Certainty, NodeRawNs, WaitKind
from frd_agent.inspection.reading.files import open_file, printable, read_watched
from frd_agent.inspection.reading.threads import Call, ThreadSample, comm
from frd_agent.inspection.tracking import Tracker
from tests.world.daemons import until
from tests.world.suspects import Inspection, inspect, of_kind, suspect


def test_read_of_a_fifo(fifo: Path) -> None:
    """The writer of a FIFO, this process, is named."""
    program = """
        import os, sys
        fd = os.open(sys.argv[1], os.O_RDONLY)
        print("ready", flush=True)
        os.read(fd, 1)
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
    assert (found.what, found.topic, found.pid) == (str(fifo), "data", rank.pid)
    assert (
        found.says == f"its main thread has been in read() of {fifo} ({found.fs} on {found.mount})"
    )
    assert found.holder is not None
    assert (found.holder.pid, found.holder.rank) == (os.getpid(), None)


def test_open_of_a_fifo(tmp_path: Path) -> None:
    """The path is read from the memory of the process, relative to its working directory."""
    os.mkfifo(tmp_path / "index")
    program = """
        import os, sys
        os.chdir(sys.argv[1])
        print("ready", flush=True)
        os.open("index", os.O_RDONLY)
    """
    with suspect(program, tmp_path) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_OPEN, Certainty.SEEN)
    assert (found.what, found.topic) == (f"{tmp_path}/index", "a file")


def test_a_full_pipe() -> None:
    """A rank whose standard output is not read: the process that should read it is named."""
    program = """
        import os
        print("ready", flush=True)
        os.write(1, bytes(1 << 20))
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_WRITE, Certainty.SEEN)
    assert found.topic == "a reader of its output"
    assert found.holder is not None
    assert found.holder.pid == os.getpid()
    assert "write() of standard output, a pipe that process" in found.says


LOCKS = {
    "flock": "fcntl.flock(file, fcntl.LOCK_EX)",
    "fcntl": "fcntl.lockf(file, fcntl.LOCK_EX)",
}


@pytest.mark.parametrize("how", LOCKS)
def test_a_file_lock(tmp_path: Path, fifo: Path, how: str) -> None:
    """A child of rank 7 holds the lock, and reads: rank and wait of the holder are named."""
    path = tmp_path / ".lock"
    holds = f"""
        import fcntl, os, sys
        if os.fork() == 0:
            file = open(sys.argv[1], "w")
            {LOCKS[how]}
            fd = os.open(sys.argv[2], os.O_RDONLY)
            print("ready", flush=True)
            os.read(fd, 1)
        os.wait()
    """
    waits = f"""
        import fcntl, sys
        file = open(sys.argv[1], "w")
        print("ready", flush=True)
        {LOCKS[how]}
    """
    with suspect(holds, path, fifo) as other, suspect(waits, path) as rank:
        ranks = {rank.pid: 0, other.pid: 7}
        found = inspect(rank.pid, ranks, enough=lambda found: bool(found.rest))
    assert (found.kind, found.certainty) == (WaitKind.LOCK_FILE, Certainty.SEEN)
    assert (found.what, found.topic) == (str(path), "a lock")
    assert found.holder is not None
    assert found.holder.rank == 7
    assert found.holder.pid not in (other.pid, rank.pid)
    assert f"has been in {how}() of {path} (" in found.says
    assert f"held by process {found.holder.process} (pid {found.holder.pid}, rank 7)" in found.says
    assert found.rest.startswith(f"the holder has been in read() of {fifo}")


@pytest.mark.parametrize("timeout", ["None", "20"])
def test_a_silent_server(timeout: str) -> None:
    """With a timeout the socket is polled; its peer is the same."""
    program = f"""
        import socket, sys
        client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        client.settimeout({timeout})
        print("ready", flush=True)
        client.recv(1)
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        with suspect(program, server.getsockname()[1]) as rank:
            found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.SOCKET, Certainty.SEEN)
    assert (found.what, found.topic) == (address, f"a reply from {address}")


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


@pytest.mark.parametrize(
    ("arguments", "topic", "what"),
    [
        ("", "a lock", "a lock inside the process"),
        ("timeout=1000", "another thread", "another thread of the process, with a time-out"),
    ],
)
def test_a_lock_inside_the_process(arguments: str, topic: str, what: str) -> None:
    """Which thread holds a lock of Python is not to be seen from outside. A call with a time-out
    may be one of torch that waits for another rank."""
    program = f"""
        import threading
        lock = threading.Lock()
        lock.acquire()
        print("ready", flush=True)
        lock.acquire({arguments})
    """
    with suspect(program) as rank:
        inspection = Inspection(rank.pid)
        found = inspection.until(lambda found: bool(found.says))
    assert (found.kind, found.certainty) == (WaitKind.LOCK_INNER, Certainty.SEEN)
    assert (found.topic, found.what, found.holder) == (topic, what, None)
    assert inspection.report.may_be_for_peer == bool(arguments)


def test_a_thread_that_reads(fifo: Path) -> None:
    """The main thread joins a thread, which is in a read: likely that is what it waits for."""
    program = """
        import os, sys, threading
        fd = os.open(sys.argv[1], os.O_RDONLY)
        thread = threading.Thread(target=os.read, args=(fd, 1))
        thread.start()
        print("ready", flush=True)
        thread.join()
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.LIKELY)
    assert found.what == str(fifo)
    assert found.rest == "its main thread waits for a lock inside the process"


def test_a_thread_that_keeps_the_interpreter_lock(fifo: Path) -> None:
    """A C extension reads and keeps the GIL: the main thread asks for it over and over."""
    program = """
        import ctypes, os, sys, threading
        fd = os.open(sys.argv[1], os.O_RDONLY)
        room = ctypes.create_string_buffer(1)
        print("ready", flush=True)
        threading.Thread(target=ctypes.PyDLL(None).read, args=(fd, room, 1)).start()
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.LIKELY)
    assert found.what == str(fifo)
    assert found.rest == "its main thread waits for the interpreter lock (GIL)"


def test_a_lock_between_processes() -> None:
    """Its only child does not wait for the lock, so it likely holds it."""
    program = """
        import multiprocessing, time
        context = multiprocessing.get_context("fork")
        lock, held = context.Lock(), context.Event()
        def hold():
            lock.acquire()
            held.set()
            time.sleep(300)
        child = context.Process(target=hold)
        child.start()
        held.wait()
        print("ready", child.pid, flush=True)
        lock.acquire()
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
        assert found.holder is not None
        assert f"/{found.holder.pid}/" in f"/{child_of(rank.pid)}/"
    assert (found.kind, found.certainty) == (WaitKind.LOCK_SHARED, Certainty.LIKELY)
    assert found.topic == "a lock"
    assert found.rest.startswith("the holder has been asleep")


def child_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


def test_a_queue_of_workers(fifo: Path) -> None:
    """One of three workers is in a read, the others wait for work: the read is the cause."""
    program = """
        import multiprocessing, os, sys
        context = multiprocessing.get_context("fork")
        work, results = context.Queue(), context.Queue()
        fd = os.open(sys.argv[1], os.O_RDONLY)
        def run(number):
            if number == 1:
                os.read(fd, 1)
            results.put(work.get())
        workers = [context.Process(target=run, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        print("ready", workers[1].pid, flush=True)
        results.get()
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid, enough=lambda found: found.rest == "2 other workers are idle")
        assert str(found.pid) in child_of(rank.pid).split()
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
    assert (found.what, found.topic) == (str(fifo), "its worker process")


def test_workers_that_all_hold_all_pipes() -> None:
    """Each of twelve forked workers reads a pipe that all others could write: there are as many
    ways from worker to worker as permutations, and the report comes nevertheless."""
    program = """
        import os
        pipes = [os.pipe() for _ in range(13)]
        for read, _ in pipes[1:]:
            if not os.fork():
                os.read(read, 1)
        print("ready", flush=True)
        os.read(pipes[0][0], 1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert found.kind is WaitKind.PIPE_WORKER
    assert len(found.rest) < 200


def test_workers_that_all_read_one_fifo(fifo: Path) -> None:
    """The workers hold the FIFO open for both directions, and all are in a read of it: none of them
    will write it, so it is the cause."""
    program = """
        import multiprocessing, os, sys
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        def run():
            os.read(os.open(sys.argv[1], os.O_RDWR), 1)
            results.put(0)
        for _ in range(3):
            context.Process(target=run).start()
        print("ready", flush=True)
        results.get()
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
    assert (found.what, found.rest) == (str(fifo), "2 other workers wait too")


def test_a_worker_that_is_stopped_while_it_has_no_work() -> None:
    """A worker that waits for work is stopped by a signal: it is not idle, it will take none."""
    program = """
        import multiprocessing, os, signal, time
        context = multiprocessing.get_context("fork")
        work, results = context.Queue(), context.Queue()
        worker = context.Process(target=lambda: results.put(work.get()))
        worker.start()
        time.sleep(0.5)
        os.kill(worker.pid, signal.SIGSTOP)
        work.put(1)
        print("ready", worker.pid, flush=True)
        results.get()
    """
    with suspect(program) as rank:
        found = inspect(rank.pid, enough=of_kind(WaitKind.STOPPED))
        assert str(found.pid) in child_of(rank.pid).split()


def test_a_child_that_sleeps_beside_a_pipe() -> None:
    """The rank reads a pipe that it could write itself; a forked child only has inherited it, and
    sleeps. It may have nothing to do with the wait."""
    program = """
        import os, time
        read, write = os.pipe()
        if not os.fork():
            time.sleep(300)
        print("ready", flush=True)
        os.read(read, 1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.LIKELY)


def test_a_file_that_is_sent_into_a_full_pipe(tmp_path: Path) -> None:
    """sendfile() reads a file and writes a pipe that nobody empties: it waits for the pipe."""
    source = tmp_path / "source"
    source.write_bytes(bytes(1 << 20))
    program = """
        import os, sys
        read, write = os.pipe()
        source = os.open(sys.argv[1], os.O_RDONLY)
        print("ready", flush=True)
        while True:
            os.sendfile(write, source, 0, 1 << 20)
    """
    with suspect(program, source) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_WRITE, Certainty.SEEN)
    assert found.what.startswith("pipe:")


def test_an_event_loop_that_only_sleeps() -> None:
    """asyncio waits in epoll, where it watches a pair of sockets of its own: that is no peer."""
    program = """
        import asyncio
        print("ready", flush=True)
        asyncio.run(asyncio.sleep(300))
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.UNKNOWN, Certainty.UNKNOWN)


def test_a_socket_beside_that_of_a_child() -> None:
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


def test_a_pool_of_workers(fifo: Path) -> None:
    """Two threads of the rank wait for the worker, one for its result and one for its end."""
    program = """
        import multiprocessing, os, sys
        def run(path):
            os.read(os.open(path, os.O_RDONLY), 1)
        pool = multiprocessing.get_context("fork").Pool(2)
        print("ready", flush=True)
        pool.map(run, sys.argv[1:2])
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid, enough=of_kind(WaitKind.FILE_READ))
        assert str(found.pid) in child_of(rank.pid).split()
    assert (found.certainty, found.what) == (Certainty.LIKELY, str(fifo))


def test_a_child_that_is_waited_for_with_a_time_out(fifo: Path) -> None:
    """Python sleeps again and again until the child has ended; the text says what that one does."""
    program = """
        import subprocess, sys
        child = subprocess.Popen(["cat", sys.argv[1]])
        print("ready", flush=True)
        child.wait(1000)
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid, enough=lambda found: bool(found.rest))
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.SEEN)
    assert f"has been in read() of {fifo}" in found.rest


def test_a_stopped_worker_that_no_wait_leads_to() -> None:
    """The rank waits for a reply over a unix socket, whose other end is not shown; a child is
    stopped, and the text says so."""
    program = """
        import os, signal, socket, time
        one, other = socket.socketpair()
        read, write = os.pipe()
        if not (child := os.fork()):
            one.close()
            other.close()
            os.write(write, b"closed")
            time.sleep(300)
        os.read(read, 6)
        os.kill(child, signal.SIGSTOP)
        print("ready", flush=True)
        one.recv(1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid, enough=lambda found: "stopped" in found.rest)
        assert f"(pid {child_of(rank.pid)})" in found.rest
    assert (found.kind, found.certainty) == (WaitKind.SOCKET, Certainty.LIKELY)


def test_what_an_epoll_instance_watches_is_read_apart() -> None:
    """The kernel keeps a reader waiting while a watched file hangs in another thread's poll. So it
    is read only where it is needed, with a deadline."""
    with select.epoll() as epoll, socket.socket() as one:
        epoll.register(one)
        assert open_file(os.getpid(), epoll.fileno(), {}).inode == 0
        assert read_watched(os.getpid(), epoll.fileno()) == (one.fileno(),)


def test_a_number_of_a_process_that_is_used_again() -> None:
    """Another process gets the pid, and is in the same call: its wait begins anew."""
    tracker = Tracker()
    waits = [
        tracker.see(
            7,
            ThreadSample(7, "S", 1, Call(230), started=started),
            NodeRawNs(at),
            lambda: (None, ""),
        )
        for at, started in enumerate((100, 100, 100, 900))
    ]
    assert [(wait.samples, wait.since_ns) for wait in waits[2:]] == [(3, 0), (1, 3)]


def test_a_mapped_file_with_a_strange_name(tmp_path: Path) -> None:
    """Its name has characters that end lines elsewhere; the kernel escapes the newline only."""
    path = tmp_path / "a\x0bb\x85c\u2028d"
    path.write_bytes(bytes(4096))
    program = """
        import ctypes, mmap, sys
        with open(sys.argv[1], "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        at = ctypes.addressof(ctypes.c_int.from_buffer(mapped))
        print("ready", flush=True)
        ctypes.CDLL(None).syscall(202, ctypes.c_void_p(at), 0, 0, None, None, 0)
    """
    with suspect(program, path) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.what) == (WaitKind.LOCK_SHARED, printable(str(path)))


def test_workers_that_have_no_work() -> None:
    """All workers are idle: the rank waits for them, and none is accused."""
    program = """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        work, results = context.Queue(), context.Queue()
        def run():
            results.put(work.get())
        for _ in range(2):
            context.Process(target=run).start()
        print("ready", flush=True)
        results.get()
    """
    with suspect(program) as rank:
        found = inspect(rank.pid, enough=lambda found: found.rest == "2 workers are idle")
    assert (found.kind, found.certainty) == (WaitKind.PIPE_WORKER, Certainty.SEEN)


def test_asleep() -> None:
    """A long sleep."""
    with suspect("import time; print('ready', flush=True); time.sleep(300)") as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.SEEN)


def test_a_child() -> None:
    """The child is named, and what it does."""
    program = """
        import subprocess
        child = subprocess.Popen(["sleep", "300"])
        print("ready", flush=True)
        child.wait()
    """
    with suspect(program) as rank:
        found = inspect(rank.pid, enough=lambda found: bool(found.rest))
        assert found.holder is not None
        assert str(found.holder.pid) == child_of(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.CHILD, Certainty.SEEN)
    assert found.topic == f"its child process {found.holder.pid}"
    assert found.rest.startswith(
        f"its child process sleep (pid {found.holder.pid}) has been asleep"
    )


def test_stopped() -> None:
    """SIGSTOP, whatever the process was in."""
    with suspect("import time; print('ready', flush=True); time.sleep(300)") as rank:
        rank.send_signal(signal.SIGSTOP)
        found = inspect(rank.pid, enough=of_kind(WaitKind.STOPPED))
    assert found.certainty is Certainty.SEEN
    assert found.says == "its main thread has been stopped by a signal (state T)"


FREEZERS = {
    "/sys/fs/cgroup/freezer": ("freezer.state", "FROZEN", "THAWED"),
    "/sys/fs/cgroup/unified": ("cgroup.freeze", "1", "0"),
    "/sys/fs/cgroup": ("cgroup.freeze", "1", "0"),
}


@pytest.mark.parametrize("does", ["while True: pass", "time.sleep(300)", "lock.acquire()"])
@pytest.mark.parametrize("root", FREEZERS)
def test_frozen(root: str, does: str) -> None:
    """A paused container: neither a page fault, nor asleep, nor in a lock."""
    program = f"""
        import threading, time
        lock = threading.Lock()
        lock.acquire()
        print("ready", flush=True)
        {does}
    """
    name, on, off = FREEZERS[root]
    group = Path(root) / f"frd-test-{os.getpid()}"
    if not (group.parent / "cgroup.procs").exists():
        pytest.skip(f"{root}: no control group")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (group / name).exists():
            pytest.skip(f"{root}: no freezer")
        with suspect(program) as rank:
            (group / "cgroup.procs").write_text(str(rank.pid))
            (group / name).write_text(on)
            try:
                found = inspect(rank.pid, enough=of_kind(WaitKind.STOPPED))
            finally:
                (group / name).write_text(off)
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert found.certainty is Certainty.SEEN
    assert found.topic == "its control group to be thawed"


def test_a_zombie() -> None:
    """It has ended, and its parent does not collect it."""
    with suspect("print('ready', flush=True)") as rank:
        found = inspect(rank.pid, enough=of_kind(WaitKind.ZOMBIE))
    assert found.certainty is Certainty.SEEN


def test_computing() -> None:
    """A loop that never ends waits for nothing."""
    with suspect("print('ready', flush=True)\nwhile True: pass") as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.topic) == (WaitKind.ON_CPU, "nothing")


def test_gone() -> None:
    """Nothing is said of a process that is not there."""
    assert comm(2**22 + 1, 2**22 + 1) == ""
    found = inspect(2**22 + 1, enough=of_kind(WaitKind.UNKNOWN))
    assert (found.says, found.certainty) == ("", Certainty.UNKNOWN)
