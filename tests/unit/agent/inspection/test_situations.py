"""Real processes, each blocked in one thing: kind, object, holder and certainty. And the thread
that inspects ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from frd.model import Certainty, NodeRawNs, WaitKind
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import Inspector
from frd_agent.inspection.reading.files import printable
from frd_agent.inspection.reading.threads import Call, ThreadSample, comm
from frd_agent.inspection.tracking import Tracker, Wait
from tests.world.daemons import until
from tests.world.run_dir import process_of
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


@pytest.mark.parametrize(
    ("reads", "waits"),
    [
        ("os.read, args=(fd, 1)", "a lock inside the process"),
        (
            "ctypes.PyDLL(None).read, args=(fd, ctypes.create_string_buffer(1), 1)",
            "the interpreter lock (GIL)",
        ),
    ],
    ids=["Python", "C that keeps the GIL"],
)
def test_a_thread_that_reads(fifo: Path, reads: str, waits: str) -> None:
    """The main thread joins a thread, which is in a read: likely that is what it waits for. If a C
    extension reads and keeps the GIL, the main thread asks for it over and over."""
    program = f"""
        import ctypes, os, sys, threading
        fd = os.open(sys.argv[1], os.O_RDONLY)
        thread = threading.Thread(target={reads})
        print("ready", flush=True)
        thread.start()
        thread.join()
    """
    with suspect(program, fifo) as rank:
        found = inspect(rank.pid)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.LIKELY)
    assert found.what == str(fifo)
    assert found.rest == f"its main thread waits for {waits}"


def test_a_file_that_is_sent_into_a_full_pipe(tmp_path: Path) -> None:
    """sendfile() reads a file and writes a pipe that no process empties: it waits for the pipe."""
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


def waits_of(*samples: ThreadSample) -> list[Wait]:
    """Of the main thread of process 7, after each sample."""
    tracker = Tracker()
    return [
        tracker.see(7, sample, NodeRawNs(at), lambda: (None, ""))
        for at, sample in enumerate(samples)
    ]


def test_a_number_of_a_process_that_is_used_again() -> None:
    """Another process gets the pid, and is in the same call: its wait starts again."""
    starts = (100, 100, 100, 900)
    *_, before, after = waits_of(
        *(ThreadSample(7, "S", 1, Call(230), started=started) for started in starts)
    )
    assert [(wait.samples, wait.since_ns) for wait in (before, after)] == [(3, 0), (1, 3)]


def test_a_thread_on_its_way_into_a_call() -> None:
    """It is put on a processor once more after its first sample, to go to sleep: it has not come
    out of the call. If it runs later, it has."""
    waits = waits_of(*(ThreadSample(7, "S", 1, Call(45), runs=runs) for runs in (4, 5, 5, 6)))
    assert [wait.woke for wait in waits] == [False, False, False, True]


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
    """It ends after an agent has found it, and its parent does not collect it."""
    with suspect("import time\nprint('ready', flush=True)\ntime.sleep(1)") as rank:
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


def test_an_error_does_not_end_inspections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Something unforeseen at the first look at /proc: the next one shows what the rank is in, and
    the log says it once."""
    inspector, looks = Inspector(Counters()), []
    look = inspector._processes.look

    def fails_at_first(now_s: float) -> None:
        looks.append(now_s)
        if len(looks) < 3:
            raise KeyError("unforeseen")
        look(now_s)

    monkeypatch.setattr(inspector._processes, "look", fails_at_first)
    monkeypatch.setattr("frd_agent.inspection.inspector.EVERY_S", 0.05)
    program = "import time; print('ready', flush=True); time.sleep(60)"
    try:
        with suspect(program) as rank:
            until_s, found, process = time.monotonic() + 20, None, process_of(rank.pid)
            while time.monotonic() < until_s and found is not WaitKind.SLEEP:
                found = inspector.ask(process, {rank.pid: 0}).waits_for.kind
                time.sleep(0.05)
            assert found is WaitKind.SLEEP
    finally:
        inspector.stop()
    assert [record.getMessage() for record in caplog.records] == ["a rank could not be inspected"]
