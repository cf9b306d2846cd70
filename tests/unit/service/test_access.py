"""Tokens and certificates: what they let their bearer do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import cast

import grpc.aio
import pytest

from frd.errors import ConfigError
from frd.rpc import Context, open_clock, open_stream
from frd.service.access import refusals
from frd.service.access.admission import Admission
from frd.service.access.grants import EVERYTHING, Grant, Role, Tokens
from frd.service.access.refusals import Refusals
from frd.service.access.token_bucket import TokenBucket
from frd.service.cells.replica import LateHomes
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.pings import Pings
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.collector import Ingest
from frd.service.servers import GrpcServer
from frd_agent.config import load
from frd_agent.uplink.route import Endpoint, Target
from tests.world.daemons import async_until
from tests.world.virtual_time import in_virtual_time

ALL, AGENT, OPERATOR = "a" * 32, "b" * 32, "c" * 32


def tokens(path: Path, *lines: str) -> Tokens:
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return Tokens(path)


def test_a_token_alone_may_do_everything(tmp_path: Path) -> None:
    """One token in the file: its bearer may stream, read and dump for every job."""
    known = tokens(tmp_path / "tokens", "# ours", "", ALL)
    grant = known.grant(f"Bearer {ALL}")
    assert grant is not None
    assert all(grant.may(role) for role in Role)
    assert grant.may_report("any")
    assert known.grant(f"bearer  {ALL} ") == grant


@pytest.mark.parametrize("header", [None, "", "Bearer", f"Basic {ALL}", ALL, f"Bearer {ALL}x"])
def test_others_may_do_nothing(tmp_path: Path, header: str | None) -> None:
    """No header, another scheme and another token: there is no grant."""
    assert tokens(tmp_path / "tokens", ALL).grant(header) is None


def test_limits_behind_a_token(tmp_path: Path) -> None:
    """An agent's token is for its jobs only; an operator may read, a reader may not dump."""
    known = tokens(
        tmp_path / "tokens",
        f"{AGENT} role=agent job=llama job=a%20b  # of one team",
        f"{OPERATOR} role=operator",
    )
    agent, operator = known.grant(f"Bearer {AGENT}"), known.grant(f"Bearer {OPERATOR}")
    assert agent is not None
    assert operator is not None
    assert (agent.may(Role.AGENT), agent.may(Role.READER)) == (True, False)
    assert [agent.may_report(job) for job in ("llama", "a b", "other")] == [True, True, False]
    assert (operator.may(Role.OPERATOR), operator.may(Role.READER)) == (True, True)
    assert not operator.may(Role.AGENT)


def test_a_token_has_a_name(tmp_path: Path) -> None:
    """Percent-encoded, as jobs are; a certificate that narrows its jobs leaves it."""
    line = f"{OPERATOR} name=Ann%20B%C3%A9 role=operator"
    grant = tokens(tmp_path / "tokens", line).grant(f"Bearer {OPERATOR}")
    assert grant is not None
    assert grant.name == grant.narrowed(["urn:frd:job:c"]).name == "Ann B\u00e9"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "contains no token"),
        (f"{ALL} name=", "not a limit"),
        (f"{ALL} name=a%0Ab", "not a limit"),
        (f"{ALL} name=a name=b", "not a limit"),
        (f"{ALL} name={'a' * 101}", "not a limit"),
        ("short", "5 characters"),
        (f"{ALL} jobs=x", "not a limit"),
        (f"{ALL} role=king", "not a limit"),
        (f"{ALL} job=x", "add role=agent"),
        (f"{ALL} job=x role=agent role=reader", "add role=agent"),
    ],
)
def test_a_bad_line_is_an_error(tmp_path: Path, line: str, said: str) -> None:
    """The error gives the number of the bad line, but not its token."""
    with pytest.raises(ConfigError, match=r"^auth\.token_file: ") as caught:
        tokens(tmp_path / "tokens", line)
    assert said in str(caught.value)
    assert ALL not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names the key. A file that is too large is an error because, cut off, a token could
    lose the words that limit it."""
    with pytest.raises(ConfigError, match=r"^auth\.token_file: .*nowhere: No such file"):
        Tokens(tmp_path / "nowhere")
    line = f"{AGENT} role=agent job=a"
    with pytest.raises(ConfigError, match=r"^auth\.token_file: .*over 4194304 bytes"):
        tokens(tmp_path / "tokens", *[line] * (4 * 1024 * 1024 // len(line)))


def test_tokens_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new token is valid immediately, the old one no longer; a broken file changes nothing."""
    path = tmp_path / "tokens"
    known = tokens(path, ALL)
    _replace(path, AGENT)
    assert known.grant(f"Bearer {ALL}") is None
    assert known.grant(f"Bearer {AGENT}") is not None
    _replace(path, "short")
    assert known.grant(f"Bearer {AGENT}") is not None
    assert known.grant(f"Bearer {AGENT}") is not None
    path.unlink()
    assert known.grant(f"Bearer {AGENT}") is not None
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # once for each change, not for each question


def _replace(path: Path, text: str) -> None:
    other = path.with_name("next")
    other.write_text(text)
    os.replace(other, path)


def test_a_certificate_narrows() -> None:
    """Job names in a certificate limit the token's jobs; other names have no effect."""
    names = ["node-7.example", "urn:frd:job:a%2Fb", "urn:frd:job:c"]
    assert EVERYTHING.narrowed(["node-7.example"]) == EVERYTHING
    assert EVERYTHING.narrowed(names).jobs == frozenset({"a/b", "c"})
    agent = Grant(frozenset({Role.AGENT}), frozenset({"c", "d"}))
    assert agent.narrowed(names).jobs == frozenset({"c"})
    assert agent.narrowed(["urn:frd:job:x"]).jobs == frozenset()


class Call:
    """A call of one host."""

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5000"


@pytest.mark.parametrize("reason", ["token", "limit", "version", "order", "fault"])
@in_virtual_time
async def test_a_peer_that_is_refused_again_and_again(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent without a token, or of a release that cannot report to a cluster, tries again every
    few seconds until a person acts: it is logged once a minute, with how often it was not."""
    admission, call = Admission(None, 10), cast(Context, Call())
    for at_s in range(0, 125, 5):
        admission.warn(call, reason, f"refused after {at_s} s")
        await asyncio.sleep(5)
    more = " (11 more since the last such line)"
    lines = ["refused after 0 s", f"refused after 60 s{more}", f"refused after 120 s{more}"]
    assert caplog.messages == lines


@in_virtual_time
async def test_hosts_without_number_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An attacker with a prefix of IPv6 addresses uses each address once: a thousand hosts a minute
    have a separate line each, all others share one; a minute later others have theirs."""
    refusals = Refusals()
    for host in range(3_000):
        refusals.warn(f"2001:db8::{host:x}", "token", "refused")
    assert len(caplog.messages) == 1_001
    await asyncio.sleep(60)
    caplog.clear()
    refusals.warn("2001:db8::", "token", "refused")
    refusals.warn("192.0.2.1", "token", "refused")
    assert caplog.messages == ["refused", "refused"]


# -- agents port -----------------------------------------------------------------------------------
# The agents' port: strangers cannot fill its log, and an agent sends its token only there.


async def test_a_stranger_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty clock streams without a token: all are refused and counted, and logged once."""
    path = tmp_path / "tokens"
    path.write_text("t" * 32)
    path.chmod(0o600)
    clocks = AgentClocks(RealTime())
    pings = Pings(clocks, Admission(Tokens(path), streams_per_peer=100))
    server = GrpcServer(pings.handle, pings.handle, "127.0.0.1:0")
    address = await server.start()
    with caplog.at_level(logging.WARNING):
        async with grpc.aio.insecure_channel(address) as channel:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError, match="no token"):
                    await open_clock(channel).read()
    await server.stop()
    assert sum(clocks.refused.values()) == 20
    assert len(caplog.records) == 1


async def test_an_agent_with_a_wrong_token_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams of rows and of pings with a wrong token are refused after a delay. It may last an
    hour: streams without a token are refused meanwhile."""
    monkeypatch.setattr(refusals, "_DELAY_S", 3600.0)
    path = tmp_path / "tokens"
    path.write_text("t" * 32)
    path.chmod(0o600)
    admission = Admission(Tokens(path), streams_per_peer=100)

    def delayed() -> int:
        return refusals._MAX_DELAYED - admission.refusals._delayed._value

    clocks = AgentClocks(RealTime())
    ingest = Ingest(LateHomes(), admission, stream_bytes_per_s=1 << 20)
    server = GrpcServer(ingest.handle, Pings(clocks, admission).handle, "127.0.0.1:0")
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        for opened in (open_stream, open_clock):
            wrong = opened(channel, metadata=[("authorization", f"Bearer {'x' * 32}")])
            answer = asyncio.create_task(wrong.read())
            await async_until(lambda: delayed() == 1, "a delay")
            for _ in range(2):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await opened(channel).read()
            assert not answer.done()
            wrong.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answer
            await async_until(lambda: not delayed(), "the end of the delay")
    await server.stop()
    assert ingest.refused["token"] == 3
    assert sum(clocks.refused.values()) == 3


def test_peers_that_disconnect_delay_no_others() -> None:
    """A thousand peers that disconnect before their turn leave no debt."""
    bucket = TokenBucket(10.0, 5.0)
    for _ in range(1_000):
        bucket.take(1, 1.0)
    for _ in range(1_000):
        bucket.give_back(1)
    assert bucket.take(1, 1.0) == 0.0
    for _ in range(9):
        bucket.give_back(1)
    assert bucket.take(6, 1.0) == pytest.approx(0.1)


async def test_an_agent_follows_no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a proxy in its environment, the agent still sends its token to the service only."""
    token = tmp_path / "token"
    token.write_text("t" * 32)

    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(b"by the proxy: " + await reader.read(64))
        writer.close()

    async def service(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.read(14))
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
        endpoint = Endpoint((address,), token_file=token)
        async with endpoint.connect(Target(address), "job") as connection:
            stream = connection.stream()
            assert await asyncio.wait_for(received.get(), 30) == b"PRI * HTTP/2.0"
            stream.cancel()
    assert received.empty()


async def test_an_empty_token_file(tmp_path: Path) -> None:
    """A mount that is not filled yet is an error that the agent repeats; it opens no stream."""
    token = tmp_path / "token"
    token.write_bytes(b"")
    endpoint = Endpoint(("127.0.0.1:1",), token_file=token)
    with pytest.raises(ConfigError, match="token: no token: write it on the first line"):
        async with endpoint.connect(Target("127.0.0.1:1"), None):
            raise AssertionError("a connection was opened")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"service": "far:1", "token_file": "FILE"}, r"^token_file: the token would be sent"),
        ({"tls_ca_file": "/nowhere/ca.crt"}, r"^tls_ca_file: /nowhere/ca.crt: No such file"),
        ({"tls_cert_file": "FILE"}, r"^tls_cert_file and tls_key_file: set both"),
        ({"service": "localhost:1,far:1", "token_file": "FILE"}, r"^token_file: .* to far:1: set"),
        ({"service": "a:1,b"}, r"^service: .*'b': write HOST:PORT"),
        ({"service": "a:1,"}, r"^service: .*'': write HOST:PORT"),
        ({"service": "https://a:1,http://b:1"}, r"^service: .* exclude each other"),
        ({"service": "a:1,http://b:1", "tls": True}, r"^service: http://b:1: TLS is asked for"),
        ({"service": "grpc://a"}, r"^service: .*unknown scheme: write HOST:PORT"),
        ({"metrics": "https://127.0.0.1:1"}, r"^metrics: .*speaks no TLS"),
    ],
)
def test_an_agents_mistakes_begin_with_the_key(
    flags: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Errors name the keys that do not go together, and files that are missing."""
    (tmp_path / "file").write_text("t" * 32)
    given = {key: str(tmp_path / "file") if v == "FILE" else v for key, v in flags.items()}
    with pytest.raises(ConfigError, match=message):
        load(None, given)


def test_several_addresses_of_the_service(tmp_path: Path) -> None:
    """Spaces are ignored, and a URL among them asks for TLS to all, which permits a token; one of
    HTTP asks for none."""
    token = tmp_path / "token"
    token.write_text("secret")
    given = {"service": " far-0:1, https://far-1 ,[::1]:2", "token_file": str(token)}
    endpoint = load(None, given).endpoint()
    assert endpoint.addresses == ("far-0:1", "far-1:9373", "[::1]:2")
    assert endpoint.tls
    plain = load(None, {"service": "http://frd:9373/", "metrics": "http://127.0.0.1:1/"})
    assert (plain.service, plain.endpoint().tls) == ("frd:9373", False)
    assert plain.metrics == "127.0.0.1:1"
