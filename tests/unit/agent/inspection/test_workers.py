"""Real processes that wait for their workers and children."""

from __future__ import annotations

from pathlib import Path

from frd.model import Certainty, WaitKind
from tests.world.suspects import inspect, of_kind, suspect


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


def loader(does: str, then: str = "pass", workers: int = 3) -> str:
    """A program that waits for a result of its workers, each of which does this before it waits
    for work."""
    return f"""
        import multiprocessing, os, signal, sys, time
        context = multiprocessing.get_context("fork")
        work, results = context.Queue(), context.Queue()
        def run(number):
            {does}
            results.put(work.get())
        workers = [context.Process(target=run, args=(number,)) for number in range({workers})]
        for worker in workers:
            worker.start()
        {then}
        print("ready", flush=True)
        results.get()
    """


def test_a_queue_of_workers(fifo: Path) -> None:
    """One of three workers is in a read, the others wait for work: the read is the cause."""
    program = loader("if number == 1: os.read(os.open(sys.argv[1], os.O_RDONLY), 1)")
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
    with suspect(loader("os.read(os.open(sys.argv[1], os.O_RDWR), 1)"), fifo) as rank:
        found = inspect(rank.pid, enough=lambda found: found.certainty is Certainty.SEEN)
    assert (found.kind, found.certainty) == (WaitKind.FILE_READ, Certainty.SEEN)
    assert (found.what, found.rest) == (str(fifo), "2 other workers wait too")


def test_a_worker_that_is_stopped_while_it_has_no_work() -> None:
    """A worker that waits for work is stopped by a signal: it is not idle, it will take none."""
    stopped = "time.sleep(0.5); os.kill(worker.pid, signal.SIGSTOP); work.put(1)"
    with suspect(loader("pass", stopped, workers=1)) as rank:
        found = inspect(rank.pid, enough=of_kind(WaitKind.STOPPED))
        assert str(found.pid) in child_of(rank.pid).split()


def test_a_child_that_sleeps_next_to_a_pipe() -> None:
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
        found = inspect(rank.pid, enough=lambda found: "child" in found.rest)
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.LIKELY)
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


def test_a_stream_of_messages() -> None:
    """The rank reads a hundred messages a second from its worker: it waits for none of them."""
    program = """
        import os, time
        read, write = os.pipe()
        if not os.fork():
            os.close(read)
            while True:
                os.write(write, b"x")
                time.sleep(0.01)
        os.close(write)
        print("ready", flush=True)
        while True:
            os.read(read, 1)
    """
    with suspect(program) as rank:
        found = inspect(rank.pid)
    assert found.certainty is not Certainty.SEEN
    assert "times a second" in found.rest


def test_workers_that_have_no_work() -> None:
    """All workers are idle: the rank waits for them, and none is accused."""
    with suspect(loader("pass", workers=2)) as rank:
        found = inspect(rank.pid, enough=lambda found: found.rest == "2 workers are idle")
    assert (found.kind, found.certainty) == (WaitKind.PIPE_WORKER, Certainty.SEEN)


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
