"""The door of the agents' port: who a stream's peer is, what it may do, and whether there is room.

Asked before the first message of a stream is read, so that a stranger costs next to nothing. A
peer is a host, by its address: that is what a cluster can count on before anything is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from frd.errors import WireError
from frd.rpc import Context
from frd.service.access import EVERYTHING, Grant, Role, Tokens

_NAMES: Final = "x509_subject_alternative_name"


class Door:
    """`tokens` is None where nobody is asked for one."""

    def __init__(self, tokens: Tokens | None, streams_per_peer: int) -> None:
        self._tokens = tokens
        self._streams_per_peer = streams_per_peer
        self._streams: Counter[str] = Counter()

    @contextmanager
    def admitted(self, context: Context) -> Iterator[Grant]:
        """What the peer may do, for as long as its stream lives.

        Raises:
            WireError: nothing (reason ``token``), or it has too many streams (``limit``).
        """
        grant = self._grant(context)
        host = host_of(context.peer())
        if self._streams[host] >= self._streams_per_peer:
            raise WireError(
                "stream",
                "limit",
                f"{host} has {self._streams_per_peer} already: raise limits.streams_per_peer",
            )
        self._streams[host] += 1
        try:
            yield grant
        finally:
            self._streams[host] -= 1
            if not self._streams[host]:
                del self._streams[host]

    def _grant(self, context: Context) -> Grant:
        grant: Grant | None = EVERYTHING
        if self._tokens is not None:
            grant = self._tokens.grant(_metadata(context, "authorization"))
        if grant is None or not grant.may(Role.AGENT):
            raise WireError(
                "authorization", "token", "no token that may stream: set the agent's token_file"
            )
        names = context.auth_context().get(_NAMES) or ()
        return grant.narrowed(name.decode("utf-8", "replace") for name in names)


def host_of(peer: str) -> str:
    """The address in gRPC's ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0] or peer


def _metadata(context: Context, key: str) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return None
