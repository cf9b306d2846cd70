"""The service's addresses and credentials: CA, client certificate, token.

Files are read again for every connection, so that certificates and tokens can be replaced under a
running agent. The token is sent with each call, is never logged, and is sent without TLS
only within this machine. The same holds for addresses to which the service redirects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from frd.address import is_loopback, split_address
from frd.credentials import read_credential, read_token
from frd.errors import ConfigError, ServiceUnavailable
from frd.rpc import (
    CHANNEL_OPTIONS,
    StreamCall,
    job_metadata,
    open_clock,
    open_stream,
)

# Every attempt uses a new channel: a shared one would add its own back-off to ours.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
_CONNECTING: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


@dataclass(frozen=True, slots=True)
class Target:
    """One address to dial."""

    address: str
    """HOST:PORT, as gRPC takes it."""
    name: str = ""
    """The name that resolved to this address, which TLS verifies instead; empty: the host of the
    address."""

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else self.address


@dataclass(frozen=True, slots=True)
class Connection:
    """A channel to the service, with the token and the job for each call."""

    _channel: grpc.aio.Channel
    _metadata: tuple[tuple[str, str | bytes], ...]

    async def connected(self) -> bool:
        """Once the channel is up, or (False) cannot be: then a call gives the reason."""
        state = self._channel.get_state(try_to_connect=True)
        while state in _CONNECTING:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

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
    addresses: tuple[str, ...]
    """HOST:PORT of each, at least one."""
    tls: bool = False
    ca_file: Path | None = None
    """CA bundle to verify the service; None for gRPC's default."""
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    insecure: bool = False
    """Unencrypted connections may leave this machine."""

    def __str__(self) -> str:
        return ", ".join(self.addresses)

    def check_redirect(self, address: str) -> None:
        """Whether the service may send the agent to `address`: never out of this machine without
        TLS, unless the configuration accepts that.

        Raises:
            ServiceUnavailable: it may not, or `address` is no HOST:PORT.
        """
        try:
            host, port = split_address(address)
        except ConfigError as error:
            raise ServiceUnavailable(
                f"redirect: {error}: this is an error of the service"
            ) from None
        if not port:
            raise ServiceUnavailable(
                f"redirect: {address!r}: port 0: this is an error of the service"
            )
        if self.tls or self.insecure or is_loopback(host):
            return
        stays = all(is_loopback(split_address(one)[0]) for one in self.addresses)
        if stays or self.token_file is not None:
            raise ServiceUnavailable(
                f"redirect: {address}: refused: the connection would leave this machine "
                "unencrypted: set tls_ca_file or tls = true, or accept it with insecure = true"
            )

    @asynccontextmanager
    async def connect(self, target: Target, job: str | None) -> AsyncIterator[Connection]:
        """
        Raises:
            ConfigError: a file cannot be read, or has no token.
        """
        metadata: tuple[tuple[str, str | bytes], ...] = job_metadata(job)
        if self.token_file is not None:
            token = read_token("token_file", self.token_file)
            metadata = (("authorization", f"Bearer {token}"), *metadata)
        options = [*CHANNEL_OPTIONS, *_OPTIONS]
        async with self._channel(target, options) as channel:
            yield Connection(channel, metadata)

    def _channel(self, target: Target, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
        if not self.tls:
            return grpc.aio.insecure_channel(target.address, options=options)
        if target.name:
            options.append(("grpc.ssl_target_name_override", target.name))
        credentials = grpc.ssl_channel_credentials(
            read_credential("tls_ca_file", self.ca_file),
            read_credential("tls_key_file", self.key_file),
            read_credential("tls_cert_file", self.cert_file),
        )
        return grpc.aio.secure_channel(target.address, credentials, options=options)


def advice(details: str) -> str:
    """What a user can do if gRPC could not reach the service; `details` is gRPC's own text."""
    why = details.rpartition("last error: ")[2]
    reason = why.lower()
    if "http1" in reason or "http2 header with status" in reason:
        return (
            "the server there is no gRPC server: name the address of `frd serve --grpc` "
            "(by default port 9373), not that of --http, and no proxy for HTTP/1"
        )
    if "cancelling all calls" in reason:
        return "the service ends"
    if any(word in reason for word in ("handshake", "ssl", "verification")):
        return (
            f"TLS: {why}: does the service speak TLS (tls.cert_file), and is the agent's "
            "tls_ca_file that of its certificate?"
        )
    if "resolv" in reason or "lookup" in reason:
        return f"the name cannot be resolved ({why}): check --service"
    if "refused" in reason:
        return "nothing listens there: is `frd serve` running, and is --service its --grpc address?"
    return f"{why}: is `frd serve` running there, and may this node reach it?"
