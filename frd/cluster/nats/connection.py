"""A connection to NATS that does not get stuck, and what its answers mean.

The client library may hang for minutes when it reconnects over a half-open socket (nats-py issue
671), and its tasks may die (624). This module therefore never trusts one client for long: when a
request has no answer and the server does not answer a ping either, or when nothing has been
answered for `WATCHDOG_S`, it makes a new client and drops the old one. Requests wait meanwhile,
because the old client would lose them. What it has sent before may still arrive: every write
carries an expectation, so that a late one does no harm.

Errors never contain credentials: only the kinds of the library's errors are used, or the server's
own description of an API error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from frd.errors import FrdError

T = TypeVar("T")
WATCHDOG_S: Final = 10.0
"""Without any answer for so long, a new client is made."""
REQUEST_S: Final = 2.0
_PING_S: Final = 0.75
_DIAL_S: Final = 5.0
_DIALS: Final = 5
"""Servers that are dialled at the same time."""
_CLOSE_S: Final = 2.0
_WRONG_LAST: Final = (10071, 10164)
"""Error codes of the server: the stream or subject has another last sequence than expected; a write
to the subject is still in flight."""
_log = logging.getLogger(__name__)


# nats-py does not say that a stream of TLS is encrypted, so asyncio warns when a server ends one.
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())


class Refused(FrdError):
    """The expectation of a write does not hold."""


class Unanswered(FrdError):
    """No answer, or one that says that the server cannot serve now. Whether a write happened is not
    known."""

    def __init__(self, what: str, code: int = 0) -> None:
        super().__init__(what)
        self.code = code
        """Of the server's answer; 0: there is none."""


class Absent(FrdError):
    """The stream, message or consumer does not exist."""


class Ack(NamedTuple):
    number: int
    """The sequence of the message in its stream."""
    duplicate: bool
    """It was stored before."""


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses of the servers, and with what to authenticate."""

    servers: tuple[str, ...]
    name: str
    """Shown by the server's tools."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials_file: str | None = None
    tls: ssl.SSLContext | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of `Client.connect`."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.credentials_file,
            "tls": self.tls,
        }
        return {key: value for key, value in given.items() if value is not None} | {
            "name": self.name,
            "connect_timeout": 1,
            "ping_interval": 2,
            "max_outstanding_pings": 2,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1,
            "dont_randomize": True,
            "error_cb": _ignore,
        }


class Connection:
    """For one event loop, in which `open` was called."""

    def __init__(self, access: Access, request_s: float = REQUEST_S) -> None:
        """A request without an answer for `request_s` has failed."""
        self._access = access
        self._request_s = request_s
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._answered = time.monotonic()
        self._mending: asyncio.Task[None] | None = None
        """It finds out whether the client is stuck, or makes a new one."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        """Clients that are being closed; they end by themselves."""

    async def open(self) -> None:
        """
        Raises:
            Unanswered: no server accepts a client.
        """
        servers = self._access.servers
        await self._replace([random.sample(servers, len(servers))])  # replicas use all of them
        self._spawn(self._watch())

    async def close(self) -> None:
        while self._tasks:  # a cancelled dial leaves a client to close
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self._client is not None:
            self._retire(self._client)
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def client(self) -> Client:
        """The current client; a new one may replace it at any time."""
        if self._client is None:
            raise Unanswered("not connected")
        return self._client

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> Ack:
        """Write one message to a stream and await the confirmation.

        Raises:
            Refused, Unanswered, Absent
        """
        ack = await self.ask(
            lambda js: js.publish(subject, data, timeout=self._request_s, headers=dict(headers))
        )
        return Ack(ack.seq, bool(ack.duplicate))

    async def ask(
        self, request: Callable[[JetStreamContext], Awaitable[T]], timeout_s: float | None = None
    ) -> T:
        """Await one request of JetStream's API.

        Raises:
            Refused, Unanswered, Absent
        """
        if self._mending is not None:
            await asyncio.wait({self._mending}, timeout=self._request_s)
        js = self._js
        if js is None or self._mending is not None:
            raise Unanswered("not connected")
        try:
            # The library's own limits end most requests; some wait for a lost connection for ever.
            async with asyncio.timeout((timeout_s or self._request_s) + 0.5):
                result = await request(js)
        except nats.js.errors.APIError as error:
            self._answered = time.monotonic()
            raise _meaning(error) from None
        except nats.js.errors.NoStreamResponseError:
            self._answered = time.monotonic()
            raise Unanswered("no leader") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            self._mend(self._examine)
            raise Unanswered(type(error).__name__) from None
        self._answered = time.monotonic()
        return result

    # -- a new client when the old one is stuck --------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            if time.monotonic() - self._answered > WATCHDOG_S:
                self._answered = time.monotonic()
                self._mend(self._renew)

    def _mend(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._mending is None:
            self._mending = self._spawn(work())
            self._mending.add_done_callback(self._mended)

    def _mended(self, _: asyncio.Task[None]) -> None:
        self._mending = None

    async def _examine(self) -> None:
        """Ping the server after an unanswered request; a new client if the ping has no answer."""
        client = self._client
        if client is None or not client.is_connected:
            return  # the library connects again; if it does not, the watchdog sees that
        try:
            await asyncio.wait_for(client.flush(timeout=1), _PING_S)
        except (nats.errors.Error, TimeoutError, OSError):
            await self._renew()

    async def _renew(self) -> None:
        """Dial each server with another client: another server that is stuck, or the same one
        under another name, costs no time."""
        servers = _servers(self._access, self._client)[:_DIALS]
        with contextlib.suppress(Unanswered):
            await self._replace([servers[n:] + servers[:n] for n in range(len(servers))])

    async def _replace(self, orders: Sequence[Sequence[str]]) -> None:
        """Use the client that is connected first, of one for each order of servers.

        Raises:
            Unanswered: none is connected in time.
        """
        dials = [self._spawn(self._dialled(servers)) for servers in orders]
        done, late = await asyncio.wait(dials, timeout=_DIAL_S, return_when=asyncio.FIRST_COMPLETED)
        for dial in late:
            dial.cancel()
        errors = [error for dial in done if (error := dial.exception()) is not None]
        clients = [dial.result() for dial in done if dial.exception() is None]
        if not clients:
            error = errors[0] if errors else TimeoutError()
            raise Unanswered(type(error).__name__)
        old, (self._client, *others) = self._client, clients
        self._js = self._client.jetstream(timeout=self._request_s)
        for client in (old, *others):
            if client is not None:
                self._retire(client)
        if old is not None:
            _log.info("cluster: new connection to NATS; the old one did not answer")

    async def _dialled(self, servers: Sequence[str]) -> Client:
        """A client that is connected to the first of the servers that answers."""
        client = Client()
        try:
            await client.connect(list(servers), **self._access.options())
        except BaseException:
            self._retire(client)
            raise
        return client

    def _retire(self, client: Client) -> None:
        task = asyncio.get_running_loop().create_task(_close(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: a failed renewal is tried again by the watchdog


def _servers(access: Access, old: Client | None) -> list[str]:
    """Configured servers, and those that the old client has heard of, but not the one that it is
    stuck with, unless there is no other."""
    if old is None:
        return list(access.servers)
    known = [*access.servers, *(server.geturl() for server in old.discovered_servers)]
    stuck = old.connected_url.netloc if old.connected_url else None
    return [server for server in known if urlsplit(server).netloc != stuck] or known


async def _close(client: Client) -> None:
    """Close the client; give up when that hangs."""
    with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
        await asyncio.wait_for(client.close(), _CLOSE_S)


async def _ignore(_: Exception) -> None:
    """The library reports each failed attempt; `Connection` reports what follows from them."""


def _meaning(error: nats.js.errors.APIError) -> FrdError:
    if error.err_code in _WRONG_LAST:
        return Refused(str(error.description))
    if isinstance(error, nats.js.errors.NotFoundError):
        return Absent(str(error.description))
    if error.description is None:  # 503: no server has the stream or the consumer yet
        return Unanswered("no leader")
    return Unanswered(f"{error.description} ({error.err_code})", error.err_code or 0)
