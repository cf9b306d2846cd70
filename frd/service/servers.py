"""The two listeners of the service: gRPC for agents, HTTP for everybody else.

Each says at start, in one line, why it cannot listen; neither touches signals, which belong to
`frd serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import grpc.aio
import uvicorn
from starlette.applications import Starlette

from frd.address import join_address, split_address
from frd.errors import ListenError
from frd.rpc import SERVER_OPTIONS, StreamHandler, collector

_GRACE_S: Final = 1.0
_BACKLOG: Final = 4096
_MAX_HTTP_CONNECTIONS: Final = 512


class GrpcServer:
    def __init__(self, handler: StreamHandler, address: str) -> None:
        self._handler = handler
        self._address = address
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """The bound address.

        Raises:
            ListenError: naming the key, when the address cannot be listened on.
        """
        host, port = split_address(self._address)
        # gRPC does not say why it cannot bind, so the question is put to a socket first.
        _listen("grpc", self._address).close()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((collector(self._handler),))
        try:
            bound = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ListenError(f"grpc: {self._address}: {error}: choose another address") from None
        await server.start()
        self._server = server
        return join_address(host, bound or port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE_S)


class HttpServer:
    def __init__(self, app: Starlette, address: str) -> None:
        self._app = app
        self._address = address
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """The bound address.

        Raises:
            ListenError: naming the key, when the address cannot be listened on.
        """
        listener = _listen("http", self._address)
        self._server = _Uvicorn(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,
                lifespan="off",
                limit_concurrency=_MAX_HTTP_CONNECTIONS,
                timeout_graceful_shutdown=round(_GRACE_S),
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        host, _ = split_address(self._address)
        return join_address(host, listener.getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them to whoever owns the process."""
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
        raise ListenError(f"{key}: {address}: {why}: choose another address") from None
