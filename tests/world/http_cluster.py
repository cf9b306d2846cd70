"""Three replicas in one process: real listeners over scripted states, in a loop in a thread.

Each has the jobs of its cells, a store and dumps. What a replica knows of the others is its
`ClusterView`, which a test may change: an owner that is gone, one that hangs, one that is no frd.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import ssl
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from frd.address import split_address
from frd.cluster.cells import CELLS, cell_of
from frd.cluster.lease import ClusterView, Replica
from frd.config import TlsFiles
from frd.model import Change, Finding, FindingEvent
from frd.service.access.certificates import Certificates
from frd.service.access.grants import Tokens
from frd.service.http.peers.client import PeerClient
from frd.service.http.peers.peers import Peers
from frd.service.http.routes import WebOptions, create_app
from frd.service.http.web.session import HttpGuard
from frd.service.servers import HttpServer
from frd.service.state import CellState, ClusterState
from tests.world.http_api import Service, job_view

T = TypeVar("T")
NAMES = ("frd-0", "frd-1", "frd-2")
PLAIN = TlsFiles()


def job_of(cell: int, number: int = 0) -> str:
    """The name of a job in this cell."""
    names = (f"job {n}/a" for n in itertools.count())
    return next(itertools.islice((n for n in names if cell_of(n) == cell), number, None))


@dataclass(frozen=True, slots=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Member:
    """One replica."""

    name: str
    service: Service
    peers: Peers
    cells: set[int]
    server: HttpServer = field(init=False)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, target and headers of the requests that arrived."""
    address: str = ""


@dataclass
class Script:
    """What a replica has, and which of its stored findings are copies of another replica's."""

    jobs: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    copies: Sequence[Finding] = ()


class Cluster:
    """`members` by name; the cells 0 to 20 belong to frd-0, 21 to 41 to frd-1, the rest to
    frd-2."""

    def __init__(
        self,
        folder: Path,
        scripts: Mapping[str, Script],
        *,
        token_file: Path | None = None,
        tls: TlsFiles = PLAIN,
        ca_file: Path | None = None,
        peers_ca_file: Path | None = None,
        within_s: float = 5.0,
    ) -> None:
        """`ca_file` signed the certificate; `peers_ca_file` is what the replicas trust, the same by
        default."""
        self.members: dict[str, Member] = {}
        self.unsure: set[str] = set()
        """Replicas whose cells others may have taken over; `show` applies it."""
        self._tls = tls
        self._ca_file = ca_file
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        client = PeerClient(tls, peers_ca_file or ca_file, within_s=within_s)
        for number, name in enumerate(NAMES):
            script = scripts.get(name, Script())
            (folder / name).mkdir()
            views = [job_view(job) for job in script.jobs]
            service = Service(folder / name, views, script.findings)
            service.store.save([FindingEvent(Change.UPDATED, copy) for copy in script.copies])
            cells = {cell for cell in range(CELLS) if min(cell // 21, 2) == number}
            peers = Peers(service.view, client, cells.copy)
            tokens = Tokens(token_file) if token_file else None
            web = WebOptions(tokens)
            app = create_app(service.view, peers, web)
            guarded = HttpGuard(app, tokens, web.refusals) if tokens else app
            member = self.members[name] = Member(name, service, peers, cells)
            certificates = Certificates(tls) if tls.cert_file else None
            member.server = HttpServer(_recorded(guarded, member), "127.0.0.1:0", certificates)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __enter__(self) -> Cluster:
        self._thread.start()
        for member in self.members.values():
            member.address = self.run(member.server.start())
        self.show({name: self._url(member.address) for name, member in self.members.items()})
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        for member in self.members.values():
            member.service.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        async with asyncio.TaskGroup() as together:  # uvicorn looks ten times a second
            for member in self.members.values():
                together.create_task(member.server.stop())
        for member in self.members.values():
            await member.peers.close()

    def _url(self, address: str) -> str:
        return f"{'https' if self._tls.cert_file else 'http'}://{address}"

    def stop(self, name: str) -> None:
        """Nothing listens at its address afterwards; the others still believe that it lives."""
        self.run(self.members[name].server.stop())

    def show(self, urls: Mapping[str, str], **others: Any) -> None:
        """All replicas see these replicas, and the owners that are among them."""
        alive = {name: self.members[name].cells for name in urls if name in self.members}
        replicas = [
            Replica(name, f"{name}:9373", url, "1.2", tuple(sorted(alive.get(name, ()))))
            for name, url in urls.items()
        ]
        owners = {cell: name for name, cells in alive.items() for cell in cells}
        for member in self.members.values():
            view = ClusterView(member.name, replicas, owners, connected=True)
            shown = ClusterState(
                replace(view, **others),
                {CellState.OWNED: len(member.cells), CellState.UNOWNED: CELLS - len(owners)},
                sure=member.name not in self.unsure,
            )
            member.service.state = replace(member.service.state, cluster=shown)

    def urls(self) -> dict[str, str]:
        return {name: self._url(member.address) for name, member in self.members.items()}

    def ask(
        self,
        name: str,
        path: str,
        body: object = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Said:
        """The answer of this replica; with a body, a POST of JSON."""
        where = split_address(self.members[name].address)
        connection = http.client.HTTPConnection(*where, timeout=20)
        if self._tls.cert_file:
            context = ssl.create_default_context(cafile=self._ca_file)
            context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
            connection = http.client.HTTPSConnection(*where, timeout=20, context=context)
        data = None if body is None else json.dumps(body).encode()
        sent = {} if body is None else {"Content-Type": "application/json"}
        with contextlib.closing(connection):
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            named = {key.lower(): value for key, value in answer.getheaders()}
            return Said(answer.status, named, answer.read())


def _recorded(app: Any, member: Member) -> Any:
    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {key.decode(): value.decode("latin-1") for key, value in scope["headers"]}
            target = scope["raw_path"] + b"?" * bool(scope["query_string"]) + scope["query_string"]
            member.asked.append((scope["method"], target.decode(), headers))
        await app(scope, receive, send)

    return recorded


@contextlib.contextmanager
def cluster(folder: Path, scripts: Mapping[str, Script], **others: Any) -> Iterator[Cluster]:
    with Cluster(folder, scripts, **others) as made:
        yield made
