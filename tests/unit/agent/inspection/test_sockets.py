"""Real processes that wait for sockets, or look as if they did."""

from __future__ import annotations

import os
import select
import socket

import pytest

from frd.model import Certainty, WaitKind
from frd_agent.inspection.reading.files import open_file, read_watched
from frd_agent.inspection.reading.memory import Polled
from tests.world.suspects import inspect, suspect


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
