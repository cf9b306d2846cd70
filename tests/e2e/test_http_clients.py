"""Clients of a real service over HTTP: answers on a kept connection, and guesses of tokens."""

from __future__ import annotations

import http.client
import json
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest

from frd.address import split_address
from tests.world.certs import Authority
from tests.world.daemons import (
    agent_command,
    fetch,
    first_line,
    free_address,
    running,
    serve_command,
    until,
)

Connect: TypeAlias = Callable[[], http.client.HTTPConnection]

READER, GUESS = "r" * 32, "guess" * 8
DELAYED_ACK_S = 0.04
"""Of Linux, at least."""


@pytest.fixture(params=["http", "https"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """It needs a token. Its log is the file `log`."""
    authority = Authority(tmp_path)
    files = authority.issue("service")
    tokens, config = tmp_path / "tokens", tmp_path / "frd.toml"
    tokens.write_text(f"{READER} role=reader")
    tokens.chmod(0o600)
    tls = f'[tls]\ncert_file = "{files.cert}"\nkey_file = "{files.key}"\n'
    encrypts = request.param == "https"
    config.write_text(f'[auth]\ntoken_file = "{tokens}"\n{tls if encrypts else ""}')
    command = serve_command(tmp_path / "data", "--config", config)
    with running(command, without=("FRD_",), log=tmp_path / "log") as served:
        _, port = split_address(json.loads(first_line(served))["http"])
        context = ssl.create_default_context(cafile=authority.ca)

        def connect() -> http.client.HTTPConnection:
            if encrypts:
                return http.client.HTTPSConnection("localhost", port, context=context)
            return http.client.HTTPConnection("127.0.0.1", port)

        yield connect


def ask(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[int, float]:
    """The status, and the seconds until the answer was complete."""
    began = time.monotonic()
    connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
    with connection.getresponse() as answer:
        answer.read()
    return answer.status, time.monotonic() - began


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/metrics", "/web/vendor/uPlot.iife.min.js"])
def test_a_kept_connection_waits_for_no_ack(service: Connect, path: str) -> None:
    """Small and large answers on a connection that is kept take less time than a delayed ACK of the
    client, which without TCP_NODELAY is part of each answer."""
    with closing(service()) as connection:
        spent = [ask(connection, path, READER) for _ in range(20)]
    assert {status for status, _ in spent} == {200}
    assert statistics.median(spent_s for _, spent_s in spent) < DELAYED_ACK_S / 2


def test_the_agent_waits_for_no_ack(tmp_path: Path) -> None:
    """Scrapes of an agent, whose connections end after each answer, take as little."""
    at = free_address()
    command = agent_command(tmp_path / "run", "--metrics", at, "--service", free_address())
    with running(command, without=("FRD_",), log=tmp_path / "log"):
        until(lambda: fetch(at), "metrics", ignoring=OSError)
        with closing(http.client.HTTPConnection(*split_address(at))) as connection:
            spent = [ask(connection, "/metrics", "")[1] for _ in range(20)]
    assert statistics.median(spent) < DELAYED_ACK_S / 2


def test_only_guesses_wait(service: Connect, tmp_path: Path) -> None:
    """Eight connections guess without a pause. A guess takes a second, the log has one line for
    all and no token, and a reader on the same host is answered meanwhile as before."""
    guesses: list[tuple[int, float]] = []
    others: list[tuple[int, float]] = []

    def guess() -> None:
        with closing(service()) as connection:
            guesses.extend(ask(connection, "/api/v1/jobs", GUESS) for _ in range(2))

    threads = [threading.Thread(target=guess) for _ in range(8)]
    for thread in threads:
        thread.start()
    with closing(service()) as connection:
        while any(thread.is_alive() for thread in threads):
            others.append(ask(connection, "/api/v1/jobs", READER))
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {READER}"})
        counted = connection.getresponse().read().decode()
    assert {status for status, _ in guesses} == {401}
    assert min(spent_s for _, spent_s in guesses) >= 1
    assert {status for status, _ in others} == {200}
    assert statistics.median(spent_s for _, spent_s in others) < 0.5
    assert f'frd_http_refused_total{{reason="token"}} {len(guesses)}' in counted
    log = (tmp_path / "log").read_text()
    assert log.count("HTTP client 127.0.0.1 refused: unknown token") == 1
    assert GUESS not in log
