"""The agents' port: what strangers cannot do to it, and what its line does not tell them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc.aio
import pytest

from frd.errors import ConfigError
from frd.rpc import open_clock
from frd.service.access.admission import Admission
from frd.service.access.grants import Tokens
from frd.service.access.token_bucket import TokenBucket
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.pings import Pings, raw_now
from frd.service.clocks.real_time import RealTime
from frd.service.servers import GrpcServer
from frd_agent.config import load
from frd_agent.uplink.endpoint import Endpoint


def test_a_stranger_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty clock streams without a token: twenty are refused and counted, the log tells once."""
    path = tmp_path / "tokens"
    path.write_text("t" * 32)
    path.chmod(0o600)
    clocks = AgentClocks(RealTime(), raw_now)
    pings = Pings(clocks, Admission(Tokens(path), streams_per_peer=100))

    async def knock() -> None:
        server = GrpcServer(pings.handle, pings.handle, "127.0.0.1:0")
        address = await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError, match="no token"):
                    await open_clock(channel).read()
        await server.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(knock())
    assert sum(clocks.refused.values()) == 20
    assert len(caplog.records) == 1


def test_who_hangs_up_keeps_nobody_waiting() -> None:
    """A thousand that left the queue before their turn leave no debt behind."""
    pace = TokenBucket(10.0, 5.0)
    for _ in range(1_000):
        pace.take(1, 1.0)
    for _ in range(1_000):
        pace.give_back(1)
    assert pace.take(1, 1.0) == 0.0
    for _ in range(9):
        pace.give_back(1)
    assert pace.take(6, 1.0) == pytest.approx(0.1)


def test_an_agent_follows_no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a proxy in its environment the agent's token still goes straight to the service."""
    token = tmp_path / "token"
    token.write_text("t" * 32)

    async def call() -> tuple[bytes, list[bytes]]:
        heard: list[bytes] = []
        came: asyncio.Queue[bytes] = asyncio.Queue()

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(64))
            writer.close()
            came.put_nowait(b"")

        async def service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.put_nowait(await reader.read(14))
            writer.close()

        async with (
            await asyncio.start_server(proxy, "127.0.0.1", 0) as wrong,
            await asyncio.start_server(service, "127.0.0.1", 0) as right,
        ):
            for name in ("no_grpc_proxy", "no_proxy"):
                monkeypatch.delenv(name, raising=False)
            for name in ("grpc_proxy", "https_proxy", "http_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{wrong.sockets[0].getsockname()[1]}")
            address = f"127.0.0.1:{right.sockets[0].getsockname()[1]}"
            async with Endpoint(address, token_file=token).connect() as line:
                stream = line.stream()
                first = await asyncio.wait_for(came.get(), 30)
                stream.cancel()
            return first, heard

    assert asyncio.run(call()) == (b"PRI * HTTP/2.0", [])


def test_an_empty_token_file_is_no_licence_to_go_without(tmp_path: Path) -> None:
    """A mount that is not filled yet: the agent says so and tries again, and sends no stream."""
    token = tmp_path / "token"
    token.write_bytes(b"")

    async def call() -> None:
        async with Endpoint("127.0.0.1:1", token_file=token).connect():
            raise AssertionError("a connection was opened")

    with pytest.raises(ConfigError, match="token: no token: write it on the first line"):
        asyncio.run(call())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"service": "far:1", "token_file": "FILE"}, r"^token_file: the token would be sent"),
        ({"tls_ca_file": "/nowhere/ca.crt"}, r"^tls_ca_file: /nowhere/ca.crt: No such file"),
        ({"tls_cert_file": "FILE"}, r"^tls_cert_file and tls_key_file: set both"),
    ],
)
def test_an_agents_mistakes_begin_with_the_key(
    flags: dict[str, str], said: str, tmp_path: Path
) -> None:
    """Keys that do not go together, and files that are not there, are told by their names."""
    (tmp_path / "file").write_text("t" * 32)
    given = {key: str(tmp_path / "file") if v == "FILE" else v for key, v in flags.items()}
    with pytest.raises(ConfigError, match=said):
        load(None, given)
