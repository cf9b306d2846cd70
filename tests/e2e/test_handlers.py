"""torch's real worker server, healthy, stuck, stopped and gone; and servers that misbehave."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from frd.flight.decode import parse
from frd_agent.recorder.worker_server import HandlerFailed, Handlers, Refused, Silent, Withheld
from tests.world.daemons import freeze


async def failure(ask: Awaitable[bytes]) -> Exception:
    with pytest.raises((Refused, Silent, HandlerFailed)) as caught:
        await ask
    return caught.value


@pytest.mark.recorder
@pytest.mark.torch
async def test_a_rank_answers(standing_rank: Callable[[str], Any]) -> None:
    """A rank lists its handlers and dumps its ring; an unknown handler is an error."""
    handlers = Handlers(standing_rank("sleep").socket)
    assert {"fr_trace_json", "ping", "dump_traceback"} <= set(await handlers.names())
    body = await handlers.ask("fr_trace_json", unknown="nccl 2&x=1")
    assert len(parse(body, source="rank").entries) == 50
    unknown = await failure(handlers.ask("no such handler/"))
    assert isinstance(unknown, HandlerFailed)
    assert unknown.status == 404
    small = Handlers(handlers.path, max_bytes=1000)
    assert "more than 1000 bytes" in str(await failure(small.ask("fr_trace_json")))


@pytest.mark.torch
async def test_a_stopped_rank_is_silent_then_well_then_gone(
    standing_rank: Callable[[str], Any],
) -> None:
    """SIGSTOP is silence however often we ask, SIGCONT ends it, and SIGKILL is a refusal."""
    rank = standing_rank("sleep")
    handlers = Handlers(rank.socket)
    freeze(rank.process)
    for _ in range(15):  # more often than the server's accept queue is long
        begun = time.monotonic()
        assert isinstance(await failure(handlers.ask("ping", timeout_s=0.05)), Silent)
        assert time.monotonic() - begun < 1
    rank.process.send_signal(signal.SIGCONT)
    assert await handlers.ask("ping", timeout_s=10) == b"pong"
    rank.process.kill()
    rank.process.wait()
    assert isinstance(await failure(handlers.ask("ping")), Refused)


def test_no_server_listens(tmp_path: Path) -> None:
    """An absent socket, and a socket without a process, are refusals. A plain file, or a path that
    is too long for the kernel, is an error that names the path."""
    left, file, long = tmp_path / "left.sock", tmp_path / "file", tmp_path / ("x" * 120)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left))
    file.touch()
    for path in (tmp_path / "absent.sock", left):
        assert isinstance(asyncio.run(failure(Handlers(path).ask("ping"))), Refused)
    for path in (file, long):
        failed = asyncio.run(failure(Handlers(path).ask("ping")))
        assert isinstance(failed, (HandlerFailed, Refused))
        assert str(path) in str(failed)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        (OK + b"Content-Length: 9\r\n\r\nabc", HandlerFailed, "cut off"),
        (OK, HandlerFailed, "cut off"),
        (b"", HandlerFailed, "cut off"),
        (OK + b"Content-Length: 99999999999\r\n\r\n", HandlerFailed, "more than 1000000 bytes"),
        (OK + b"\r\n" + b"x" * 2_000_000, HandlerFailed, "more than 1000000 bytes"),
        (OK + b"X: " + b"x" * 900_000 + b"\r\n\r\n", HandlerFailed, "no HTTP"),
        (OK + b"X: " + b"x" * 2_000_000, HandlerFailed, "more than 1000000 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 99, HandlerFailed, "no HTTP"),
        (b"HTTP/1.1 100 Go on\r\n\r\n" * 40_000 + OK + b"\r\n", HandlerFailed, "no HTTP"),
        (b"SSH-2.0-x\r\n\r\n", HandlerFailed, "no HTTP"),
        (b"HTTP/1.1 200 OK\xff" + b"\r\nContent-Length: \xb2\r\n\r\nx", None, "x"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nboom", HandlerFailed, "HTTP 500: boom"),
        (OK + b"content-length: 2\r\n\r\nok", None, "ok"),
        (OK + b"\r\nuntil the end", None, "until the end"),
    ],
    ids=map(str, range(14)),
)
async def test_odd_servers(
    tmp_path: Path, answer: bytes, error: type[Exception] | None, expected: str
) -> None:
    """Any answer of a server is read, or refused with a reason, within limits of size."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    path = tmp_path / "odd.sock"
    async with await asyncio.start_unix_server(serve, path):
        asking = Handlers(path, max_bytes=1_000_000).ask("ping")
        if error is None:
            assert (await asking).decode() == expected
        else:
            failed = await failure(asking)
            assert isinstance(failed, error)
            assert expected in str(failed)


async def test_requests_share_a_connection(tmp_path: Path) -> None:
    """All of one reading: the server accepts once. It may close the connection at any time, which
    costs another one. A rank that is short of something is not connected to."""
    accepted: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(0)
        last = b"Connection: close\r\n"
        while accepted[-1] < 3:
            head = await reader.readuntil(b"\r\n\r\n")
            accepted[-1] += 1
            closes = last if accepted[-1] == 3 else b""
            writer.write(OK + closes + b"Content-Length: 2\r\n\r\nok")
            if b"keep-alive" not in head:
                break
        writer.close()

    path, short = tmp_path / "rank.sock", [""]
    handlers = Handlers(path, shortage=lambda: short[0])
    async with await asyncio.start_unix_server(serve, path):
        async with handlers.connected():
            for _ in range(5):
                assert await handlers.ask("ping") == b"ok"
            assert accepted == [3, 2]
            short[0] = "no handles"
            assert await handlers.ask("ping") == b"ok"
            with pytest.raises(Withheld, match="not asked: no handles"):
                await handlers.ask("ping")
        short[0] = ""
        assert await handlers.ask("ping") == await handlers.ask("ping") == b"ok"
        assert accepted == [3, 3, 1, 1]


async def test_a_trickle_is_silence(tmp_path: Path) -> None:
    """A server that sends a byte now and then does not hold the caller beyond its timeout."""

    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        hung_up.set()

    path = tmp_path / "slow.sock"
    async with await asyncio.start_unix_server(serve, path):
        assert isinstance(await failure(Handlers(path).ask("ping", timeout_s=0.2)), Silent)
        await asyncio.wait_for(hung_up.wait(), 5)
