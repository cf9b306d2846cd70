"""Guessing tokens over HTTP: slow, counted, and one line of the log a minute."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from frd.service.access import refusals
from frd.service.access.grants import Tokens
from frd.service.http.routes import WebOptions, create_app
from frd.service.http.web.session import COOKIE, SECURE_COOKIE, HttpGuard
from tests.world.http_api import Service
from tests.world.virtual_time import in_virtual_time

READER, AGENT, GUESS = "r" * 32, "a" * 32, "guess" * 8
SESSION = "/api/v1/session"


class Asked:
    """A service with tokens, and clients of it by their address."""

    def __init__(self, service: Service, folder: Path) -> None:
        path = folder / "tokens"
        path.write_text(f"{READER} role=reader\n{AGENT} role=agent\n")
        path.chmod(0o600)
        web = WebOptions(Tokens(path))
        self.counted = web.refusals.http
        self._app: Any = HttpGuard(create_app(service.view, web=web), Tokens(path), web.refusals)

    async def ask(
        self, method: str, path: str, host: str = "192.0.2.1", **options: Any
    ) -> tuple[int, float]:
        """The status, and the seconds until the answer."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        transport = httpx.ASGITransport(self._app, client=(host, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://frd") as client:
            answer = await client.request(method, path, **options)
        return answer.status_code, round(loop.time() - began_s, 3)


def bearer(token: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {token}"}}


def cookie(name: str, token: str) -> dict[str, Any]:
    return {"headers": {"cookie": f"{name}={base64.urlsafe_b64encode(token.encode()).decode()}"}}


@pytest.fixture
def asked(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(refusals, "_DELAY_S", 1.0)
    return Asked(service, tmp_path)


@in_virtual_time
async def test_every_way_to_guess_is_slow(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    """In a header, in a cookie, at the sign-in, and where a page asks whether it is signed in: a
    wrong token is answered after a second. The log has one line for all, without the token."""
    guesses: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "/api/v1/jobs", bearer(GUESS), 401),
        ("GET", "/metrics", bearer(GUESS), 401),
        ("GET", "/nowhere", bearer(GUESS), 401),
        ("GET", "/api/v1/jobs", {"headers": {"authorization": f"Basic {GUESS}"}}, 401),
        ("GET", "/api/v1/jobs", cookie(COOKIE, GUESS), 401),
        ("GET", "/api/v1/jobs", cookie(SECURE_COOKIE, GUESS), 401),
        ("POST", SESSION, {"json": {"token": GUESS}}, 401),
        ("GET", SESSION, bearer(GUESS), 200),
        ("HEAD", SESSION, bearer(GUESS), 200),
        ("GET", SESSION, cookie(COOKIE, GUESS), 200),
    ]
    for method, path, options, status in guesses:
        assert await asked.ask(method, path, **options) == (status, 1.0), (path, options)
    assert +asked.counted == {"token": len(guesses)}
    assert caplog.messages == ["HTTP client 192.0.2.1 refused: unknown token"]
    await asyncio.sleep(60)
    await asked.ask("GET", "/metrics", **bearer(GUESS))
    assert caplog.messages[1:] == [f"{caplog.messages[0]} (9 more since the last such line)"]
    assert GUESS not in caplog.text


@in_virtual_time
async def test_no_other_request_waits(asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    """While a host guesses as fast as it can, requests from the same host with the right token,
    without any (a browser's first visit, a probe), or with one of another role wait for nothing."""
    guessing = [asyncio.create_task(asked.ask("GET", "/metrics", **bearer(GUESS)))]
    guessing += [asyncio.create_task(asked.ask("GET", SESSION, **bearer(GUESS))) for _ in range(40)]
    await asyncio.sleep(0.1)
    others: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "/api/v1/jobs", bearer(READER), 200),
        ("GET", "/api/v1/jobs", cookie(COOKIE, READER), 200),
        ("POST", SESSION, {"json": {"token": READER}}, 200),
        ("POST", SESSION, {"json": {"token": READER}} | cookie(COOKIE, GUESS), 200),
        ("GET", SESSION, {}, 200),
        ("GET", "/-/healthy", bearer(GUESS), 200),
        ("GET", "/api/v1/jobs", {}, 401),
        ("GET", "/api/v1/jobs", bearer(AGENT), 403),
    ]
    for method, path, options, status in others:
        assert await asked.ask(method, path, **options) == (status, 0.0), (path, options)
    assert not any(task.done() for task in guessing)
    assert {spent_s for _, spent_s in await asyncio.gather(*guessing)} == {1.0}
    assert len(caplog.messages) == 1


@in_virtual_time
async def test_delays_leave_connections(asked: Asked) -> None:
    """Of two hundred guesses at the same time, sixty-four hold a connection for the delay."""
    guesses = (asked.ask("GET", "/metrics", **bearer(GUESS)) for _ in range(200))
    spent = [spent_s for _, spent_s in await asyncio.gather(*guesses)]
    assert (spent.count(1.0), spent.count(0.0)) == (64, 136)
    assert await asked.ask("GET", "/metrics", **bearer(GUESS)) == (401, 1.0)
