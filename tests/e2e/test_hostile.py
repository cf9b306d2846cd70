"""A service beyond loopback and hostile clients: they are refused and counted, agents go on."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest

from frd.address import split_address
from frd.cli.client import Client, tls_context
from frd.credentials import read_token
from frd.errors import FrdError
from frd.rpc import CHANNEL_OPTIONS, open_stream
from frd.wire.messages import Ack, Goodbye, Refusal, Welcome
from tests.world.certs import Authority, Files
from tests.world.daemons import until
from tests.world.streams import Peer, entries, serving

pytestmark = pytest.mark.timeout(240)

AGENT, OF_ONE_JOB, READER = "a" * 32, "j" * 32, "r" * 32
AGENTS, BATCHES, ROWS = 64, 20, 50
EACH = 100
"""Hostile clients of each kind; there are ten kinds."""


@dataclass(frozen=True)
class Service:
    pid: int
    grpc: tuple[str, int]
    http: tuple[str, int]
    ours: Authority
    agent: Files
    client: Client

    def metric(self, series: str) -> float:
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.client.text("/metrics"), re.M)
        return float(found[1]) if found else 0.0

    def reaches(self, series: str, value: float) -> None:
        """The published state is up to a second old, and handshakes are pending for a while."""
        until(lambda: self.metric(series) >= value, lambda: f"{series} is {self.metric(series)}")

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Listens with TLS, tokens and client certificates, as on a cluster."""
    ours = Authority(tmp_path)
    own, agent = ours.issue("service"), ours.issue("agent", "agent")
    tokens, reader = tmp_path / "tokens", tmp_path / "reader"
    tokens.write_text(f"{AGENT} role=agent\n{OF_ONE_JOB} role=agent job=mine\n{READER} role=reader")
    tokens.chmod(0o600)
    reader.write_text(READER)
    config = tmp_path / "frd.toml"
    config.write_text(
        f'[tls]\ncert_file = "{own.cert}"\nkey_file = "{own.key}"\nclient_ca_file = "{ours.ca}"\n'
        f'[auth]\ntoken_file = "{tokens}"\n'
    )
    addresses = ("--grpc", "0.0.0.0:0", "--http", "0.0.0.0:0")
    with serving(tmp_path / "data", "--config", config, *addresses) as served:
        grpc, http = (("localhost", split_address(at)[1]) for at in (served.grpc, served.http))
        tls = tls_context(ours.ca, None)
        client = Client(f"localhost:{http[1]}", tls=tls, token=read_token("--token-file", reader))
        yield Service(served.process.pid, grpc, http, ours, agent, client)


# -- agents ------------------------------------------------------------------------------------


@asynccontextmanager
async def line(
    service: Service, token: str, shown: Files | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    files = shown or service.agent
    credentials = grpc.ssl_channel_credentials(
        service.ours.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
    )
    options = [("grpc.use_local_subchannel_pool", 1), *CHANNEL_OPTIONS]
    host, port = service.grpc
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options) as channel:
        yield channel


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def agent(service: Service, number: int, hostile: asyncio.Event) -> int:
    """Streams until the hostile clients are gone and all rows are acknowledged; returns rows."""
    async with line(service, AGENT) as channel:
        call = open_stream(channel, metadata=bearer(AGENT))
        peer = Peer(call, 0, f"s{number}", f"job-{number}")
        await peer.introduce()
        sent = 0
        while sent < BATCHES * ROWS or not hostile.is_set():
            await peer.send(entries(sent + 1, sent, ROWS))
            sent += ROWS
            while (await peer.receive_a(Ack, 60)).revisions[0] < sent:
                pass
            await asyncio.sleep(0.2)
        await peer.send(Goodbye("done"))
        return sent


# -- hostile clients ---------------------------------------------------------------------------


async def raw(where: tuple[str, int], data: bytes, hold_s: float = 0.0) -> None:
    reader, writer = await asyncio.open_connection(*where)
    with suppress(OSError, TimeoutError):
        writer.write(data)
        await asyncio.wait_for(reader.read(), hold_s or 5)
    writer.close()


async def handshake(service: Service, files: Files | None) -> None:
    context = ssl.create_default_context(cafile=service.ours.ca)
    context.set_alpn_protocols(["h2"])
    if files is not None:
        context.load_cert_chain(files.cert, files.key)
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(*service.grpc, ssl=context)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def call(service: Service, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
    async with line(service, "") as channel:
        stream = open_stream(channel, metadata=metadata, timeout=30)
        with suppress(grpc.aio.AioRpcError):
            while isinstance(await stream.read(), bytes):
                pass
        return await stream.code()


async def https(service: Service, head: bytes, hold_s: float = 5.0) -> bytes:
    context = ssl.create_default_context(cafile=service.ours.ca)
    reader, writer = await asyncio.open_connection(*service.http, ssl=context)
    try:
        writer.write(head)
        return await asyncio.wait_for(reader.read(), hold_s)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()


def hostile_clients(service: Service, folder: Path) -> list[Callable[[], Awaitable[object]]]:
    """One of each kind."""
    theirs = Authority(folder, "theirs")
    foreign = theirs.issue("foreign", "agent")
    expired = service.ours.issue("expired", "agent", expired=True)
    large = (*bearer(AGENT), ("x-large", "x" * 100_000))
    return [
        lambda: raw(service.grpc, b"\x00garbage\xff" * 100),
        lambda: raw(service.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        lambda: raw(service.grpc, b"\x16", hold_s=12),
        lambda: handshake(service, None),
        lambda: handshake(service, foreign),
        lambda: handshake(service, expired),
        lambda: call(service, bearer("x" * 32)),
        lambda: call(service, large),
        lambda: https(service, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        lambda: https(service, b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ", hold_s=15),
    ]


@pytest.mark.long
def test_agents_go_on_among_hostile_clients(service: Service, tmp_path: Path) -> None:
    """A thousand hostile clients of ten kinds while 64 agents stream: no row is lost, and each
    client is counted."""

    async def all_of_them() -> tuple[list[int], int]:
        hostile = asyncio.Event()
        agents = [asyncio.create_task(agent(service, n, hostile)) for n in range(AGENTS)]
        kinds = hostile_clients(service, tmp_path)
        room = asyncio.Semaphore(200)
        before = service.rss_bytes()

        async def one(kind: Callable[[], Awaitable[object]]) -> None:
            async with room:
                await kind()

        await asyncio.gather(*(one(kind) for _ in range(EACH) for kind in kinds))
        hostile.set()
        return await asyncio.gather(*agents), service.rss_bytes() - before

    rows, grown = asyncio.run(all_of_them())
    assert len(rows) == AGENTS
    service.reaches("frd_ingest_entries_total", sum(rows))
    assert service.metric("frd_ingest_entries_total") == sum(rows)
    assert grown < 150e6

    for series in (
        'frd_ingest_refused_total{reason="token"}',
        # gRPC refuses too large a head itself, and the stream ends before it began.
        'frd_ingest_refused_total{reason="aborted"}',
        'frd_http_refused_total{reason="token"}',
        'frd_http_refused_total{reason="slow"}',
    ):
        service.reaches(series, EACH)
        assert service.metric(series) == EACH, series
    for reason in ("parse", "limit", "job"):
        assert service.metric(f'frd_ingest_refused_total{{reason="{reason}"}}') == 0, reason
    service.reaches("frd_handshakes_failed_total", 6 * EACH)
    # Clients try the addresses of a name side by side, so that some of theirs come to nothing too.
    assert service.metric("frd_handshakes_failed_total") < 7 * EACH


def test_a_token_is_good_for_its_jobs(service: Service) -> None:
    """A stream that declares another job than its token or certificate allows is refused."""
    narrow = service.ours.issue("narrow", "agent", "urn:frd:job:mine")

    async def event_after(token: str, shown: Files, job: str) -> type[object]:
        async with line(service, token, shown) as channel:
            peer = Peer(open_stream(channel, metadata=bearer(token)), 0, "s", job)
            await peer.send(peer.hello())
            assert isinstance(await peer.receive(), Welcome)
            await peer.send(peer.declare())
            if job == "mine":  # The other stream may be over already, and a write to it fails.
                await peer.send(entries(1, 0, 1))
            event = await peer.receive()
            if isinstance(event, Refusal):
                assert event.reason == "job"
            return type(event)

    async def ask() -> list[type[object]]:
        wide = service.agent
        return [
            await event_after(OF_ONE_JOB, wide, "mine"),
            await event_after(OF_ONE_JOB, wide, "other"),
            await event_after(AGENT, narrow, "mine"),
            await event_after(AGENT, narrow, "other"),
        ]

    assert asyncio.run(ask()) == [Ack, Refusal, Ack, Refusal]
    service.reaches('frd_ingest_refused_total{reason="job"}', 2)


def test_a_reader_reads_and_no_more(service: Service) -> None:
    """Findings can be listed with the reader's token; dumps cannot be taken, and nothing can
    be read without a token."""
    assert service.client.get("/api/v1/findings")["findings"] == []
    with pytest.raises(FrdError, match="role"):
        service.client.post("/api/v1/jobs/x/dumps", {})
    stranger = Client(service.client.address, tls=tls_context(service.ours.ca, None))
    with pytest.raises(FrdError, match="token"):
        stranger.get("/api/v1/findings")
    assert stranger.text("/-/healthy")
    untrusting = Client(service.client.address, tls=ssl.create_default_context())
    with pytest.raises(FrdError, match="TLS"):
        untrusting.get("/api/v1/findings")
