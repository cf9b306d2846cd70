"""Clock streams to a real service: which are served, refused or delayed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from frd.model import NodeRawNs
from frd.rpc import CHANNEL_OPTIONS, StreamCall, open_clock
from frd.wire.clock import ClockHello, Ping, Readings, decode_pong, encode_clock
from tests.world.daemons import until
from tests.world.streams import Peer, Service, peer, serving

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path / "data") as service:
        yield service


def raw_now() -> NodeRawNs:
    return NodeRawNs(time.time_ns())


class Pinger:
    """One clock stream of an agent whose wall clock is `ahead_s`. Its raw clock is that of `Peer`,
    which shows what the wall clock of the host does."""

    def __init__(self, call: StreamCall, ahead_s: float) -> None:
        self.call = call
        self._ahead_ns = round(ahead_s * 1e9)
        self._number = 0
        self._pong: tuple[int, NodeRawNs] | None = None

    async def send(self, **changes: int) -> None:
        """One ping with the true stamps, except for `changes`."""
        self._number += 1
        raw_ns = raw_now()
        columns = (np.array([value]) for value in (raw_ns, raw_ns + self._ahead_ns, 100))
        sent = NodeRawNs(changes.get("sent", raw_now()))
        await self.call.write(
            encode_clock(Ping(self._number, sent, Readings(*columns), self._pong))
        )

    async def receive(self) -> None:
        data = await asyncio.wait_for(self.call.read(), 20.0)
        assert isinstance(data, bytes), await self.call.details()
        at = raw_now()
        self._pong = decode_pong(data)[0], at

    async def exchange(self, count: int) -> None:
        for _ in range(count):
            await self.send()
            await self.receive()

    async def why_it_ended(self, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> str:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await asyncio.wait_for(self.call.read(), 20.0), bytes):
                pass
        assert await self.call.code() is code
        return str(await self.call.details())


@asynccontextmanager
async def pinger(service: Service, agent: Peer, ahead_s: float = 0.0) -> AsyncIterator[Pinger]:
    async with grpc.aio.insecure_channel(service.grpc, options=CHANNEL_OPTIONS) as channel:
        call = open_clock(channel)
        hello = agent.hello()
        await call.write(encode_clock(ClockHello(hello.boot_id, hello.session)))
        yield Pinger(call, ahead_s)


async def refused(service: Service, reason: str, count: int) -> None:
    """Wait until `count` refusals with this reason are counted."""
    series = f'frd_clock_refused_total{{reason="{reason}"}}'
    await asyncio.to_thread(until, lambda: service.metric(series) >= count)
    assert reason == "flood" or service.metric(series) == count


async def clock_of(service: Service, job: str) -> dict[str, Any]:
    """The clock of a job's only node, once it is synchronized."""

    def known() -> dict[str, Any] | None:
        if job not in [known["job"] for known in service.get("/api/v1/jobs")["jobs"]]:
            return None
        (node,) = service.get(f"/api/v1/jobs/{job}")["nodes"]
        return dict(node) if node["clock_state"] == "synchronized" else None

    found: dict[str, Any] = await asyncio.to_thread(until, known)
    return found


async def test_two_agents_of_one_host_have_a_clock_each(service: Service) -> None:
    """One clock is two hours ahead of the other, and its pings come before its rows."""
    async with peer(service, job="a") as one, peer(service, job="b") as other:
        other.node = one.node
        await one.introduce()
        async with pinger(service, one) as true, pinger(service, other, 7200.0) as ahead:
            await true.exchange(4)
            await ahead.send()
            await asyncio.sleep(0.2)
            await other.introduce()
            await ahead.receive()
            await ahead.exchange(4)
            clock = await clock_of(service, "a")
            assert abs(clock["clock_offset_s"]) <= clock["clock_uncertainty_s"] < 1.0
            clock = await clock_of(service, "b")
            assert abs(clock["clock_offset_s"] + 7200.0) <= clock["clock_uncertainty_s"] < 1.0


async def test_a_stranger_is_refused(service: Service) -> None:
    """Pings of a session without a stream of rows end with a reason: before that stream they are
    refused, after it that is no fault."""
    async with peer(service) as agent, pinger(service, agent) as stranger:
        assert "open that one first" in await stranger.why_it_ended()
        await refused(service, "stranger", 1)
        await agent.introduce()
        async with pinger(service, agent) as friend:
            await friend.exchange(2)
            agent.call.cancel()
            gone = 'frd_ingest_refused_total{reason="aborted"}'
            await asyncio.to_thread(until, lambda: service.metric(gone) == 1)
            await friend.send()
            assert "is gone" in await friend.why_it_ended(grpc.StatusCode.ABORTED)
        await refused(service, "stranger", 1)


async def test_nonsense_ends_its_own_stream_only(service: Service) -> None:
    """Bytes that are no ping, and a second hello: the clock stream ends, the stream of rows goes
    on."""
    async with peer(service) as agent:
        await agent.introduce()
        for nonsense in (b"\xff\xff", encode_clock(ClockHello("boot", "session"))):
            async with pinger(service, agent) as bad:
                await bad.exchange(1)
                await bad.call.write(nonsense)
                assert "clock" in await bad.why_it_ended()
        await refused(service, "protocol", 2)
        async with pinger(service, agent) as good:
            await good.exchange(4)
            await clock_of(service, "job")
        await agent.send(agent.watermarks((6, 6), 0))
        assert service.get("/api/v1/jobs/job")["nodes"][0]["connected"]


async def test_stamps_that_cannot_be_are_counted(service: Service) -> None:
    """Pings with a stamp of zero, or one that goes backwards, are refused and harmless."""
    async with peer(service) as agent:
        await agent.introduce()
        async with pinger(service, agent) as liar:
            await liar.exchange(3)
            for reason, sent in (("zero", 0), ("backwards", 1)):
                await liar.send(sent=sent)
                await liar.receive()
                await liar.exchange(1)
                await refused(service, reason, 1)
            clock = await clock_of(service, "job")
            assert abs(clock["clock_offset_s"]) <= clock["clock_uncertainty_s"] < 1.0


async def test_a_flood_is_slowed_down(service: Service) -> None:
    """A thousand pings in a row: a burst is answered, the rest waits; other agents are served."""
    async with peer(service, job="flood") as flooder, peer(service, job="calm") as calm:
        await flooder.introduce()
        await calm.introduce()
        async with pinger(service, flooder) as flood, pinger(service, calm) as quiet:
            for _ in range(1000):
                await flood.send()
            await quiet.exchange(4)
            await clock_of(service, "calm")
            await refused(service, "flood", 1)
            for _ in range(32):
                await flood.receive()
