"""The service's address and credentials: address, CA, client certificate, token.

Files are read again for every connection, so that certificates and tokens can be replaced under a
running agent. The token is sent with each call, is never logged, and is sent without TLS
only within this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from frd.credentials import read_credential, read_token
from frd.rpc import CHANNEL_OPTIONS, StreamCall, open_clock, open_stream

# Every attempt uses a new channel: a shared one would add its own back-off to ours.
_OPTIONS: Final = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel to the service, with the token for each call."""

    _channel: grpc.aio.Channel
    _metadata: tuple[tuple[str, str], ...]

    def stream(self) -> StreamCall:
        return open_stream(self._channel, metadata=self._metadata)

    def clock(self) -> StreamCall:
        return open_clock(self._channel, metadata=self._metadata)


async def ending(call: StreamCall) -> tuple[grpc.StatusCode | None, str]:
    """The status with which a call has ended, and its details; None if gRPC does not say soon."""
    try:
        async with asyncio.timeout(1.0):
            return await call.code(), await call.details() or ""
    except TimeoutError:
        return None, ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: str
    tls: bool = False
    ca_file: Path | None = None
    """CA bundle to verify the service; None for gRPC's default."""
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None

    def __str__(self) -> str:
        return self.address

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """
        Raises:
            ConfigError: a file cannot be read, or has no token.
        """
        metadata: tuple[tuple[str, str], ...] = ()
        if self.token_file is not None:
            token = read_token("token_file", self.token_file)
            metadata = (("authorization", f"Bearer {token}"),)
        async with self._channel() as channel:
            yield Connection(channel, metadata)

    def _channel(self) -> grpc.aio.Channel:
        if not self.tls:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            read_credential("tls_ca_file", self.ca_file),
            read_credential("tls_key_file", self.key_file),
            read_credential("tls_cert_file", self.cert_file),
        )
        return grpc.aio.secure_channel(self.address, credentials, options=_OPTIONS)


def advice(details: str) -> str:
    """What a user can do if gRPC could not reach the service; `details` is gRPC's own text."""
    why = details.rpartition("last error: ")[2]
    reason = why.lower()
    if "http1" in reason or "http2 header with status" in reason:
        return (
            "the server there is no gRPC server: name the address of `frd serve --grpc` "
            "(by default port 9373), not that of --http, and no proxy for HTTP/1"
        )
    if "handshake" in reason or "ssl" in reason:
        return (
            f"TLS: {why}: does the service speak TLS (tls.cert_file), and is the agent's "
            "tls_ca_file that of its certificate?"
        )
    if "resolv" in reason or "lookup" in reason:
        return f"the name cannot be resolved ({why}): check --service"
    if "refused" in reason:
        return "nothing listens there: is `frd serve` running, and is --service its --grpc address?"
    return f"{why}: is `frd serve` running there, and may this node reach it?"
