"""Where and when a stream tries to reach the service next.

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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from frd.address import is_loopback, join_address, split_address
from frd.errors import ServiceUnavailable
from frd_agent.uplink.endpoint import Endpoint, Target

MAX_REDIRECTS: Final = 3
"""Redirects in a row, without a stream that lasted in between."""
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 15.0
PROVEN_S: Final = 5.0
"""A stream that lasted this long resets the back-off, and a redirect of it is part of no loop."""
_RESOLVE_S: Final = 5.0

log = logging.getLogger(__name__)


Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[Target]]]


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
