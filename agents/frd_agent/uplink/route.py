"""The service's addresses and credentials, and where and when a stream tries to reach it next.

Files (CA, client certificate, token) are read again for every connection, so that certificates and
tokens can be replaced under a running agent. The token is sent with each call, is never logged, and
is sent without TLS only within this machine. The same holds for addresses to which the service
redirects.

A redirect names the process of the service that has the stream's job; the last welcome named a
second choice. After these come the configured addresses, beginning at a random one so that the
agents of a cluster spread, and the next one after each failure. A name with several addresses is
as many candidates. A redirect is followed without delay, but only a few times in a row: two
processes that redirect to each other must not keep the agent busy. After a failure comes a delay
with full jitter. The only I/O is the resolution of names.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from frd.address import is_loopback, join_address, split_address
from frd.credentials import read_credential, read_token
from frd.errors import ConfigError, ServiceUnavailable
from frd.rpc import CHANNEL_OPTIONS, StreamCall, job_metadata, open_clock, open_stream

MAX_REDIRECTS: Final = 3
"""Redirects in a row, without a stream that lasted in between."""
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 15.0
PROVEN_S: Final = 5.0
"""A stream that lasted this long resets the back-off, and a redirect of it is part of no loop."""
_RESOLVE_S: Final = 5.0
# Every attempt uses a new channel: a shared one would add its own back-off to ours.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
_CONNECTING: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)

log = logging.getLogger(__name__)


Resolve: TypeAlias = Callable[[str], Awaitable[Sequence["Target"]]]


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


async def resolve(address: str) -> list[Target]:
    """The candidates of a configured address.

    A host that is no name, has one address, or is this machine is left to gRPC, and so is a name
    that cannot be resolved: gRPC then says why.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return [Target(address)]
    # Of the family that the system prefers: the other one may lead to the same machines.
    hosts = list(dict.fromkeys(str(at[0]) for family, *_, at in found if family == found[0][0]))
    if len(hosts) < 2 or all(map(is_loopback, hosts)):
        return [Target(address)]
    return [Target(join_address(one, port), host) for one in hosts]


@dataclass(slots=True)
class Backoff:
    """Full jitter: a random delay between 0 and a bound that doubles."""

    roll: Callable[[float, float], float] = random.uniform
    failures: int = 0
    """Streams in a row that did not last."""

    def next_s(self, lasted_s: float, candidates: int = 1) -> float:
        """The delay after a stream that lasted `lasted_s`. The bound begins to double once all
        `candidates` have been tried."""
        if lasted_s > PROVEN_S:
            self.failures = 0
        doublings = max(self.failures + 1 - candidates, 0)
        bound = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(doublings, 16))
        self.failures += 1
        return self.roll(0, bound)


@dataclass(slots=True)
class Route:
    service: Endpoint
    resolve: Resolve = resolve
    choose: Callable[[int], int] = random.randrange
    """A random number from 0 to below its argument."""
    _redirect: str = ""
    _next: str = ""
    """The second choice of the last welcome, not tried since."""
    _redirects: int = 0
    _current: Target | None = None
    _again: bool = False
    _round: deque[Target] = field(default_factory=deque)
    """Candidates that have not been tried in this round."""
    _candidates: int = 1
    _complaint: str = ""
    """The last warning of an address that the service gave."""

    @property
    def candidates(self) -> int:
        """Addresses of a round, as far as known."""
        return max(self._candidates, len(self.service.addresses))

    @property
    def has_others(self) -> bool:
        """There is another address to try than the present one."""
        at = self._current
        return self.candidates > 1 or (at is not None and at.address not in self.service.addresses)

    async def next(self) -> Target:
        """The address to dial now."""
        again, self._again = self._again, False
        if again and self._current is not None:
            return self._current
        for choice in ("_redirect", "_next"):
            if address := getattr(self, choice):
                setattr(self, choice, "")
                self._current = Target(address)
                return self._current
        if not self._round:
            await self._begin_round()
        self._current = self._round.popleft()
        return self._current

    async def _begin_round(self) -> None:
        addresses = self.service.addresses
        first = self.choose(len(addresses))
        ordered = [*addresses[first:], *addresses[:first]]
        for address in ordered:
            found = await self.resolve(address)
            start = self.choose(len(found))
            self._round += [*found[start:], *found[:start]]
        if len(self._round) > 1 and self._round[0] == self._current:
            self._round.rotate(-1)  # it has just failed
        self._candidates = len(self._round)

    def again(self) -> None:
        """The next stream goes to the present address again."""
        self._again = True

    def welcomed(self, following: str) -> None:
        """A stream has begun; `following` is the address to try first when it breaks, if any."""
        self._round.clear()
        self._next = following
        if following:
            try:
                self._check(following)
            except ServiceUnavailable:
                self._next = ""

    def redirected(self, address: str) -> None:
        """Go there next.

        Raises:
            ServiceUnavailable: the agent may not, or too many redirects follow each other.
        """
        self._check(address)
        self._redirects += 1
        if self._redirects > MAX_REDIRECTS:
            self._redirects = 0
            raise ServiceUnavailable(f"redirected to {address} after {MAX_REDIRECTS} redirects")
        self._redirect = address

    def lasted(self) -> None:
        """A stream has lasted for `PROVEN_S`."""
        self._redirects = 0

    def _check(self, address: str) -> None:
        try:
            self.service.check_redirect(address)
        except ServiceUnavailable as error:
            if str(error) != self._complaint:  # the service says it at each connection
                log.warning("service %s: %s", self._current or self.service, error)
            self._complaint = str(error)
            raise
