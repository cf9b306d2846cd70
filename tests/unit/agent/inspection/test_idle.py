"""Real processes that wait for a request, and others that wait for something else in such calls."""

from __future__ import annotations

import os
import pty
import socket
from pathlib import Path

import pytest

from frd.model import WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.inspector import RankOf
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
