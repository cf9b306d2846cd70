"""Queries torch's worker server in a rank, over its unix socket.

The kind of failure is evidence, and an exception each keeps them apart: the process is gone
(`Refused`); it is stopped, swapped out or dying (`Silent`); it is well but does not know the
handler (`HandlerFailed`), which says nothing about the rank. Every call ends within its timeout
and holds at most twice `max_bytes`, whatever the peer does.

One connection per request: the server is cpp-httplib, which closes a connection after 30 requests
anyway, and a rank is queried about once a second. The answer is read to its end by asyncio, which
bounds time and size, and parsed by http.client, which the standard library brings along. No handler
but `dump_traceback` needs the rank's GIL.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TypeAlias, cast
from urllib.parse import quote, urlencode

import msgspec

from frd.errors import FrdError, ServiceUnavailable

MAX_BYTES = 64 * 1024 * 1024
"""Default bound on an answer: a ring of 100,000 entries as JSON."""
_MAX_HEAD = 64 * 1024
_BLOCK_BYTES = 256 * 1024
_QUEUE_FULL_S = 0.02

Address: TypeAlias = str | os.PathLike[str]


class Refused(ServiceUnavailable):
    """No process listens on the socket: the rank is gone."""


class Silent(ServiceUnavailable):
    """The socket accepts the request, but no answer came in time."""


class HandlerFailed(FrdError):
    """An unusable answer: an HTTP error, too large, cut off. `status` is 0 without one."""

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
        """The names of the rank's handlers, sorted."""
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
                await asyncio.get_running_loop().sock_sendall(connection, request.encode("ascii"))
                answer = await self._read(connection, target)
        except TimeoutError as error:
            raise Silent(f"{self.path}: {target}: no answer within {timeout_s:g} s") from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise Refused(f"{self.path}: nothing listens: the process is gone") from error
        except OSError as error:
            raise HandlerFailed(f"{self.path}: {target}: {error}: ask again") from error
        finally:
            connection.close()
        return self._body(answer, target)

    async def _connect(self, connection: socket.socket) -> None:
        """Waits while the server's accept queue is full, which asyncio takes for connected.

        The queue of a stopped process fills up with the agent's own earlier requests.
        """
        while True:
            try:
                connection.connect(os.fspath(self.path))
            except BlockingIOError:
                await asyncio.sleep(_QUEUE_FULL_S)
            else:
                return

    async def _read(self, connection: socket.socket, target: str) -> bytes:
        """To the end, because the request asks the server to close the connection."""
        loop = asyncio.get_running_loop()
        blocks: list[bytes] = []
        size = 0
        while block := await loop.sock_recv(connection, _BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > self.max_bytes + _MAX_HEAD:
                raise self._too_large(target)
        return b"".join(blocks)

    def _body(self, answer: bytes, target: str) -> bytes:
        response = HTTPResponse(cast("socket.socket", _Received(answer)))
        try:
            if b"\r\n\r\n" not in answer:
                raise IncompleteRead(answer)
            response.begin()
            if (response.length or 0) > self.max_bytes:
                raise self._too_large(target)
            body = response.read()
        except IncompleteRead as error:
            raise HandlerFailed(f"{self.path}: {target}: answer cut off: ask again") from error
        except HTTPException as error:
            raise HandlerFailed(f"{self.path}: {target}: {error!r:.99}: no HTTP") from error
        if len(body) > self.max_bytes:
            raise self._too_large(target)
        if response.status != 200:
            message = body[:200].decode("utf-8", "replace").strip()
            raise HandlerFailed(
                f"{self.path}: {target}: HTTP {response.status}: {message}", response.status
            )
        return body

    def _too_large(self, target: str) -> HandlerFailed:
        return HandlerFailed(
            f"{self.path}: {target}: more than {self.max_bytes} bytes: "
            "use a smaller TORCH_FR_BUFFER_SIZE"
        )


@dataclass(frozen=True, slots=True)
class _Received:
    """All that a peer sent, as the socket that HTTPResponse expects."""

    data: bytes

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)
