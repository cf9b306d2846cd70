"""Questions to several replicas at the same time, and which of them did not answer.

While the registry does not answer a replica, others may have taken over its cells. Its agents would
not notice: their streams are well, and acknowledge nothing. So it asks the others, as long as it is
cut off, which cells they have (`CutOff`). Only an answer of a replica that the registry answers
counts. While the registry answers none, there is no such answer, and every replica keeps what it
has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frd.cluster.lease import ClusterView, Replica
from frd.service.http.peers import merging
from frd.service.http.peers.client import READ_S, Forwarded, NoAnswer, PeerClient, reason
from frd.service.http.peers.merging import Gathered, Heard, Json
from frd.service.periodic import repeat

CELLS_HEADER: Final = "frd-cells"
"""Header of the answer to a forwarded request for a list: the cells whose jobs it has. Of the
answer to one for readiness: the replica's cells, if the registry answers it."""

UNSURE_HEADER: Final = "frd-unsure"
"""Of such an answer, if another replica may have taken over what the replica has."""
_EVERY_S: Final = 1.0
_TARGET: Final = b"/-/ready"
"""It needs no token, of which a replica has none to ask others with."""
FORWARDED: Final = "frd-forwarded"
"""Header of a forwarded request: the replica that forwards it."""
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization")
    + (b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_OF_ONE_REQUEST: Final = frozenset((b"host", b"origin", b"content-length", FORWARDED.encode()))
"""The replica that a browser asks has checked the origin, which fits no other replica's host."""
_OF_ONE_SERVER: Final = frozenset((b"date", b"server"))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question to all replicas."""

    target: str
    """Below ``/api/v1/``."""
    form: type[msgspec.Struct]
    """What an answer must have, which is decodable."""
    merge: Callable[[Gathered], Json] = lambda of: of.own.json
    """One answer of all."""
    job: str | None = None
    """If there is one, only its owner is asked."""


class Questions:
    """`view` returns the cluster as this replica sees it."""

    def __init__(self, client: PeerClient, view: Callable[[], ClusterView]) -> None:
        self._client = client
        self._view = view
        self._silent: dict[str, str] = {}
        """Replicas that did not answer the last question, and why."""

    async def ask(
        self,
        replicas: Sequence[Replica],
        request: Request,
        wanted: Wanted,
    ) -> tuple[list[Heard], list[str]]:
        """The answers that have arrived in time, and the names of replicas without one, or that are
        not sure of it. Status 404 is an answer, with nothing in it."""
        sent = asked(request, self._view().me, f"/api/v1/{wanted.target}")

        async def one(replica: Replica) -> Heard | NoAnswer | None:
            try:
                if (answered := await self._client.ask(replica, sent)) is None:
                    return None
                said = await asyncio.to_thread(merging.decode, answered.content, wanted.form)
                return Heard(said, cells_in(answered), UNSURE_HEADER not in answered.headers)
            except NoAnswer as error:
                return error
            except ValueError as error:
                return NoAnswer(f"its answer is not frd's: {error}")

        answers = await asyncio.gather(*map(one, replicas))
        silent = []
        for replica, said in zip(replicas, answers, strict=True):
            if isinstance(said, NoAnswer) or (said is not None and not said.is_sure):
                silent.append(replica.name)
            self._heard(replica.name, str(said) if isinstance(said, NoAnswer) else "")
        return [said for said in answers if isinstance(said, Heard)], silent

    def _heard(self, name: str, why: str) -> None:
        """Log when a replica stops to answer and when it answers again, not each question."""
        if why and name not in self._silent:
            log.warning("replica %s: did not answer: %s", name, why)
        elif not why and name in self._silent:
            log.info("replica %s: answers again", name)
        view = self._view()
        self._silent = {one: said for one, said in self._silent.items() if view.replica(one)}
        if why:
            self._silent[name] = why
        else:
            self._silent.pop(name, None)

    async def first_that_has(
        self, request: Request, others: Sequence[Replica]
    ) -> tuple[Relay | None, list[str]]:
        """The first answer with status 200; and the replicas that did not answer."""
        sent = forwarded(request, self._view().me)
        tasks = [asyncio.create_task(self._opened(replica, sent)) for replica in others]
        found: Relay | None = None
        silent = []
        for done in asyncio.as_completed(tasks):
            replica, answered = await done
            self._heard(replica.name, str(answered) if isinstance(answered, NoAnswer) else "")
            if isinstance(answered, NoAnswer):
                silent.append(replica.name)
            elif answered is not None:
                found = Relay(request, replica.name, answered)
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            late = None if task.cancelled() else task.result()[1]
            if isinstance(late, httpx.Response) and not (found and found.answer is late):
                await late.aclose()
        return found, silent

    async def _opened(
        self, replica: Replica, sent: Forwarded
    ) -> tuple[Replica, httpx.Response | NoAnswer | None]:
        try:
            return replica, await self._client.found(replica, sent)
        except NoAnswer as error:
            return replica, error


def cells_in(answer: httpx.Response) -> frozenset[int]:
    return frozenset(int(cell) for cell in answer.headers.get(CELLS_HEADER, "").split(",") if cell)


@dataclass(slots=True, eq=False)
class CutOff:
    """`taken` gets each cell of `cells` that another replica has, and the address of that replica
    for agents."""

    client: PeerClient
    view: Callable[[], ClusterView]
    cells: Callable[[], Collection[int]]
    taken: Callable[[int, str], None]

    async def run(self) -> None:
        await repeat("cells that other replicas have", _EVERY_S, self.look)

    async def look(self) -> None:
        view = self.view()
        if view.connected or not self.cells():
            return
        others = [replica for replica in view.replicas if replica.name != view.me]
        sent = Forwarded("GET", _TARGET, [(FORWARDED.encode(), view.me.encode("ascii"))])
        answers = await asyncio.gather(*(self._ask(replica, sent) for replica in others))
        for replica, theirs in zip(others, answers, strict=True):
            for cell in theirs & frozenset(self.cells()):
                self.taken(cell, replica.grpc)

    async def _ask(self, replica: Replica, sent: Forwarded) -> frozenset[int]:
        try:
            answer = await self.client.ask(replica, sent)
            return cells_in(answer) if answer is not None else frozenset()
        except (NoAnswer, ValueError):
            return frozenset()  # it is asked again


def is_forwarded(request: Request) -> bool:
    return FORWARDED in request.headers


def forwarded(request: Request, me: str, body: bytes = b"", read_s: float = READ_S) -> Forwarded:
    """`request` as it is, to another replica."""
    headers = [pair for pair in _passed(request.headers.raw) if pair[0] not in _OF_ONE_REQUEST]
    headers.append((FORWARDED.encode(), me.encode("ascii", "replace")))
    return Forwarded(request.method, _target(request), headers, body, read_s)


def asked(request: Request, me: str, target: str) -> Forwarded:
    """A question to another replica, with the token of the client that sent `request`."""
    headers = [
        (b"accept", b"application/json"),
        (FORWARDED.encode(), me.encode("ascii", "replace")),
    ]
    if (token := request.headers.get("authorization")) is not None:
        headers.append((b"authorization", token.encode("latin-1")))
    return Forwarded("GET", target.encode("ascii"), headers)


def _target(request: Request) -> bytes:
    path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    query = request.scope["query_string"]
    return path + (b"?" + query if query else b"")


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """All but those that concern one connection. Names are in lower case."""
    lower = [(name.lower(), value) for name, value in headers]
    listed = {
        word.strip().lower()
        for name, value in lower
        if name == b"connection"
        for word in value.split(b",")
    }
    return [pair for pair in lower if pair[0] not in _HOP_BY_HOP | listed]


class Relay(Response):
    """The answer of another replica, passed on while it arrives."""

    def __init__(self, request: Request, replica: str, answer: httpx.Response) -> None:
        self.status_code = answer.status_code
        self.background = None
        self.raw_headers = [
            pair for pair in _passed(answer.headers.raw) if pair[0] not in _OF_ONE_SERVER
        ]
        self._request = request
        self._replica = replica
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = "http.response.body"
        start = {"status": self.status_code, "headers": self.raw_headers}
        try:
            await send({"type": "http.response.start", **start})
            async for chunk in self.answer.aiter_raw():
                if await self._request.is_disconnected():
                    return
                await send({"type": body, "body": chunk, "more_body": True})
            await send({"type": body, "body": b"", "more_body": False})
        except httpx.HTTPError as error:
            # The server closes a connection whose answer has no end, which the client notices.
            log.warning("replica %s: its answer broke off: %s", self._replica, reason(error))
        finally:
            await self.answer.aclose()
