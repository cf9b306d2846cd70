"""How the calls of agents end: redirected, handed over, or without a replica for their job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc
import pytest

from frd.errors import ServiceUnavailable
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.evidence.inquiries import Inquiries
from frd.service.ingest.collector import ABORTED, Home, Ingest
from frd.service.ingest.streams import Stream, Streams
from frd.wire.codec import decode_service, encode_agent
from frd.wire.messages import Goodbye, Redirect, ServiceEvent, Welcome
from tests.sim.cluster.calls import Call
from tests.world.one_replica import HELLO
from tests.world.sessions import quiet_streams
from tests.world.virtual_time import VirtualLoop, in_virtual_time

ROWS = encode_agent(Goodbye("would end the stream, if it were applied"))
MOVED = "another replica has its jobs now"


class Wire(Call):
    """The call of an agent, and how it has ended."""

    code: object = None
    details = ""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__(asyncio.get_running_loop(), "train", f"ipv4:{host}:1")
        self.received: list[ServiceEvent] = []
        self.send = lambda data: self.received.append(decode_service(data))

    async def read(self) -> bytes:
        await asyncio.sleep(0)  # gRPC never returns a message immediately
        return await super().read()

    def set_code(self, code: object) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


class Scene:
    """A service with one cell, and an agent that calls it."""

    def __init__(self, answer: Redirect | ServiceUnavailable | None = None) -> None:
        self._answer = answer
        self.streams = quiet_streams()
        self.home = Home(self.streams, Inquiries(self.streams))
        self.ingest = Ingest(self, Admission(None, 10), stream_bytes_per_s=1 << 20)
        self.call = Wire()
        self.began = self.call._loop.time()
        handler = self.ingest.handle(cast(AsyncIterator[bytes], None), cast(Context, self.call))
        self.serving = asyncio.create_task(handler)

    async def find(self, job: str | None) -> Home | Redirect:
        match self._answer:
            case None:
                return self.home
            case Redirect():
                return self._answer
            case error:
                raise error

    async def says(self, *messages: bytes) -> None:
        for message in messages:
            self.call.arrive(message)
        await asyncio.sleep(0.01)

    async def hangs_up(self) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)

    async def ends(self, *, hangs_up: bool) -> None:
        """By the agent; or by the service, two seconds after the beginning."""
        if hangs_up:
            await self.hangs_up()
        else:
            await self.serving
            assert 1.9 < self.lasted_s < 2.1

    @property
    def lasted_s(self) -> float:
        return self.call._loop.time() - self.began


@pytest.mark.parametrize("hangs_up", [True, False])
@in_virtual_time
async def test_an_agent_that_is_redirected_hangs_up_first(hangs_up: bool) -> None:
    """The Redirect is written before the agent's Hello is here: the call lasts until the agent
    hangs up, so that its write does not fail, or for two seconds."""
    scene = Scene(Redirect("frd-1:9373", "another replica has this job"))
    await scene.says()
    assert [type(event) for event in scene.call.received] == [Redirect]
    await scene.says(HELLO, ROWS)
    assert not scene.serving.done()
    await scene.ends(hangs_up=hangs_up)
    assert not scene.ingest.refused


@pytest.mark.parametrize("hangs_up", [True, False])
@in_virtual_time
async def test_a_stream_that_is_handed_over_is_read_until_the_agent_hangs_up(
    hangs_up: bool,
) -> None:
    """A replica hands a cell over while the agent writes: what comes after the Redirect is read and
    not applied, and the call ends when the agent hangs up, or after two seconds."""
    scene = Scene()
    await scene.says(HELLO)
    scene.streams.leave(MOVED, "frd-1:9373")
    scene.streams.leave("a second reason", "frd-2:9373")
    await scene.says(ROWS, ROWS)
    assert [type(event) for event in scene.call.received] == [Welcome, Redirect]
    assert not scene.serving.done()
    await scene.ends(hangs_up=hangs_up)
    assert not scene.ingest.refused[ABORTED]
    assert not len(scene.streams)


@in_virtual_time
async def test_a_stream_without_another_address_ends_immediately() -> None:
    """No replica has the cell yet: the agent has nowhere to go, and the call ends with the
    reason."""
    scene = Scene()
    await scene.says(HELLO)
    scene.streams.leave(MOVED)
    await scene.serving
    assert scene.lasted_s < 0.1
    assert (scene.call.code, scene.call.details) == (grpc.StatusCode.ABORTED, MOVED)


@in_virtual_time
async def test_a_job_that_no_replica_has() -> None:
    """No replica owns the job: the call ends with a reason of the service, and with another status
    than gRPC's own for a service that cannot be reached."""
    scene = Scene(ServiceUnavailable("job: 'train': no replica has its cell"))
    await scene.serving
    assert scene.call.code is grpc.StatusCode.ABORTED
    assert scene.call.details == "job: 'train': no replica has its cell"


@pytest.mark.parametrize("has_others", [True, False])
@in_virtual_time
async def test_a_tenant_leaves_half_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    """Twenty streams of a host send messages without end, which take a second of the loop each. A
    stream of another host is still read immediately; if there is none, the host gets all."""
    loop, scene = cast(VirtualLoop, asyncio.get_running_loop()), Scene()
    busy_s, read_at = [0.0], list[float]()

    def take(_: Streams, stream: Stream, data: bytes) -> None:
        if data == b"other":
            read_at.append(loop.time())
            return
        busy_s[0] += 1
        loop._virtual.now += 1  # nothing else runs meanwhile

    monkeypatch.setattr(Streams, "take", take)
    monkeypatch.setattr("frd.service.ingest.collector.time.perf_counter", lambda: busy_s[0])

    def stream(host: str) -> tuple[Wire, asyncio.Task[None]]:
        call = Wire(host)
        handler = scene.ingest.handle(cast(AsyncIterator[bytes], None), cast(Context, call))
        return call, asyncio.create_task(handler)

    greedy = [stream("10.0.0.1") for _ in range(20)]
    other, serving = stream("10.0.0.2")
    if not has_others:
        serving.cancel()
    for call, _ in greedy:
        for _ in range(100):
            call.arrive(b"costly")
    other.arrive(b"other")
    await asyncio.sleep(50)
    read_at.clear()
    began_s, spent_s = loop.time(), busy_s[0]
    waits_s = []
    for _ in range(20):
        sent_s = loop.time()
        other.arrive(b"other")
        await asyncio.sleep(5)
        if has_others:
            waits_s.append(read_at[-1] - sent_s)
    share = (busy_s[0] - spent_s) / (loop.time() - began_s)
    for _, task in (*greedy, (other, serving)):
        task.cancel()
    await asyncio.gather(*(task for _, task in greedy), serving, return_exceptions=True)
    await scene.hangs_up()
    if has_others:
        assert len(read_at) == 20
        assert max(waits_s) <= 2
        assert 0.4 < share < 0.6
    else:
        assert share > 0.95
