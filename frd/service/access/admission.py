"""Admission of agent streams: identity of the peer, its rights, and limits on streams.

Checked before the first message of a stream is read, so that an unknown peer costs almost nothing.
A peer is a host, by its address: an address is known before authentication.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import unquote

from frd.errors import FrdError, WireError
from frd.rpc import Context
from frd.service.access.grants import EVERYTHING, Grant, Role, Tokens
from frd.service.access.refusals import Refusals

_NAMES: Final = "x509_subject_alternative_name"
_PENDING_S: Final = 15.0
"""More than a handshake may take."""


Tenant: TypeAlias = str | frozenset[str]
MAX_DECLARED: Final = 1 << 20
"""Objects that one stream may declare: the service keeps them while the stream lasts."""


class Allowance:
    """How many objects the declarations of one stream may hold, and those of its peer together."""

    def __init__(self, host: str, of_peers: Counter[str], most: int) -> None:
        self._host, self._of_peers, self._most = host, of_peers, most
        self._own = 0

    def take(self, objects: int) -> None:
        """
        Raises:
            WireError: it has too many.
        """
        self._own += objects
        self._of_peers[self._host] += objects
        if self._own > MAX_DECLARED:
            why = f"over {MAX_DECLARED} objects on one stream: open another"
            raise WireError("declare", "limit", why)
        if self._of_peers[self._host] > self._most:
            why = f"{self._host} holds over {self._most} objects: raise limits.objects_per_peer"
            raise WireError("declare", "limit", why)

    def give_back(self) -> None:
        """The stream is over."""
        _less(self._of_peers, self._host, self._own)
        self._own = 0


@dataclass(slots=True, eq=False)
class Admission:
    """`tokens` is None if no token is required."""

    tokens: Tokens | None
    streams_per_peer: int
    objects_per_peer: int = MAX_DECLARED
    _objects: Counter[str] = field(default_factory=Counter)
    _streams: Counter[str] = field(default_factory=Counter)
    _peers: Counter[str] = field(default_factory=Counter)
    refusals: Refusals = field(default_factory=Refusals)
    connections: int = 0
    """Connections that ever had a stream."""

    @contextmanager
    def admitted(self, context: Context) -> Iterator[Grant]:
        """The grant of the peer, while its stream is open.

        Raises:
            WireError: the peer may not stream (reason ``token``) or has too many streams
                (``limit``).
        """
        peer = context.peer()
        host = host_of(peer)
        self.connections += not self._peers[peer]
        self._peers[peer] += 1
        try:
            grant = self._grant(context)
            self._count(host)
        except WireError:
            _less(self._peers, peer)
            raise
        try:
            yield grant
        finally:
            _less(self._peers, peer)
            _less(self._streams, host)

    def tenant(self, context: Context, grant: Grant) -> Tenant:
        """Whose stream it is: of those with a token or certificate for these jobs, or of a host."""
        return grant.jobs or host_of(context.peer())

    def allowance(self, context: Context) -> Allowance:
        """Of a new stream of the peer."""
        return Allowance(host_of(context.peer()), self._objects, self.objects_per_peer)

    def warn(self, context: Context, reason: str, text: str) -> None:
        """Log that the peer was refused."""
        self.refusals.warn(host_of(context.peer()), reason, text)

    async def delay(self, context: Context, error: FrdError) -> None:
        """If it is because of a wrong token: until the refusal may be sent."""
        if isinstance(error, WireError) and error.reason == "token" and _token(context):
            await self.refusals.delay()

    def _count(self, host: str) -> None:
        if self._streams[host] >= self.streams_per_peer:
            raise WireError(
                "stream",
                "limit",
                f"{host} has {self.streams_per_peer} already: raise limits.streams_per_peer",
            )
        self._streams[host] += 1

    def _grant(self, context: Context) -> Grant:
        grant: Grant | None = EVERYTHING
        if self.tokens is not None:
            grant = self.tokens.grant(_token(context))
        if grant is None or not grant.may(Role.AGENT):
            raise WireError(
                "authorization", "token", "no token that may stream: set the agent's token_file"
            )
        names = context.auth_context().get(_NAMES) or ()
        return grant.narrowed(name.decode("utf-8", "replace") for name in names)


class Handshakes:
    """Counts connections that ended before they had a stream. gRPC does not report them, but it
    asks for the certificate at the start of each handshake, which can be counted."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, int]] = deque()
        self._failed = 0

    def failed(self, begun: int, connections: int, now_s: float) -> int:
        """A lower bound, of the handshakes that began `_PENDING_S` ago or earlier."""
        self._begun.append((now_s, begun))
        while len(self._begun) > 1 and now_s - self._begun[1][0] >= _PENDING_S:
            self._begun.popleft()
        at_s, settled = self._begun[0]
        if now_s - at_s >= _PENDING_S:
            self._failed = max(self._failed, settled - connections)
        return self._failed


def _token(context: Context) -> str:
    return str(dict(context.invocation_metadata() or ()).get("authorization", ""))


def _less(counter: Counter[str], key: str, count: int = 1) -> None:
    counter[key] -= count
    if not counter[key]:
        del counter[key]


def host_of(peer: str) -> str:
    """The address in gRPC's ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0] or peer
