"""Queries torch's worker server in a rank, over its unix socket.

The kind of failure is evidence, and an exception each keeps them apart: the process is gone
(`Refused`); it is stopped, swapped out or dying (`Silent`); it is well but does not know the
handler (`HandlerFailed`), which says nothing about the rank. Every call ends within its timeout
and holds at most twice `max_bytes`, whatever the peer does.

Every connection is a risk for the rank, whose server ends the process if it cannot accept one. So
the agent connects only if nothing is short (`Handlers.shortage`), and all requests of one reading
share a connection (`Handlers.connected`). It does not stay open longer: the server, cpp-httplib,
closes a connection after 30 requests or one idle second, and looks at it a hundred times a second
until then, for 0.2 % of a core (measured, torch 2.13).

The answer is read by asyncio, which bounds time and size. Of HTTP only what cpp-httplib writes is
understood: a status, and a body of a given length or up to the end. No handler but
`dump_traceback` and the tap's own needs the rank's GIL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

import msgspec

from frd.errors import FrdError, ServiceUnavailable
from frd_agent.node_time import ClockReading
from frd_agent.proc import peer_of
from frd_agent.untrusted_files import NOT_THE_FORM

MAX_BYTES = 64 * 1024 * 1024
"""Default bound on an answer: a ring of 100,000 entries as JSON."""
_MAX_HEAD = 64 * 1024
_BLOCK_BYTES = 256 * 1024
_QUEUE_FULL_S = 0.02
_FIRST_S = 0.5
_FIRST_BYTES = 4096


class Refused(ServiceUnavailable):
    """No process listens on the socket: the rank is gone."""


class Silent(ServiceUnavailable):
    """The socket accepts the request, but no answer came in time."""


class Busy(ServiceUnavailable):
    """A `First` was not answered in time, so the handler after it was not called."""


class NothingNew(ServiceUnavailable):
    """What is read only at rest was read since it last was."""


class HandlerFailed(FrdError):
    """An unusable answer: an HTTP error, too large, cut off. `status` is 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Withheld(ServiceUnavailable):
    """The rank was not asked: to accept a connection might end it. `why` is text for users."""

    def __init__(self, asked: str, why: str) -> None:
        super().__init__(f"{asked}: not asked: {why}")
        self.why = why


@dataclass(slots=True)
class First:
    """A handler that is called just before another on the same connection, hence on the same thread
    of the server."""

    name: str
    required: bool = True
    """Without its answer, the other handler is not called."""
    answered: bool = False
    """Set by the call. If it is not, the thread of the server may still wait for the GIL."""


@dataclass(slots=True)
class Handlers:
    """The handlers of one rank. It may be kept and shared."""

    path: str | os.PathLike[str]
    timeout_s: float = 5.0
    """For a whole exchange; a dump of 20,000 entries takes the rank a third of a second."""
    max_bytes: int = MAX_BYTES
    shortage: Callable[[], str] = str
    """Why the rank may not be able to accept a connection; empty: it is."""
    owner: int | None = None
    """The user of the rank: nothing is sent to a process of another one."""
    _sharing: int = 0
    _open: list[socket.socket] = field(default_factory=list)
    """At most one, which no request uses at present."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Requests meanwhile share a connection."""
        self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            while self._open and not self._sharing:
                self._open.pop().close()

    def taken_at(self, asked_at: ClockReading) -> ClockReading:
        """Dumps are as new as the request for them."""
        return asked_at

    async def names(self) -> tuple[str, ...]:
        """The names of the rank's handlers, sorted."""
        body = await self._exchange("GET", "/handler/", self.timeout_s)
        if len(body) > _MAX_HEAD:
            raise self._too_large("/handler/")
        try:
            return tuple(sorted(msgspec.json.decode(body, type=list[str])))
        except NOT_THE_FORM as error:
            raise HandlerFailed(f"{self.path}: list of handlers ({error}): not torch's?") from error

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        """The body of a handler's answer.

        Raises:
            Busy: `first` is required and does not answer within `_FIRST_S`.
            Refused: the process is gone.
            Silent: no answer within `timeout_s` (default: the client's).
            Withheld: the rank might not survive a connection.
            HandlerFailed: the server answered with an error, or with more than `max_bytes`.
        """
        target = f"/handler/{quote(name, safe='')}"
        if params:
            target += f"?{urlencode(params)}"
        return await self._exchange("POST", target, timeout_s or self.timeout_s, first)

    async def _exchange(
        self, method: str, target: str, timeout_s: float, first: First | None = None
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                answer = bytearray()
                if self._open and os.path.lexists(self.path):  # else the rank is about to end
                    with contextlib.suppress(ConnectionError):  # the server has closed it meanwhile
                        answer = await self._answer(self._open.pop(), method, target, first)
                if not answer:
                    answer = await self._answer(await self._connect(target), method, target, first)
        except TimeoutError as error:
            raise Silent(f"{self.path}: {target}: no answer within {timeout_s:g} s") from error
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise Refused(f"{self.path}: nothing listens: the process is gone") from error
        except OSError as error:
            raise HandlerFailed(f"{self.path}: {target}: {error}: ask again") from error
        return self._body(answer, target)

    async def _answer(
        self, connection: socket.socket, method: str, target: str, first: First | None
    ) -> bytearray:
        """All that the server sends; empty if it closes the connection instead.

        Raises:
            ConnectionError: it had closed it before.
        """
        request = _request(method, target, "keep-alive" if self._sharing else "close")
        is_open = False
        try:
            if first is not None and not await self._ask_first(connection, first):
                connection.close()
                connection = await self._connect(target)
            if first is not None and not os.path.lexists(self.path):  # the rank is about to end
                raise ConnectionRefusedError
            await asyncio.get_running_loop().sock_sendall(connection, request)
            answer, is_open = await self._read(connection, target)
            return answer
        finally:
            if is_open and self._sharing and not self._open:
                self._open.append(connection)
            else:
                connection.close()

    async def _ask_first(self, connection: socket.socket, first: First) -> bool:
        """Whether it is answered; if not, the connection cannot be used further.

        Raises:
            Busy: it is not, and it is required.
        """
        first.answered = await self._is_answered(connection, first.name)
        if first.required and not first.answered:
            raise Busy(f"{self.path}: {first.name}: no answer within {_FIRST_S:g} s")
        return first.answered

    async def _is_answered(self, connection: socket.socket, name: str) -> bool:
        request = _request("POST", f"/handler/{name}", "keep-alive")
        loop = asyncio.get_running_loop()
        answer = b""
        try:
            async with asyncio.timeout(_FIRST_S):
                await loop.sock_sendall(connection, request)
                while (size := _whole_size(answer)) is None or len(answer) < size:
                    if not (block := await loop.sock_recv(connection, _FIRST_BYTES)):
                        raise ConnectionResetError(f"{name}: the server hung up")
                    answer += block
                    if len(answer) > _FIRST_BYTES:
                        return False
        except TimeoutError:
            return False
        return len(answer) == size

    async def _connect(self, target: str) -> socket.socket:
        """Waits while the server's accept queue is full, which asyncio takes for connected.

        The queue of a stopped process fills up with the agent's own earlier requests.
        """
        if why := self.shortage():
            raise Withheld(f"{self.path}: {target}", why)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # this process is short of descriptors
            raise HandlerFailed(f"{self.path}: {target}: {error}: ask again") from error
        connection.setblocking(False)
        try:
            while True:
                try:
                    connection.connect(os.fspath(self.path))
                except BlockingIOError:
                    await asyncio.sleep(_QUEUE_FULL_S)
                else:
                    uid = peer_of(connection)[1]
                    if self.owner not in (None, uid):
                        why = f"a process of uid {uid} listens, not of uid {self.owner}"
                        raise HandlerFailed(f"{self.path}: {target}: {why}: not asked")
                    return connection
        except BaseException:
            connection.close()
            raise

    async def _read(self, connection: socket.socket, target: str) -> tuple[bytearray, bool]:
        """An answer, and whether the connection can be used again."""
        loop = asyncio.get_running_loop()
        answer, whole = bytearray(), None
        while whole is None or len(answer) < whole:
            if not (block := await loop.sock_recv(connection, _BLOCK_BYTES)):
                break
            answer += block
            if whole is None and len(answer) <= _MAX_HEAD + _BLOCK_BYTES:
                whole = _whole_size(answer)
            if max(len(answer), whole or 0) > self.max_bytes + _MAX_HEAD:
                raise self._too_large(target)
        head = answer[:_MAX_HEAD].partition(b"\r\n\r\n")[0].lower()
        return answer, len(answer) == whole and b"\r\nconnection: close" not in head

    def _body(self, answer: bytearray, target: str) -> bytes:
        head, end, _ = answer[:_MAX_HEAD].partition(b"\r\n\r\n")
        whole = _whole_size(answer) or len(answer)
        if len(answer) < (whole if end else _MAX_HEAD):
            raise HandlerFailed(f"{self.path}: {target}: answer cut off: ask again")
        status = re.match(rb"HTTP/1\.[01] ([2-5]\d\d)\b", head)
        if status is None or not end or b"\r\ntransfer-encoding:" in head.lower():
            raise HandlerFailed(f"{self.path}: {target}: {head[:80]!r}: no HTTP of torch's")
        body = bytes(memoryview(answer)[len(head) + len(end) : whole])
        if len(body) > self.max_bytes:
            raise self._too_large(target)
        if status[1] != b"200":
            message = body[:200].decode("utf-8", "replace").strip()
            raise HandlerFailed(
                f"{self.path}: {target}: HTTP {int(status[1])}: {message}", int(status[1])
            )
        return body

    def _too_large(self, target: str) -> HandlerFailed:
        return HandlerFailed(
            f"{self.path}: {target}: more than {self.max_bytes} bytes: "
            "use a smaller TORCH_FR_BUFFER_SIZE"
        )


def _request(method: str, target: str, then: str) -> bytes:
    return (
        f"{method} {target} HTTP/1.1\r\n"
        f"Host: localhost\r\nContent-Length: 0\r\nConnection: {then}\r\n\r\n"
    ).encode("ascii")


def _whole_size(answer: bytes | bytearray) -> int | None:
    """Bytes of the whole answer, from its head; None before the head has come, and of an answer
    that ends with the connection."""
    head, end, _ = answer[:_MAX_HEAD].partition(b"\r\n\r\n")
    if not end:
        return None
    length = re.search(rb"\r\nContent-Length: *(\d{1,15})\r\n", head + b"\r\n", re.IGNORECASE)
    return len(head) + len(end) + int(length[1]) if length else None
