"""The two listeners with certificates, tokens and bad company."""

from __future__ import annotations

import asyncio
import os
import pty
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from frd.address import split_address
from frd.config import TlsFiles
from frd.errors import ConfigError
from frd.rpc import SERVER_OPTIONS, Context, open_stream
from frd.service import servers
from frd.service.access.certificates import Certificates
from frd.service.servers import GrpcServer, HttpServer
from tests.world.certs import Authority, Files


def tls(files: Files, **more: Path) -> TlsFiles:
    return replace(TlsFiles(files.cert, files.key), **more)


# -- HTTP --------------------------------------------------------------------------------------


async def _ok(_: Request) -> Response:
    return PlainTextResponse("ok")


APP = Starlette(routes=[Route("/metrics", _ok)])


@asynccontextmanager
async def http(server: HttpServer) -> AsyncIterator[tuple[str, int]]:
    address = await server.start()
    try:
        yield split_address(address)
    finally:
        await server.stop()


async def fetch(where: tuple[str, int], context: ssl.SSLContext | None = None) -> int:
    """The status."""
    name = "localhost" if context else None
    reader, writer = await asyncio.open_connection(*where, ssl=context, server_hostname=name)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    try:
        line = await reader.readline()
    finally:
        writer.close()
    return int(line.split()[1])


async def test_certificates_on_http_are_read_again(tmp_path: Path) -> None:
    """Files that change are served at the next handshake; a pair that does not fit is not."""
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "other")
    files = ours.issue("service")

    async def trusts(where: tuple[str, int], authority: Authority) -> bool:
        context = ssl.create_default_context(cafile=authority.ca)
        try:
            return await fetch(where, context=context) == 200
        except ssl.SSLCertVerificationError:
            return False

    async with http(HttpServer(APP, "127.0.0.1:0", Certificates(tls(files)))) as where:
        assert (await trusts(where, ours), await trusts(where, theirs)) == (True, False)
        new = theirs.issue("next")
        files.cert.write_bytes(new.cert.read_bytes())  # its key is still the old one
        assert await trusts(where, ours)
        files.key.write_bytes(new.key.read_bytes())
        assert (await trusts(where, ours), await trusts(where, theirs)) == (False, True)


async def test_client_certificates_on_http(tmp_path: Path) -> None:
    """A client without a certificate, or with one of another authority, gets no answer."""
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "other")
    mine, foreign = ours.issue("me", "me"), theirs.issue("foreign", "me")
    certificates = Certificates(tls(ours.issue("service"), http_client_ca_file=ours.ca))

    async def ask(where: tuple[str, int], shown: Files | None) -> int:
        context = ssl.create_default_context(cafile=ours.ca)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        try:
            return await fetch(where, context=context)
        except (OSError, IndexError):  # immediately, or when the refusal arrives
            return 0

    async with http(HttpServer(APP, "127.0.0.1:0", certificates)) as where:
        assert [await ask(where, shown) for shown in (mine, None, foreign)] == [200, 0, 0]


async def test_peers_that_do_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request, nothing at all, and more connections than one host may have: all closed."""
    monkeypatch.setattr(servers, "_REQUEST_S", 0.3)

    server = HttpServer(APP, "127.0.0.1:0", connections_per_peer=4)
    async with http(server) as where:
        opened = [await asyncio.open_connection(*where) for _ in range(6)]
        for _, writer in opened[:2]:
            writer.write(b"GET /metrics HTTP/1.1\r\nHos")
        assert [await _rest(*connection) for connection in opened] == [b""] * 6
        assert await fetch(where) == 200
    assert server.refused == {"slow": 4, "connections": 2}


async def test_a_request_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered already, but its body never ends: the connection is closed."""
    monkeypatch.setattr(servers, "_REQUEST_S", 0.3)

    server = HttpServer(APP, "127.0.0.1:0")
    async with http(server) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"a")
        assert await _rest(reader, writer) in (b"", b"Method Not Allowed")
    assert server.refused == {"slow": 1}


async def test_no_upgrade_to_websockets() -> None:
    """Whatever uvicorn finds installed, the connection is still counted as its host's."""
    head = (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )

    server = HttpServer(APP, "127.0.0.1:0")
    async with http(server) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(head)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert server._server is not None
        assert server._server.config.ws_protocol_class is None


async def _rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What the server sends until it closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


# -- gRPC --------------------------------------------------------------------------------------


@asynccontextmanager
async def grpc_server(
    handler: Callable[[AsyncIterator[bytes], Context], Awaitable[None]],
    certificates: Certificates | None,
) -> AsyncIterator[str]:
    server = GrpcServer(handler, handler, "127.0.0.1:0", certificates)
    address = await server.start()
    try:
        yield f"localhost:{split_address(address)[1]}"
    finally:
        await server.stop()


async def _echo(_: AsyncIterator[bytes], context: Context) -> None:
    names = context.auth_context().get("x509_subject_alternative_name") or ()
    await context.write(b",".join(names))


async def call(address: str, credentials: grpc.ChannelCredentials) -> bytes | None:
    """What the server sends; None if it refuses the call."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        try:
            stream = open_stream(channel, timeout=5)
            said = await stream.read()
        except grpc.aio.AioRpcError:
            return None
        return said if isinstance(said, bytes) else None


def shown(authority: Authority, files: Files | None = None) -> grpc.ChannelCredentials:
    ca = authority.ca.read_bytes()
    if files is None:
        return grpc.ssl_channel_credentials(ca)
    return grpc.ssl_channel_credentials(ca, files.key.read_bytes(), files.cert.read_bytes())


async def test_client_certificates_on_grpc(tmp_path: Path) -> None:
    """Only our certificate is accepted, and its names are known."""
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "other")
    certificates = Certificates(tls(ours.issue("service"), client_ca_file=ours.ca))
    mine = ours.issue("me", "urn:frd:job:a")
    expired = ours.issue("late", "me", expired=True)

    async with grpc_server(_echo, certificates) as address:
        assert await call(address, shown(ours, mine)) == b"urn:frd:job:a"
        for files in (None, theirs.issue("foreign", "me"), expired):
            assert await call(address, shown(ours, files)) is None
    assert certificates.handshakes >= 4


async def test_certificates_on_grpc_are_read_again(tmp_path: Path) -> None:
    """Sixty-four simultaneous handshakes with the files unchanged, then others with new ones."""
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "other")
    files = ours.issue("service")

    async with grpc_server(_echo, Certificates(tls(files))) as address:
        before = await asyncio.gather(*(call(address, shown(ours)) for _ in range(64)))
        assert set(before) == {b""}
        new = theirs.issue("next")
        files.cert.write_bytes(new.cert.read_bytes())
        files.key.write_bytes(new.key.read_bytes())
        assert await call(address, shown(ours)) is None
        assert await call(address, shown(theirs)) == b""


async def test_connections_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that speaks HTTP/2 but opens no stream is disconnected: it was not authenticated."""
    idle = "grpc.max_connection_idle_ms"
    assert dict(SERVER_OPTIONS)[idle] == 30_000
    quick = {**dict(SERVER_OPTIONS), idle: 200}
    monkeypatch.setattr(servers, "SERVER_OPTIONS", tuple(quick.items()))

    async with grpc_server(_echo, None) as address:
        port = int(address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert b"connection idle" in await _rest(reader, writer)


def test_a_key_with_a_password(tmp_path: Path) -> None:
    """OpenSSL does not ask the terminal for it, which would block the start."""
    files = Authority(tmp_path).issue("service")
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    code = (
        "from pathlib import Path; from frd.config import TlsFiles; "
        "from frd.service.access.certificates import Certificates; "
        f"Certificates(TlsFiles(Path({str(files.cert)!r}), Path({str(files.key)!r})))"
    )
    terminal, end = pty.openpty()  # OpenSSL would open the terminal that the session has
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=end, stderr=subprocess.PIPE, start_new_session=True
    ) as starting:
        os.close(end)
        try:
            _, said = starting.communicate(timeout=60)
        finally:
            starting.kill()
            os.close(terminal)
    assert b"whose key is in tls.key_file, unencrypted" in said
    assert b"pass phrase" not in said


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("cert_file", "no pem"),
        ("key_file", "no pem"),
        ("client_ca_file", "no pem"),
        ("http_client_ca_file", ""),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, key: str, text: str) -> None:
    """The error begins with the key, and says if a file is missing."""
    ours = Authority(tmp_path)
    good = tls(ours.issue("service"), client_ca_file=ours.ca, http_client_ca_file=ours.ca)
    (tmp_path / "bad").write_text(text)
    named = "cert_file" if key == "key_file" else key  # a key is checked with its certificate
    with pytest.raises(ConfigError, match=rf"^tls\.{named}: "):
        Certificates(replace(good, **{key: tmp_path / "bad"}))
    with pytest.raises(ConfigError, match=rf"^tls\.{key}: .*No such file"):
        Certificates(replace(good, **{key: tmp_path / "nowhere"}))
