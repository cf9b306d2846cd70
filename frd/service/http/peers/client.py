"""Requests to other replicas, with a limit for each wait, for connections and for sizes.

Only addresses of a `Replica` of the present `ClusterView` are asked. Neither proxies nor ``.netrc``
of the environment are used, and no redirect is followed: a request carries the client's token. Each
request has its own connection, because a replica may end at any time, and a kept connection would
then fail one request that it could have answered elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from frd.cluster.lease import Replica
from frd.config import TlsFiles
from frd.errors import ConfigError, FrdError
from frd.service.access.certificates import load_chain, why
from frd.service.access.grants import Reloaded

ASK_WITHIN_S: Final = 2.0
"""How long a list waits for each of the other replicas."""
READ_S: Final = 10.0
"""How long each read of a forwarded request may take."""
_MAX_CONNECTIONS: Final = 128
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Of an answer that is merged with others; a forwarded one is not held in memory."""


class NoAnswer(FrdError):
    """A replica did not answer, or not as frd does; the text says why."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A request to another replica."""

    method: str
    target: bytes
    """Path and query as the client sent them."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    read_s: float = READ_S


class PeerClient:
    """`ca_file` verifies the other replicas, the service's own certificate is shown to them.

    Raises:
        ConfigError: from the constructor, naming the key whose file cannot be used.
    """

    def __init__(
        self, tls: TlsFiles, ca_file: Path | None = None, *, within_s: float = ASK_WITHIN_S
    ) -> None:
        self.within_s = within_s
        self._must_encrypt = tls.cert_file is not None
        paths = (ca_file, tls.cert_file, tls.key_file)
        self._tls = Reloaded(
            "cluster.peers_ca_file", filter(None, paths), partial(_context, tls, ca_file)
        )
        self._client: httpx.AsyncClient | None = None
        self._context: ssl.SSLContext | None = None

    async def send(self, replica: Replica, request: Forwarded) -> httpx.Response:
        """The answer, whose body is still to be read; close it afterwards.

        Raises:
            NoAnswer: no answer arrived.
        """
        timeout = httpx.Timeout(request.read_s, connect=self.within_s, pool=self.within_s)
        try:
            sent = httpx.Request(
                request.method,
                self._url(replica),
                headers=list(request.headers),
                content=request.body,
                # The target as it is: a URL of httpx would lose `..`, which may name a job.
                extensions={"target": request.target, "timeout": timeout.as_dict()},
            )
            return await self._connections().send(sent, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise NoAnswer(reason(error)) from None

    async def found(self, replica: Replica, request: Forwarded) -> httpx.Response | None:
        """As `send`; None for status 404.

        Raises:
            NoAnswer: it did not arrive within `within_s`, or has another status.
        """
        async with self._in_time():
            answer = await self.send(replica, request)
        if answer.status_code == httpx.codes.OK:
            return answer
        await answer.aclose()
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        raise NoAnswer(f"answered {answer.status_code}")

    async def ask(self, replica: Replica, request: Forwarded) -> httpx.Response | None:
        """The whole answer; None for status 404.

        Raises:
            NoAnswer: it did not arrive within `within_s`, has another status, or is too large.
        """
        async with self._in_time():
            if (answer := await self.found(replica, request)) is None:
                return None
            try:
                return await _whole(answer)
            except httpx.HTTPError as error:
                raise NoAnswer(reason(error)) from None
            finally:
                await answer.aclose()

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.within_s):
                yield
        except TimeoutError:
            raise NoAnswer(f"no answer within {self.within_s:g} s") from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _connections(self) -> httpx.AsyncClient:
        """Replaced when certificates have changed. Requests of the former client go on: without
        kept connections it holds nothing else."""
        context = self._tls.content()
        if self._client is None or context is not self._context:
            self._context = context
            self._client = httpx.AsyncClient(
                verify=context,
                trust_env=False,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=0),
            )
        return self._client

    def _url(self, replica: Replica) -> httpx.URL:
        url = httpx.URL(replica.http)
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise NoAnswer(f"{replica.http!r} is no address: see its cluster.advertise_http")
        if self._must_encrypt and url.scheme != "https":
            raise NoAnswer(
                f"{replica.http} is not encrypted, this replica is: set its tls.cert_file"
            )
        return url


async def _whole(answer: httpx.Response) -> httpx.Response:
    """`answer` with its body as content."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise NoAnswer(f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
    headers = [(k, v) for k, v in answer.headers.raw if k.lower() != b"content-encoding"]
    return httpx.Response(answer.status_code, headers=headers, content=bytes(body))


def reason(error: Exception) -> str:
    """Why there is no answer."""
    match error:
        case httpx.PoolTimeout():
            return f"{_MAX_CONNECTIONS} requests to other replicas wait already"
        case httpx.TimeoutException():
            return "no answer in time"
        case _:
            return str(error) or type(error).__name__


def _context(tls: TlsFiles, ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cluster.peers_ca_file: {ca_file}: {why(error)}: give PEM certificates"
        ) from None
    if tls.cert_file is not None:
        load_chain(context, tls)
    return context
