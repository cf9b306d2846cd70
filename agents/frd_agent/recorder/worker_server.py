"""Asks torch's worker server in a rank, over its unix socket.

The answer's kind is the point: a rank whose process is gone refuses, one that is stopped, swapped
out or dying keeps silent, and one that is well but does not know the question says so. Three
exceptions keep the three apart, because the first two are evidence about the rank and the third is
not. Every call ends within its timeout and holds at most `max_bytes`, whatever the peer does.

The HTTP is spoken here, in the few lines that one request per connection needs: the server is
cpp-httplib, which closes a connection after 30 requests anyhow, and a rank is asked about once a
second. No handler but `dump_traceback` needs the rank's GIL.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from frd.errors import FrdError, ServiceUnavailable

MAX_BYTES = 64 * 1024 * 1024
"""Default bound on an answer: a ring of 100,000 entries as JSON."""
_MAX_HEAD = 64 * 1024
_QUEUE_FULL_S = 0.02

Address: TypeAlias = str | os.PathLike[str]


class Refused(ServiceUnavailable):
    """Nobody listens on the socket: the process is gone."""


class Silent(ServiceUnavailable):
    """The socket takes the question, but no answer came in time."""


class HandlerFailed(FrdError):
    """An answer that is none: an HTTP error, too large, cut off. `status` is 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of one rank. Holds no connection, so it may be kept and shared."""

    path: Address
    timeout_s: float = 5.0
    """For a whole exchange; a dump of 20,000 entries takes the rank a third of a second."""
    max_bytes: int = MAX_BYTES

    async def names(self) -> tuple[str, ...]:
        """What the rank can be asked, sorted."""
        body = await self._exchange("GET", "/handler/", self.timeout_s)
        try:
            return tuple(sorted(msgspec.json.decode(body, type=list[str])))
        except msgspec.MsgspecError as error:
            raise HandlerFailed(f"{self.path}: list of handlers ({error}): not torch's?") from error

    async def ask(self, name: str, *, timeout_s: float | None = None, **params: str) -> bytes:
        """The body of a handler's answer.

        Raises:
            Refused: the process is gone.
            Silent: no answer within `timeout_s` (default: the client's).
            HandlerFailed: the server answered with an error, or with more than `max_bytes`.
        """
        target = f"/handler/{quote(name, safe='')}"
        if params:
            target += f"?{urlencode(params)}"
        return await self._exchange("POST", target, timeout_s or self.timeout_s)

    async def _exchange(self, method: str, target: str, timeout_s: float) -> bytes:
        request = (
            f"{method} {target} HTTP/1.1\r\n"
            "Host: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # this process is short of descriptors
            raise HandlerFailed(f"{self.path}: {target}: {error}: ask again") from error
        connection.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect(connection)
                reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_HEAD)
                try:
                    writer.write(request.encode("ascii"))
                    return await self._answer(reader, target)
                finally:
                    writer.transport.abort()
        except TimeoutError as error:
            raise Silent(f"{self.path}: {target}: no answer within {timeout_s:g} s") from error
        except asyncio.IncompleteReadError as error:
            raise HandlerFailed(f"{self.path}: {target}: answer cut off: ask again") from error
        except asyncio.LimitOverrunError as error:
            raise HandlerFailed(f"{self.path}: {target}: endless header: not torch's?") from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise Refused(f"{self.path}: nothing listens: the process is gone") from error
        except OSError as error:
            raise HandlerFailed(f"{self.path}: {target}: {error}: ask again") from error
        finally:
            connection.close()

    async def _connect(self, connection: socket.socket) -> None:
        """Waits while the server's accept queue is full, which asyncio takes for connected.

        The queue of a stopped process fills up with our own earlier questions.
        """
        while True:
            try:
                connection.connect(os.fspath(self.path))
            except BlockingIOError:
                await asyncio.sleep(_QUEUE_FULL_S)
            else:
                return

    async def _answer(self, reader: asyncio.StreamReader, target: str) -> bytes:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")
        version, _, rest = status_line.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise HandlerFailed(f"{self.path}: {target}: {status_line[:64]!r}: no HTTP")
        body = await self._body(reader, target, lines)
        if code != "200":
            said = body[:200].decode("utf-8", "replace").strip()
            raise HandlerFailed(f"{self.path}: {target}: HTTP {code}: {said}", int(code))
        return body

    async def _body(self, reader: asyncio.StreamReader, target: str, lines: list[str]) -> bytes:
        """As long as the header says, or up to the end of the connection where it says nothing."""
        size = -1
        for line in lines:
            name, _, value = line.partition(":")
            if name.lower() == "content-length" and value.strip().isdecimal():
                size = int(value)
            if name.lower() == "transfer-encoding":
                raise HandlerFailed(f"{self.path}: {target}: {line[:64]}: cannot be read")
        if size > self.max_bytes:
            raise self._too_large(target)
        if size >= 0:
            return await reader.readexactly(size)
        body = bytearray()
        while block := await reader.read(_MAX_HEAD):
            body += block
            if len(body) > self.max_bytes:
                raise self._too_large(target)
        return bytes(body)

    def _too_large(self, target: str) -> HandlerFailed:
        return HandlerFailed(
            f"{self.path}: {target}: more than {self.max_bytes} bytes: "
            "use a smaller TORCH_FR_BUFFER_SIZE"
        )
