"""Real processes that wait for a request, and others that wait for something else in such calls."""

from __future__ import annotations

import os
import pty
import socket
from pathlib import Path
from typing import TypeAlias

import pytest

from frd.model import Certainty, NodeRawNs, WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.inspector import RankOf
from frd_agent.inspection.reading.threads import Call, ThreadSample
from frd_agent.inspection.syscalls import Class, Syscall
from frd_agent.inspection.targets import Target
from frd_agent.inspection.tracking import Tracker
from frd_agent.proc import TICKS_PER_S
from tests.world.suspects import Inspection, suspect

SERVES = """
    import socket, sys
    server = socket.{}
    with open(sys.argv[1], "w") as file:
        file.write(str(server.getsockname()[-1]))
    print("ready", flush=True)
    client = server.accept()[0]
    client.recv(1)
"""
LOOP = """
    import asyncio, socket, sys
    async def main():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        {}
        print("ready", flush=True)
        await asyncio.sleep(300)
    asyncio.run(main())
"""
TERMINAL = """
    import os, sys
    terminal = os.open(sys.argv[1], os.O_RDWR)
    print("ready", flush=True)
    os.read(terminal, 1)
"""
QUEUES = """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    queues = [context.Queue() for _ in range({})]
    for queue in queues:
        context.Process(target=queue.get).start()
    print("ready", flush=True)
"""


def report_of(pid: int, ranks: RankOf | None = None, *, topic: str = "") -> WaitReport:
    """Of process `pid`, which is rank 0, once its wait is known, with this in its topic."""
    inspection = Inspection(pid, ranks)

    def is_known(found: WaitsFor) -> bool:
        return bool(found.says) and topic in found.topic

    inspection.until(is_known)
    return inspection.report


def test_a_server_between_connections(tmp_path: Path) -> None:
    """It waits in accept()."""
    with suspect(SERVES.format('create_server(("127.0.0.1", 0))'), tmp_path / "port") as rank:
        assert report_of(rank.pid).is_idle


@pytest.mark.parametrize(
    ("number", "is_idle"), [(None, True), (1, False)], ids=["no rank", "another rank"]
)
def test_a_server_between_requests(tmp_path: Path, number: int | None, is_idle: bool) -> None:
    """It waits for the next request of a client. If that is another rank, it may wait for it."""
    path = tmp_path / "port"
    with (
        suspect(SERVES.format('create_server(("127.0.0.1", 0))'), path) as rank,
        socket.create_connection(("127.0.0.1", int(path.read_text()))) as client,
    ):
        found = report_of(rank.pid, {rank.pid: 0, os.getpid(): number}, topic="request")
        address = "{}:{}".format(*client.getsockname())
    assert found.is_idle == is_idle
    assert found.waits_for.topic == f"a request from {address}"
    assert found.waits_for.kind is WaitKind.SOCKET


def test_a_server_whose_client_is_not_seen(tmp_path: Path) -> None:
    """No process of the node has the other end, as if it were on another node: a rank may be there.
    Here it is on its way from one process to another."""
    path, [one, other] = tmp_path / "port", socket.socketpair()
    with (
        one,
        other,
        suspect(SERVES.format('create_server(("127.0.0.1", 0))'), path) as rank,
    ):
        with socket.create_connection(("127.0.0.1", int(path.read_text()))) as client:
            socket.send_fds(one, [b"x"], [client.fileno()])
        assert not report_of(rank.pid, topic="request").is_idle


POLLS = """
    import os, select, socket, sys
    server, poll, kept = socket.create_server(("127.0.0.1", 0)), select.poll(), []
    {}
    print("ready", flush=True)
    poll.poll()
"""
MANY = """for _ in range(64):
        kept.append(server.dup())
    kept.append(socket.create_connection(server.getsockname()))
    for one in kept:
        poll.register(one, select.POLLIN)
    accepted = server.accept()"""
NEIGHBOURS = """while not kept or os.fstat(kept[-1].fileno()).st_ino - number != 1:
        kept += socket.socket(socket.AF_UNIX), socket.socket(socket.{})
        number = os.fstat(kept[-2].fileno()).st_ino
    for one in kept[-2:]:
        if one.family == socket.AF_UNIX:
            one.connect(sys.argv[1])
        else:
            one.bind(("127.0.0.1", 0))
            one.listen()
        poll.register(one, select.POLLIN)
    poll.register(server, select.POLLIN)"""


@pytest.mark.parametrize(
    "does",
    [MANY, NEIGHBOURS.format("AF_UNIX"), NEIGHBOURS.format("AF_INET")],
    ids=["behind many others", "two clients", "a client and a server"],
)
def test_a_server_that_waits_for_a_reply_as_well(tmp_path: Path, does: str) -> None:
    """One of the sockets that it polls is a connection that it has made: that is behind more than
    are looked at, or its number is next to that of another socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "unix"))
        server.listen()
        with suspect(POLLS.format(does), tmp_path / "unix") as rank:
            assert not report_of(rank.pid).is_idle


def test_a_server_of_a_unix_socket(tmp_path: Path) -> None:
    """A connection of a server has the path that it was made to."""
    path = tmp_path / "path"
    server = f'socket(socket.AF_UNIX); server.bind("{tmp_path}/unix"); server.listen()'
    with (
        suspect(SERVES.format(server).replace("[-1]", ""), path) as rank,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(tmp_path / "unix"))
        assert report_of(rank.pid, topic="client").is_idle


def test_a_client_waits_for_a_reply() -> None:
    """It made the connection itself."""
    program = """
        import socket, sys
        client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        print("ready", flush=True)
        client.recv(1)
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        suspect(program, server.getsockname()[1]) as rank,
        server.accept()[0],
    ):
        found = report_of(rank.pid)
    assert not found.is_idle
    assert found.waits_for.topic.startswith("a reply from")


@pytest.mark.parametrize(
    ("does", "is_idle"),
    [
        ("pass", True),
        ("kept = await asyncio.open_connection(*server.sockets[0].getsockname())", False),
        ("server.close()", False),
    ],
    ids=["server", "server and client", "no server"],
)
def test_an_event_loop(does: str, is_idle: bool) -> None:
    """A server's loop waits for a request. With a connection that it made itself, it may wait for
    a reply; and without a server, for whatever its own threads do."""
    with suspect(LOOP.format(does)) as rank:
        assert report_of(rank.pid).is_idle == is_idle


def test_a_terminal() -> None:
    """A program that asks its user."""
    main, terminal = pty.openpty()
    try:
        with suspect(TERMINAL, os.ttyname(terminal)) as rank:
            found = report_of(rank.pid)
    finally:
        os.close(main)
        os.close(terminal)
    assert found.is_idle
    assert found.waits_for.topic == "input"


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_empty_queue_of_the_parent(ranks: int) -> None:
    """A worker gets its work from its parent, by a queue. A second rank that was forked later could
    write to that queue, too: then it is not proven what the first one waits for."""
    with suspect(QUEUES.format(ranks)) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        numbers = {int(pid): number for number, pid in enumerate(children)}
        assert report_of(int(children[0]), numbers).is_idle == (ranks == 1)


def test_a_file_of_the_parent(fifo: Path) -> None:
    """A FIFO has a path: what comes through it is data, even if a parent writes it."""
    program = """
        import os, sys
        fd = os.open(sys.argv[1], os.O_RDONLY)
        print("ready", flush=True)
        os.read(fd, 1)
    """
    with suspect(program, fifo) as rank:
        assert not report_of(rank.pid).is_idle


# -- real processes that poll, or look as if they did; and for whose lock --------------------------


HOLDS = """
    import sys, time
    from filelock import FileLock
    locks = [FileLock(path) for path in sys.argv[1:]]
    for lock in locks:
        lock.acquire()
    print("ready", flush=True)
    time.sleep(300)
"""
WAITS = """
    import sys
    from filelock import FileLock
    print("ready", flush=True)
    FileLock(sys.argv[1]).acquire()
"""
LOOKS = """
    import os, select, sys, time
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        {}
"""
OTHERWISE = """
    import fcntl, sys, time
    files = [open(path, "a+") for path in sys.argv[1:]]
    fcntl.flock(files[0], fcntl.LOCK_SH)
    fcntl.lockf(files[1], fcntl.LOCK_EX)
    print("ready", flush=True)
    time.sleep(300)
"""
S = 1_000_000_000
POLLING = "its main thread has been polling (asleep in {}(), awake again and again)"


def test_a_lock_of_the_package_filelock(tmp_path: Path) -> None:
    """It never blocks, and has the file open for moments. Rank 3 is the only other rank that has
    locked a file, so it is likely that file; a lock for reading, which others may have too, does
    not count, nor does one of a database."""
    path = tmp_path / "squad.lock"
    with (
        suspect(HOLDS, path) as other,
        suspect(OTHERWISE, tmp_path / "index", tmp_path / "database") as reader,
        suspect(WAITS, path) as rank,
    ):
        inspection = Inspection(rank.pid, {rank.pid: 0, other.pid: 3, reader.pid: 4})
        found = inspection.until(lambda found: found.rest != "")
        assert inspection.report.is_poll
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.LIKELY)
    assert (found.what, found.topic) == (str(path), "a lock")
    assert found.holder is not None
    assert (found.holder.pid, found.holder.rank) == (other.pid, 3)
    assert found.says == (
        f"{POLLING.format('clock_nanosleep')}, likely for a lock of {path} ({found.fs} on "
        f"{found.mount}), held by process python (pid {other.pid}, rank 3)"
    )
    assert found.rest == "the holder has been asleep (clock_nanosleep)"


@pytest.mark.parametrize(
    ("first", "second"), [(3, 5), (None, None)], ids=["two ranks hold locks", "another job's ranks"]
)
def test_a_holder_that_is_not_known(tmp_path: Path, first: int | None, second: int | None) -> None:
    """Two ranks have locked a file each, or ranks of another job have: no holder is named."""
    path = tmp_path / "squad.lock"
    with (
        suspect(HOLDS, path) as one,
        suspect(HOLDS, tmp_path / "other.lock") as two,
        suspect(WAITS, path) as rank,
    ):
        inspection = Inspection(rank.pid, {rank.pid: 0, one.pid: first, two.pid: second})
        found = inspection.until(lambda _: inspection.report.is_poll)
    assert (found.holder, found.certainty) == (None, Certainty.SEEN)
    assert found.topic == "what it polls for"


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    """Which of both files a rank polls for is not known, but whose locks they are."""
    paths = tmp_path / "a.lock", tmp_path / "b.lock"
    with suspect(HOLDS, *paths) as other, suspect(WAITS, paths[1]) as rank:
        inspection = Inspection(rank.pid, {rank.pid: 0, other.pid: 3})
        found = inspection.until(lambda found: found.holder is not None)
    assert (found.what, found.certainty) == ("", Certainty.LIKELY)
    assert "likely for a lock of one of 2 files, held by process" in found.says


@pytest.mark.parametrize(
    ("sleeps", "call"),
    [
        ("time.sleep(0.02)", "clock_nanosleep"),
        ("select.select([], [], [], 0.02)", "pselect"),
        ("select.poll().poll(20)", "poll"),
        ("epoll = select.epoll(); epoll.poll(0.02); epoll.close()", "epoll_wait"),
    ],
)
def test_a_rank_that_looks_for_a_file(tmp_path: Path, sleeps: str, call: str) -> None:
    """Other ranks have no lock; what it looks for is not to be seen."""
    with suspect(LOOKS.format(sleeps), tmp_path / "done") as rank:
        inspection = Inspection(rank.pid)
        found = inspection.until(lambda _: inspection.report.is_poll)
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.SEEN)
    assert (found.holder, found.what) == (None, "")
    assert call in found.says


NANOSLEEP = Target(Syscall("clock_nanosleep", Class.SLEEP))
OPEN = Target(Syscall("openat", Class.OPEN), path="/data/squad.lock")
READ = Target(Syscall("read", Class.READ), path="/data/shard-3")

Seen: TypeAlias = tuple[Target | None, int, float]
"""What a thread is in, how often it has run, and its processor time so far."""


def polls(*samples: Seen, state: str = "S") -> list[tuple[bool, int]]:
    """Whether the main thread of process 7 polls, and for how many seconds, by samples of one a
    second. `state`: of the last one, if it is in a call."""
    tracker, found = Tracker(), []
    for at, (target, runs, cpu_s) in enumerate(samples):
        shown = "R" if target is None else state if at == len(samples) - 1 else "S"
        ticks = int(cpu_s * TICKS_PER_S)
        sample = ThreadSample(7, shown, ticks, Call(230) if target else None, runs=runs)
        wait = tracker.see(7, sample, NodeRawNs(at * S), lambda: (target, "python"))  # noqa: B023
        found.append((wait.polls, (at * S - wait.since_ns) // S))
    return found


def test_one_long_sleep() -> None:
    """It does not wake, or once, for a signal: it is asleep, and polls for nothing."""
    assert not any(is_poll for is_poll, _ in polls(*[(NANOSLEEP, 4, 0)] * 9))
    once = [(NANOSLEEP, 4 + (at > 4), 0) for at in range(9)]
    assert not any(is_poll for is_poll, _ in polls(*once))


def test_two_signals_prove_no_poll_for_ever() -> None:
    """A sleep without end, out of which two signals wake the rank: it is soon asleep again."""
    twice = polls(*[(NANOSLEEP, 4 + (at > 3) + (at > 6), 0) for at in range(60)])
    assert not any(is_poll for is_poll, _ in twice[15:])
    assert twice[-1] == (False, 59)


def test_short_sleeps_between_work() -> None:
    """A thread that uses a fifth of a core works; with a hundredth of one it only looks."""
    works, looks = ([(NANOSLEEP, 20 * at, share * at) for at in range(9)] for share in (0.2, 0.01))
    assert not any(is_poll for is_poll, _ in polls(*works))
    assert [is_poll for is_poll, _ in polls(*looks)] == [False] * 2 + [True] * 7


@pytest.mark.parametrize(("away", "most"), [(None, 2), (OPEN, 1)], ids=["running", "in a call"])
def test_a_poll_that_is_sampled_while_it_is_awake(away: Target | None, most: int) -> None:
    """Two samples show it running, or one in a call: it is the same poll. One more ends it."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(12)]
    end = 4 + most
    samples[4:end] = [(away, *one[1:]) for one in samples[4:end]]
    assert polls(*samples)[2:] == [(True, at) for at in range(2, 12)]
    samples[end] = (away, *samples[end][1:])
    assert polls(*samples)[end - 1 : end + 2] == [(True, end - 1), (False, 0), (False, 0)]


def test_a_read_that_blocks_between_short_sleeps() -> None:
    """A loader that tries again after each error: it reads, and polls for nothing."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(4)]
    for at in range(4, 16, 3):
        samples += [(READ, 20 * at, 0.01 * at)] * 2 + [(NANOSLEEP, 20 * at + 40, 0.01 * at)]
    assert not any(is_poll for is_poll, _ in polls(*samples)[5:])


def test_a_signal_that_stops_a_rank_ends_its_poll() -> None:
    """A stopped thread is not awake."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(5)]
    assert polls(*samples, state="T")[-2:] == [(True, 3), (False, 0)]
