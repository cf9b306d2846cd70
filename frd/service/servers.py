"""The two listeners of the service: gRPC for agents, HTTP for all other clients.

`ListenError` says in one line why one cannot listen. Signals belong to `frd serve`. Both disconnect
a peer that does not finish a handshake or a request in time, because a thousand such peers would
exclude all other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from frd.address import join_address, split_address
from frd.errors import ListenError
from frd.rpc import SERVER_OPTIONS, StreamHandler, collector
from frd.service.access.certificates import Certificates

_GRACE_S: Final = 1.0
_BACKLOG: Final = 4096
_MAX_HTTP_CONNECTIONS: Final = 512
_HANDSHAKE_S: Final = 10.0
_REQUEST_S: Final = 10.0
"""How long a client may take to send a request."""


@dataclass(slots=True, eq=False)
class GrpcServer:
    """Without `certificates` nothing is encrypted."""

    handler: StreamHandler
    clock: StreamHandler
    address: str
    certificates: Certificates | None = None
    _server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """The bound address.

        Raises:
            ListenError: naming the key, when the address cannot be listened on.
        """
        host, port = split_address(self.address)
        # gRPC does not say why it cannot bind, but a socket does.
        _listen("grpc", self.address).close()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((collector(self.handler, self.clock),))
        try:
            if self.certificates is None:
                bound = server.add_insecure_port(self.address)
            else:
                bound = server.add_secure_port(self.address, self.certificates.for_grpc())
        except RuntimeError as error:
            raise ListenError(f"grpc: {self.address}: {error}: choose another address") from None
        await server.start()
        self._server = server
        return join_address(host, bound or port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE_S)


@dataclass(slots=True, eq=False)
class HttpServer:
    """Without `certificates` nothing is encrypted."""

    app: ASGIApp
    address: str
    certificates: Certificates | None = None
    connections_per_peer: int = _MAX_HTTP_CONNECTIONS
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that the service closes, by reason: ``connections`` or ``slow``."""
    connections: Counter[str] = field(default_factory=Counter)
    """Open connections by host."""
    _server: _Uvicorn | None = None
    _serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """The bound address.

        Raises:
            ListenError: naming the key, when the address cannot be listened on.
        """
        listener = _listen("http", self.address)
        # Connections inherit it. asyncio does not set it, as the socket names no protocol. Without
        # it an answer in two parts waits for the delayed ACK of the client (40 ms).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = _Uvicorn(
            uvicorn.Config(
                self.app,
                http=functools.partial(_Connection, self),  # type: ignore[arg-type]  # no class
                # An upgraded connection would leave `_Connection` and still be counted.
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                limit_concurrency=_MAX_HTTP_CONNECTIONS,
                timeout_graceful_shutdown=round(2 * _GRACE_S),
            ),
            self.certificates,
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        host, _ = split_address(self.address)
        return join_address(host, listener.getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            self._server.exiting.set()
            await asyncio.wait({self._serving}, timeout=_GRACE_S)
            # uvicorn would cancel unfinished answers and log a traceback for each.
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await self._serving


class _Connection(H11Protocol):
    """uvicorn's connection, with a limit for each host and a deadline for each request."""

    def __init__(self, server: HttpServer, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limit = server.connections_per_peer
        self._open = server.connections
        self._refused = server.refused
        self._host = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._host = str((transport.get_extra_info("peername") or ("",))[0])
        self._open[self._host] += 1
        if self._open[self._host] > self._limit:
            self._refuse("connections")
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open[self._host] -= 1
        if not self._open[self._host]:
            del self._open[self._host]
        self._relax()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """The deadline runs while the peer has a request to send, or the rest of one."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._relax()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_S, self._refuse, "slow")

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, reason: str) -> None:
        if not self.transport.is_closing():
            self._refused[reason] += 1
            self.transport.abort()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, certificates: Certificates | None) -> None:
        super().__init__(config)
        self._certificates = certificates
        self.exiting = asyncio.Event()
        """Set with `should_exit`."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own, but with a context that may change and a limit for TLS handshakes."""
        protocol: Any = self.config.http_protocol_class
        connection = functools.partial(
            protocol, config=self.config, server_state=self.server_state, app_state={}
        )
        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=listener,
                backlog=_BACKLOG,
                ssl=self._certificates.for_http() if self._certificates else None,
                ssl_handshake_timeout=_HANDSHAKE_S if self._certificates else None,
            )
            for listener in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        """As uvicorn's own, but with a tick in a second in place of ten."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.exiting.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signal handling to the process's owner."""
        yield


def _listen(key: str, address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, _, _, _, resolved = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(resolved, family=family, backlog=_BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = f"choose another --{key} HOST:PORT"
        if error.errno == errno.EADDRINUSE:
            advice = f"is another `frd serve` or `frd up` running? stop it, or {advice}"
        elif error.errno == errno.EADDRNOTAVAIL:
            advice = f"this machine has no such address: {advice}"
        raise ListenError(f"{key}: {address}: {why}: {advice}") from None
