"""Where a stream goes next, after which delay, and what is said of a service out of reach."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from frd.errors import ServiceUnavailable
from frd_agent.uplink import route as module
from frd_agent.uplink.route import MAX_REDIRECTS, Backoff, Endpoint, Route, Target, advice, resolve

THREE = ("a:1", "b:1", "c:1")


async def as_given(address: str) -> Sequence[Target]:
    return [Target(address)]


def route_to(*addresses: str, start: int = 0, **options: Any) -> Route:
    return Route(Endpoint(addresses, **options), as_given, lambda count: start % count)


async def taken(route: Route, count: int) -> list[str]:
    return [(await route.next()).address for _ in range(count)]


async def test_the_configured_addresses_take_turns() -> None:
    """A stream begins at any of them, and tries the next one after each failure."""
    assert await taken(route_to(*THREE, start=1), 4) == ["b:1", "c:1", "a:1", "b:1"]
    assert await taken(route_to("a:1", start=7), 3) == ["a:1"] * 3


async def test_a_second_round_does_not_repeat_the_last_failure() -> None:
    """The random start of the next round is the address that has just failed: another is first."""
    route = route_to(*THREE)
    await taken(route, 3)
    route.choose = lambda count: 2 % count
    assert await taken(route, 3) == ["a:1", "b:1", "c:1"]


async def test_a_redirect_comes_first_and_then_the_second_choice() -> None:
    """A welcome names a second choice and the service redirects: the redirect, the second choice,
    then the configured addresses from the start."""
    route = route_to(*THREE)
    await taken(route, 2)
    route.welcomed("next:1")
    route.redirected("owner:1")
    assert await taken(route, 4) == ["owner:1", "next:1", "a:1", "b:1"]


async def test_whether_there_is_another_address() -> None:
    """A single configured address is waited for; a redirect to another one is not."""
    route = route_to("a:1")
    await route.next()
    assert not route.has_others
    route.redirected("b:1")
    await route.next()
    assert route.has_others
    route = route_to(*THREE)
    await route.next()
    assert route.has_others


async def test_the_same_address_again() -> None:
    """A stream ends as planned: the next one goes to the same address, once."""
    route = route_to(*THREE)
    route.redirected("owner:1")
    assert await taken(route, 1) == ["owner:1"]
    route.welcomed("")
    route.again()
    assert await taken(route, 2) == ["owner:1", "a:1"]


async def test_redirects_in_a_circle_end() -> None:
    """Two processes redirect to each other: after a few redirects it is a failure, and the stream
    begins at a configured address; a stream that lasted in between starts the count again."""
    route = route_to("a:1")
    for _ in range(MAX_REDIRECTS):
        route.redirected("b:1")
        assert await taken(route, 1) == ["b:1"]
        route.welcomed("")  # and is redirected again immediately
    with pytest.raises(ServiceUnavailable, match="redirected to b:1 after 3 redirects"):
        route.redirected("b:1")
    assert await taken(route, 1) == ["a:1"]
    for _ in range(2 * MAX_REDIRECTS):
        route.redirected("b:1")
        route.lasted()


@pytest.mark.parametrize(
    ("service", "options", "address", "why"),
    [
        ("127.0.0.1:1", {}, "127.0.0.1:2", ""),
        ("127.0.0.1:1", {}, "10.0.0.1:2", "leave this machine unencrypted"),
        ("localhost:1", {}, "frd-1:2", "leave this machine unencrypted"),
        ("localhost:1", {"tls": True}, "frd-1:2", ""),
        ("localhost:1", {"insecure": True}, "frd-1:2", ""),
        ("localhost:1,far:1", {}, "frd-1:2", ""),
        ("far:1", {}, "frd-1:2", ""),
        ("far:1", {"token_file": Path("token"), "insecure": True}, "frd-1:2", ""),
        ("far:1", {"token_file": Path("token"), "tls": True}, "frd-1:2", ""),
        ("far:1", {}, "frd-1", "write HOST:PORT"),
        ("far:1", {}, "frd-1:0", "port 0"),
        ("far:1", {"tls": True}, "", "write HOST:PORT"),
    ],
)
async def test_where_the_service_may_send_the_agent(
    service: str, options: dict[str, Any], address: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Never out of this machine without TLS, and never to what is no address: one line in the log
    says so, and the configured addresses are tried."""
    caplog.set_level(logging.WARNING)
    addresses = service.split(",")
    for second_choice in (False, True):
        route = route_to(*addresses, **options)
        if second_choice:
            route.welcomed(address)
        elif why:
            for _ in range(2):
                with pytest.raises(ServiceUnavailable, match=why):
                    route.redirected(address)
        else:
            route.redirected(address)
        assert await taken(route, 1) == [addresses[0] if why else address]
    # An empty second choice is not one.
    assert len(caplog.records) == (0 if not why else 1 if not address else 2)


async def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address of the first family is a candidate under the name that TLS verifies; a name with
    one address, this machine, and a name that cannot be resolved are left to gRPC."""
    known = {
        "frd": ["10.0.0.1", "10.0.0.2", "fd00::1"],
        "six": ["fd00::1", "fd00::2", "10.0.0.1"],
        "one": ["10.0.0.1", "fd00::1"],
        "localhost": ["127.0.0.1", "127.0.1.1"],
    }

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror("no such name")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in at], 1, 6, "", (at, port)) for at in known[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await resolve("frd:9") == [Target("10.0.0.1:9", "frd"), Target("10.0.0.2:9", "frd")]
    assert await resolve("six:9") == [Target("[fd00::1]:9", "six"), Target("[fd00::2]:9", "six")]
    for address in ("one:9", "localhost:9", "unknown:9"):
        assert await resolve(address) == [Target(address)]
    route = Route(Endpoint(("frd:9",)), resolve, lambda count: count - 1)
    assert str(await route.next()) == "10.0.0.2:9 (frd)"
    assert str(await route.next()) == "10.0.0.1:9 (frd)"
    assert route.candidates == 2


def test_the_first_tries_wait_half_a_second_at_most() -> None:
    """With three candidates the bound of the delay stays until each has been tried, then doubles;
    after a stream that lasted it is as at first."""
    bounds: list[float] = []

    def roll(low: float, high: float) -> float:
        bounds.append(high)
        return low

    backoff = Backoff(roll)
    for _ in range(5):
        backoff.next_s(0.0, candidates=3)
    backoff.next_s(module.PROVEN_S + 1, candidates=3)
    assert bounds == [0.5, 0.5, 0.5, 1.0, 2.0, 0.5]


FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9373: "


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (FAILED + "Failed to connect to remote host: Connection refused", "is `frd serve` running"),
        (FAILED + "Failed to connect to remote host: Timeout", "may this node reach it?"),
        (
            FAILED + "Trying to connect an http1.x server (HTTP status 404)",
            "name the address of `frd serve --grpc`",
        ),
        ("Received http2 header with status: 404", "name the address of `frd serve --grpc`"),
        (FAILED + "Tls handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "tls_ca_file"),
        ("errors resolving nosuch:1: [lookup error]", "check --service"),
        ("Cancelling all calls", "the service ends"),
        ("Socket closed", "Socket closed: is `frd serve` running there"),
    ],
)
def test_what_to_do(details: str, said: str) -> None:
    """gRPC's own words become what a person can do, without the list of addresses."""
    assert said in advice(details)
    assert "failed to connect to all addresses" not in advice(details)
