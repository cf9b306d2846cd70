"""The agent's stream and its credential files, against a scripted service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import _call

from frd.model import AttemptKey, EntryColumns, GroupInfo, NodeNs, NodeRawNs, RankInfo, Signature
from frd.rpc import Context, StreamCall
from frd.wire.messages import PROTOCOL, AgentEvent, Goodbye, Hello, Pace, Redirect
from frd_agent.counters import Counters
from frd_agent.memory.samples import Samples
from frd_agent.uplink import route as route_module
from frd_agent.uplink import stream as module
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import MAX_SIGNATURE_BYTES, Dictionary
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.outbox import Outbox
from frd_agent.uplink.route import Backoff, Connection, Endpoint, Resolve, Route, Target, resolve
from frd_agent.uplink.stream import Stream
from tests.world import replicas
from tests.world.certs import Authority
from tests.world.collector import Collector, serving
from tests.world.daemons import async_until, free_address
from tests.world.messages import entry_columns
from tests.world.replicas import Replica


async def no_pings(_: Connection) -> None:
    pass


def stream_to(endpoint: Endpoint, stats: Counters, backoff: Backoff) -> Stream:
    dictionary, outbox = Dictionary(), Outbox(1 << 22)
    current, samples = CurrentState(dictionary.attempt_of), Samples(1, dictionary.series_number)
    return Stream(
        service=endpoint,
        job="train",
        hello=lambda: Hello(PROTOCOL, "0", "node", "boot", "session", NodeNs(1), NodeRawNs(1)),
        dispatch=Dispatch(dictionary, outbox, current, samples, lambda: []),
        stats=stats,
        on_request=lambda request: None,
        stamp=lambda event: event,
        side_task=no_pings,
        _backoff=backoff,
    )


async def test_a_credential_file_that_cannot_be_read_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The token file is mounted late: one warning names it, and the agent connects when the file
    is there, with its token."""
    caplog.set_level(logging.INFO)
    token, stats, service = tmp_path / "token", Counters(), Collector()
    tries = 0

    def count(low: float, high: float) -> float:
        nonlocal tries
        tries += 1
        return 0.001

    endpoint = Endpoint((service.address,), token_file=token)
    stream = stream_to(endpoint, stats, Backoff(count))
    async with serving(service):
        running = asyncio.create_task(stream.run())
        await async_until(lambda: tries > 3, "several tries")
        assert not stream.connected
        assert not service.hellos
        token.write_text("secret\n")
        await async_until(lambda: stream.connected, "the connection")
        assert service.context is not None
        metadata = dict(service.context.invocation_metadata() or ())
        assert metadata["authorization"] == "Bearer secret"
        stream.close()
        await running
    assert warnings(caplog) == [
        f"service {service.address}: not reachable: token_file: {token}: "
        "No such file or directory: name a file that can be read: "
        "the agent keeps trying, and keeps 0 rows until then"
    ]


# -- several processes of the service --------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@asynccontextmanager
async def running(
    *addresses: str, resolve: Resolve = resolve, **options: Any
) -> AsyncIterator[Stream]:
    """A stream of job train that begins at the first address."""
    endpoint = Endpoint(addresses, **options)
    stream = stream_to(endpoint, Counters(), Backoff(lambda low, high: 0.001))
    stream._route = Route(endpoint, resolve, lambda count: 0)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        stream.close()
        await asyncio.wait({task}, timeout=1.0)
        task.cancel()


async def test_a_redirect_leads_to_the_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One process redirects to another on this machine: the stream opens there with the same job
    and token, and nothing is reported as lost."""
    caplog.set_level(logging.INFO)
    owner = Replica()
    other = Replica(redirect_to=owner.address)
    token = tmp_path / "token"
    token.write_text("secret")
    async with replicas.serving(owner, other), running(other.address, token_file=token) as stream:
        await async_until(lambda: stream.connected, "the welcome")
        assert owner.jobs == other.jobs == ["train"]
        assert owner.tokens == other.tokens == ["Bearer secret"]
    lines = [one.getMessage() for one in caplog.records if one.name == module.__name__]
    assert lines == [
        f"service {other.address}: redirects to {owner.address}: another has the job",
        f"service {owner.address} (test): connected, job train",
    ]


async def test_a_redirect_while_rows_are_sent() -> None:
    """The owner stops in the middle of many rows: the agent follows the redirect, and all rows that
    were not acknowledged come to the new owner."""
    one, two = Replica(), Replica()
    async with replicas.serving(one, two), running(one.address) as stream:
        await async_until(lambda: one.open, "the first welcome")
        dictionary = stream.dispatch.dictionary
        attempt = dictionary.attempt(AttemptKey("train", 0), 1)
        rank = dictionary.rank(attempt, RankInfo(0, 1, "node", "boot", 7))
        dictionary.group(attempt, GroupInfo("0", "default_pg", (0,)))
        dictionary.signature(Signature("gloo", "all_reduce"))
        for first in range(0, 50_000, 5_000):
            rows = entry_columns(range(first, first + 5_000), rank=rank, flags=1, created=10**18)
            stream.dispatch.outbox.record(rows)
        stream.wake()
        await async_until(lambda: any(_seqs(events) for events in one.streams), "the first rows")
        await one.send(Redirect(two.address, "one stops"))
        await async_until(lambda: two.streams and len(_seqs(two.streams[-1])) == 50_000, "all rows")
        assert (one.hellos, two.hellos) == (1, 1)


def _seqs(events: list[AgentEvent]) -> list[int]:
    batches = [event for event in events if isinstance(event, EntryColumns)]
    return [seq for batch in batches for seq in batch.seq.tolist()]


async def test_the_service_says_why_a_stream_ends(caplog: pytest.LogCaptureFixture) -> None:
    """No replica has the job yet: the agent logs the service's own words, without advice for a
    service that cannot be reached, whatever the name of the job is."""
    replica = Replica()
    replica.aborts = "job: 'ssl-pretrain': no replica has its cell 3 yet: try again"
    async with replicas.serving(replica), running(replica.address) as stream:
        await async_until(lambda: replica.hellos > 1, "two tries")
        replica.aborts = ""
        await async_until(lambda: stream.connected, "the welcome")
    (warning,) = warnings(caplog)
    assert warning == (
        f"service {replica.address}: not reachable: "
        "job: 'ssl-pretrain': no replica has its cell 3 yet: try again: "
        "the agent keeps trying, and keeps 0 rows until then"
    )


async def test_a_redirect_out_of_this_machine_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process on this machine redirects to another machine, where the token would go unencrypted:
    one line says so, the agent stays, and is welcomed once the process has the job."""
    token = tmp_path / "token"
    token.write_text("secret")
    replica = Replica(redirect_to="frd.invalid:9373")
    async with replicas.serving(replica), running(replica.address, token_file=token) as stream:
        await async_until(lambda: replica.hellos > 3, "several tries")
        replica.redirect_to = ""
        await async_until(lambda: stream.connected, "the welcome")
    refused = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert refused[0] == (
        f"service {replica.address}: redirect: frd.invalid:9373: refused: the connection would "
        "leave this machine unencrypted: set tls_ca_file or tls = true, or accept it with "
        "insecure = true"
    )
    assert len(refused) == 2  # and that the service cannot be reached, which is said once, too


async def test_the_second_choice_of_the_welcome_is_first_when_the_stream_breaks() -> None:
    """The owner names its successor and goes: the agent is there before it tries others."""
    successor, other = Replica(), Replica()
    owner = Replica(following=successor.address)
    async with replicas.serving(successor, other), AsyncExitStack() as until_then:
        await until_then.enter_async_context(replicas.serving(owner))
        async with running(owner.address, other.address) as stream:
            await async_until(lambda: stream.connected, "the owner")
            await until_then.aclose()
            await async_until(lambda: successor.open, "the successor")
            assert other.hellos == 0


async def test_a_successor_that_is_not_ready_lets_the_agent_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It welcomes the agent later than another address would be tried: the agent stays there."""
    monkeypatch.setattr(module, "_CONNECT_S", 0.3)
    successor, other = Replica(), Replica()
    successor.welcome_after_s = 0.6
    async with (
        replicas.serving(successor, other),
        running(successor.address, other.address) as stream,
    ):
        await async_until(lambda: stream.connected, "the welcome")
        assert (successor.hellos, other.hellos) == (1, 0)
    assert module._HANDSHAKE_S > 10


async def test_an_address_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead machine's address is left after a short time for the next one, and so is one where
    nothing listens."""
    monkeypatch.setattr(module, "_CONNECT_S", 0.5)
    alive = Replica()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, in the kernel, and is silent
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        async with replicas.serving(alive), running(dead, free_address(), alive.address) as stream:
            await async_until(lambda: stream.connected, "the third address")
    (warning,) = warnings(caplog)
    assert f"service {dead}: not reachable: no connection within 0.5 s" in warning


async def test_the_delay_grows_while_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only address is one of a dead machine, and each try takes longer than a stream that has
    proved itself: no stream was welcomed, so the bound of the delay doubles with each try."""
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.2)
    for one in (module, route_module):
        monkeypatch.setattr(one, "PROVEN_S", 0.1)
    bounds: list[float] = []

    def roll(low: float, high: float) -> float:
        bounds.append(high)
        return 0.001

    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with running(f"127.0.0.1:{silent.getsockname()[1]}") as stream:
            stream._backoff.roll = roll
            await async_until(lambda: len(bounds) >= 3, "three tries")
    assert bounds[:3] == [0.5, 1.0, 2.0]


async def test_a_name_is_verified_at_each_of_its_addresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS: the certificate is one for the name, and the agent dials one of its addresses."""
    authority = Authority(tmp_path)
    files = authority.issue("service", "frd.example")
    credentials = grpc.ssl_server_credentials([(files.key.read_bytes(), files.cert.read_bytes())])
    replica = Replica()

    async def resolve(address: str) -> list[Target]:
        return [Target(replica.address, "other.example"), Target(replica.address, "frd.example")]

    async with (
        replicas.serving(replica, credentials=credentials),
        running("frd.example:9373", resolve=resolve, tls=True, ca_file=authority.ca) as stream,
    ):
        await async_until(lambda: stream.connected, "the welcome")
    (warning,) = warnings(caplog)
    assert f"service {replica.address} (other.example): not reachable: TLS: " in warning


@pytest.mark.parametrize("why", ["the configuration was read again", "declared all it may"])
async def test_an_end_that_the_agent_plans_is_no_loss(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGHUP, or a stream that has declared all it may: the agent opens another one, and says so
    without a warning."""
    caplog.set_level(logging.INFO)
    replica = Replica()
    async with replicas.serving(replica), running(replica.address) as stream:
        await async_until(lambda: stream.connected, "the welcome")
        if why == "declared all it may":
            stream.dispatch._indexes._signature_bytes = MAX_SIGNATURE_BYTES
            stream.wake()
        else:
            stream.redial(stream.service)
        await async_until(lambda: replica.hellos == 2 and stream.connected, "another stream")
    lines = [one.getMessage() for one in caplog.records if why in one.getMessage()]
    assert len(lines) == 1
    assert not warnings(caplog)


async def test_a_service_with_a_pace_gets_bundles() -> None:
    """The rows of two ranks come as one message once the service has set a pace; one by one before,
    and on the next stream."""
    replica, most_together = Replica(), list[int]()
    async with replicas.serving(replica), running(replica.address) as stream:
        known, outbox = stream.dispatch.dictionary, stream.dispatch.outbox
        attempt = known.attempt(AttemptKey("train", 0), 2)
        ranks = [known.rank(attempt, RankInfo(i, 2, "node", "boot", 7 + i)) for i in (0, 1)]
        known.group(attempt, GroupInfo("0", "default_pg", (0, 1)))
        known.signature(Signature("gloo", "all_reduce"))

        async def send(seq: int) -> None:
            for rank in ranks:
                outbox.record(entry_columns([seq], rank=rank, flags=1, created=10**18))
            stream.wake()
            await async_until(lambda: _seqs(replica.streams[-1])[-2:] == [seq, seq], "the rows")
            most_together.append(max(replica.bundled[-1]))

        await async_until(lambda: stream.connected, "the welcome")
        await send(1)
        await replica.send(Pace(2_000))
        await async_until(lambda: stream.dispatch.is_paced, "the pace")
        await send(2)
        stream.redial(stream.service)
        await async_until(lambda: len(replica.welcomed) == 2, "another stream")
        await async_until(lambda: len(_seqs(replica.streams[-1])) == 4, "all rows again")
        await send(3)
    assert most_together == [1, 2, 1]


# -- keepalive ---------------------------------------------------------------------------------


class _HangsUp(Collector):
    """Ends a stream as soon as it has read the goodbye, as the service does."""

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await super().handle(requests, context)

    def _apply(self, event: AgentEvent) -> None:
        if isinstance(event, Goodbye):
            raise asyncio.CancelledError


async def test_a_goodbye_that_is_answered_at_once_is_no_loss(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ends the stream while the agent is still ending its own half: no warning."""

    async def late(call: StreamCall) -> None:
        await call.code()
        await asyncio.Event().wait()

    monkeypatch.setattr(_call.StreamStreamCall, "done_writing", late)
    async with serving(_HangsUp()) as service, running(service.address) as stream:
        await async_until(lambda: stream.connected, "the connection")
    assert warnings(caplog) == []
