"""A network between two daemons that a test can break: a TCP proxy on loopback.

It passes bytes both ways and, on command, cuts (nothing passes, connections stay, as when a cable
is pulled), resets all connections, delays each way with jitter, or limits the rate. Bytes that
wait take bounded space; beyond it the sender blocks. The proxy runs in a thread with its own
event loop; every method may be called from any thread. It knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from frd.address import split_address

_CHUNK_BYTES: Final = 16 * 1024
_CHUNKS: Final = 16
"""Chunks that may wait, in one direction of one connection."""
_START_S: Final = 10.0


@dataclass(slots=True)
class _Link:
    """One connection."""

    is_marked: bool = False


@dataclass(slots=True)
class Way:
    """One direction. Changes apply to later data."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Added to the delay, at random up to this; the order of data is kept."""
    bytes_per_s: float = math.inf


class Proxy:
    """Listens on `address` while the context lasts, and connects each caller to `target`.

    Connections whose callers send `mark`, in one piece, can be cut while others are not.
    """

    def __init__(self, target: str, mark: bytes = b"") -> None:
        self.address = ""
        self.there = Way()
        self.back = Way()
        self.connections = 0
        """All connections that were ever made."""
        self._target = split_address(target)
        self._mark = mark
        self._cuts_marked = False
        self._dice = random.Random(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._passing = asyncio.Event()
        self._passing.set()
        self._transports: set[asyncio.WriteTransport] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(_START_S), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop.set)
        self._thread.join()

    def cut(self, *, marked: bool = False) -> None:
        """From now on nothing passes; connections stay open, and new ones get no answer. With
        `marked`, on connections with the mark only."""
        self._cuts_marked = marked
        self._call(self._passing.clear)

    def heal(self) -> None:
        """Data passes again, first the data that waited."""
        self._call(self._passing.set)

    def reset(self) -> None:
        """Reset every connection; data that waited is lost."""
        self._call(self._abort)

    def _call(self, what: Callable[[], None]) -> None:
        """Call it in the proxy's thread; returns once it is done."""
        done = threading.Event()

        def act() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        self._listening.set()
        await self._stop.wait()
        server.close()
        self._abort()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, near: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(near, caller))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _abort(self) -> None:
        linger = struct.pack("ii", 1, 0)
        for transport in self._transports:
            sock: socket.socket = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it is closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()

    async def _connect(self, near: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far, callee = await asyncio.open_connection(*self._target)
        except OSError:
            caller.transport.abort()
            return
        ends = {caller.transport, callee.transport}
        self._transports |= ends
        link = _Link()
        try:
            await asyncio.gather(
                self._pass(near, callee, self.there, link, self._mark),
                self._pass(far, caller, self.back, link),
            )
        except OSError:
            pass  # one end is gone: so is the other
        finally:
            self._transports -= ends
            for transport in ends:
                transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Way,
        link: _Link,
        mark: bytes = b"",
    ) -> None:
        """One direction of a connection, until its end; `mark` marks the connection."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        filling = asyncio.create_task(self._take(reader, waiting, way))
        try:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - self._loop.time())
                link.is_marked |= bool(mark) and mark in data
                if link.is_marked or not self._cuts_marked:
                    await self._passing.wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / way.bytes_per_s)
            if writer.can_write_eof():
                writer.write_eof()
            await filling
        finally:
            filling.cancel()

    async def _take(
        self, reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]], way: Way
    ) -> None:
        """Data, and when it may leave; the end is an empty chunk."""
        last = 0.0
        while True:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            delay_s = way.delay_s + self._dice.uniform(0, way.jitter_s)
            last = max(last, self._loop.time() + delay_s)
            await waiting.put((last, data))
            if not data:
                return
