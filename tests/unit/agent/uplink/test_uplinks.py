"""The streams of one agent: which are open, what each sends, and how they share the bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from frd.errors import ServiceUnavailable
from frd.model import (
    AttemptKey,
    EntryColumns,
    Flags,
    GroupInfo,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    SeriesInfo,
    SeriesKind,
    Signature,
)
from frd.wire.messages import PROTOCOL, Goodbye, Hello
from frd_agent.counters import Counters
from frd_agent.memory.samples import NodeSamples, Samples
from frd_agent.memory.target import Reading
from frd_agent.node_time import NodeTime, raw_now
from frd_agent.uplink import dictionary
from frd_agent.uplink import route as module
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.node_clock import LONGEST_PAUSE_S
from frd_agent.uplink.outbox import ROW_BYTES
from frd_agent.uplink.reports import Reports
from frd_agent.uplink.route import MAX_REDIRECTS, Backoff, Endpoint, Route, Target, advice, resolve
from frd_agent.uplink.uplinks import LINGER_S, MAX_LINGERING, Uplinks
from tests.world.daemons import async_until, free_address
from tests.world.messages import entry_columns
from tests.world.replicas import Replica, serving

NOW: Final = 10**18
OUTBOX_BYTES: Final = 4_000 * ROW_BYTES


class Node:
    """An agent's dictionary and uplinks, and ranks without processes."""

    def __init__(self, *addresses: str, outbox_bytes: int = OUTBOX_BYTES) -> None:
        self.dictionary, self.stats = Dictionary(), Counters()
        self.open: dict[str, list[EntryColumns]] = {}
        self.uplinks = Uplinks(
            *(Endpoint(addresses), outbox_bytes, self.dictionary, self.stats, NodeTime(self.stats)),
            hello=lambda: Hello(PROTOCOL, "0", "node", "boot", "session", NodeNs(1), NodeRawNs(1)),
            in_flight=lambda job: self.open.get(job, []),
            on_request=lambda stream, request: None,
        )

    def rank(self, job: str, world: int = 1) -> tuple[Reports, int]:
        attempt = self.dictionary.attempt(AttemptKey(job, 0), world)
        return self.uplinks.reports(attempt), self.dictionary.rank(
            attempt, RankInfo(0, world, "node", "boot", 100)
        )

    def rows(self, rank: int, seqs: Iterable[int], op: str = "all_reduce") -> EntryColumns:
        attempt = self.dictionary.attempt_of(rank)
        return entry_columns(
            seqs,
            rank=rank,
            group=self.dictionary.group(attempt, GroupInfo("0", "default_pg", (0,))),
            signature=self.dictionary.signature(Signature("gloo", op)),
            flags=Flags.JOINED,
            created=NOW,
        )


@asynccontextmanager
async def node(*addresses: str, outbox_bytes: int = OUTBOX_BYTES) -> AsyncIterator[Node]:
    made = Node(*addresses, outbox_bytes=outbox_bytes)
    try:
        yield made
    finally:
        await asyncio.wait_for(made.uplinks.close(), 10)


async def test_jobs_of_one_name_and_two_sizes() -> None:
    """The second job called train, of another world size, has another name, which is that of its
    stream: the service finds the job by it."""
    replica = Replica()
    async with serving(replica), node(replica.address) as agent:
        agent.rank("train", 2)
        agent.rank("train", 4)
        await async_until(lambda: len(replica.open) == 2, "both welcomes")
        assert sorted(map(str, replica.jobs)) == ["train", "train (world size 4)"]


async def test_one_of_the_streams_to_a_replica_pings() -> None:
    """Three jobs at one replica, which learns the node's clock from any stream: the first pings,
    the others rarely; when its job is over, the second one."""
    replica = Replica()
    async with serving(replica), node(replica.address) as agent:
        for job in "abc":
            agent.rank(job)
        await async_until(lambda: agent.uplinks.connected, "the welcomes")
        for jobs, least_s in (("abc", [0.0, 10.0, 10.0]), ("bc", [LONGEST_PAUSE_S, 0.0, 10.0])):
            agent.uplinks.settle(jobs, 0.0)
            assert [uplink.clock.least_pause_s for uplink in agent.uplinks] == least_s


async def test_an_agent_without_ranks_is_connected() -> None:
    """No rank is there: one stream without a job. A job's stream is welcomed: the other one says
    goodbye. The job is long over: its stream says goodbye, and the one without a job is back, with
    few pings."""
    replica = Replica()
    async with serving(replica), node(replica.address) as agent:
        agent.uplinks.settle([], 0.0)
        assert [uplink.clock.least_pause_s for uplink in agent.uplinks] == [LONGEST_PAUSE_S]
        await async_until(lambda: agent.uplinks.connected, "the stream without a job")
        agent.rank("a")
        agent.uplinks.settle(["a"], 1.0)
        assert replica.jobs[0] is None
        assert not isinstance(replica.streams[0][-1], Goodbye), "it stays until the other is up"

        def is_alone() -> bool:
            agent.uplinks.settle(["a"], 2.0)
            return isinstance(replica.streams[0][-1], Goodbye)

        await async_until(is_alone, "the goodbye")
        assert replica.jobs == [None, "a"]
        agent.uplinks.settle([], 3.0)
        agent.uplinks.settle([], 3.0 + LINGER_S)
        assert not isinstance(replica.of_job("a")[-1], Goodbye)
        agent.uplinks.settle([], 4.0 + LINGER_S)
        await async_until(lambda: isinstance(replica.of_job("a")[-1], Goodbye), "its goodbye")
        await async_until(lambda: replica.jobs == [None, "a", None], "a stream without a job")


async def test_a_job_that_comes_back_keeps_its_stream() -> None:
    """The job's ranks are forgotten, and 15 minutes later it has others: one stream all the time,
    with few pings meanwhile."""
    replica = Replica()
    async with serving(replica), node(replica.address) as agent:
        agent.rank("a")
        await async_until(lambda: agent.uplinks.connected, "the welcome")
        agent.uplinks.settle([], 0.0)
        (uplink,) = agent.uplinks
        assert uplink.clock.least_pause_s == LONGEST_PAUSE_S
        agent.rank("a")
        agent.uplinks.settle(["a"], LINGER_S)
        assert not uplink.clock.least_pause_s
        agent.uplinks.settle([], LINGER_S + 1)
        agent.uplinks.settle([], 2 * LINGER_S)
        assert len(replica.open) == 1


async def test_many_jobs_one_after_the_other() -> None:
    """A node runs many short jobs: only the last ones that have ended keep their streams, and what
    the others had dropped still counts."""
    dropped = [0]
    async with node(free_address()) as agent:
        for number in range(3 * MAX_LINGERING):
            reports, rank = agent.rank(f"job {number}")
            reports.outbox.record(agent.rows(rank, range(5_000)))
            agent.uplinks.settle([f"job {number}"], float(number))
            agent.uplinks.settle([], number + 0.5)
            dropped.append(agent.uplinks.dropped_rows)
        names = [uplink.reports.job for uplink in agent.uplinks]
        assert names == [f"job {number}" for number in range(2 * MAX_LINGERING, 3 * MAX_LINGERING)]
        assert dropped == sorted(set(dropped))


async def test_what_waits_on_a_dropped_stream_is_dropped() -> None:
    """The service is out of reach until the job's stream is given up: the rows and samples that
    wait then are lost, and count."""
    async with node(free_address()) as agent:
        reports, rank = agent.rank("a")
        reports.outbox.record(agent.rows(rank, range(30)))
        reports.samples.add(1, 1, [Reading(0, SeriesInfo(rank, SeriesKind.HOST_USED), 100, 50)])
        agent.uplinks.settle([], 0.0)
        agent.uplinks.settle([], LINGER_S + 1)
        await async_until(lambda: agent.uplinks.dropped_rows == 30, "the rows")
        assert agent.uplinks.dropped_samples == 1


async def test_jobs_share_the_bounds() -> None:
    """The service is out of reach. A job alone has all the room; a second one halves it, and cannot
    displace rows of the first; when it is over, the first has all again."""
    async with node(free_address()) as agent:
        first, rank = agent.rank("a")
        first.outbox.record(agent.rows(rank, range(4_000)))
        assert (first.outbox.rows, agent.uplinks.dropped_rows) == (4_000, 0)
        second, other = agent.rank("b")
        assert (first.outbox.rows, agent.uplinks.dropped_rows) == (2_000, 2_000)
        second.outbox.record(agent.rows(other, range(3_000)))
        assert (first.outbox.rows, second.outbox.rows) == (2_000, 2_000)
        second.forget(other)
        agent.uplinks.settle(["a"], 0.0)
        agent.uplinks.settle(["a"], LINGER_S + 1)
        first.outbox.record(agent.rows(rank, range(4_000, 6_000)))
        assert first.outbox.rows == 4_000
        assert agent.uplinks.dropped_rows == 5_000, "its 2000 rows were never sent"


async def test_a_full_stream_keeps_the_signatures_of_other_jobs() -> None:
    """A job's stream has declared all signatures that it may, and begins again: what another job's
    rows refer to stays known."""
    replica = Replica()
    async with serving(replica), node(replica.address) as agent:
        one, rank = agent.rank("a")
        two, other = agent.rank("b")
        await async_until(lambda: agent.uplinks.connected, "both welcomes")
        agent.open["b"] = [agent.rows(other, [7], "all_gather")]
        for number in range(20):
            one.outbox.record(agent.rows(rank, [number], f"op {number}"))
        uplinks = {uplink.reports.job: uplink for uplink in agent.uplinks}
        dispatch = uplinks["a"].dispatch
        while dispatch.next(raw_now(), hurry=True):
            pass
        one.outbox.clear()
        dispatch._indexes._signature_bytes = dictionary.MAX_SIGNATURE_BYTES
        dispatch.open(knows_nothing=False)
        assert [decl.signature.op for decl in agent.dictionary.signatures.values()] == [
            "all_gather"
        ]
        two.outbox.record(agent.open["b"][0])
        assert uplinks["b"].dispatch.next(raw_now())


def test_samples_go_to_their_job() -> None:
    """One round has values of ranks of two jobs, and one of a job that has just ended: each job
    gets its own; all are shown."""
    attempts = {0: "a", 1: "b", 2: "over"}
    queues = {job: Samples(1 << 20, lambda series: series.rank) for job in ("a", "b")}
    node_samples = NodeSamples(lambda attempt: attempts[attempt], lambda rank: rank // 10)
    node_samples.use(queues)
    series = [SeriesInfo(10 * attempt, SeriesKind.HOST_USED) for attempt in attempts]
    readings = [Reading(one.rank // 10, one, 100, 50 + one.rank) for one in series]
    node_samples.follow(attempts, [one.rank for one in series])
    node_samples.add(1, 2, readings)
    node_samples.event(MemoryEvent(10, MemoryEventKind.OOM, NodeRawNs(3)))
    node_samples.event(MemoryEvent(20, MemoryEventKind.OOM, NodeRawNs(3)))
    values = {job: queue.next_batch() for job, queue in queues.items()}
    assert {job: batch and batch.values.tolist() for job, batch in values.items()} == {
        "a": [[50]],
        "b": [[60]],
    }
    assert node_samples.latest() == {series[0]: 50, series[1]: 60}
    assert queues["a"].next_events() is None
    assert queues["b"].next_events() is not None


# -- route -----------------------------------------------------------------------------------------
# Where a stream goes next, after which delay, and what is said of a service out of reach.


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
