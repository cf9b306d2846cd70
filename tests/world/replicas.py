"""Processes of a replicated service as an agent's stream meets them, scripted: they welcome it,
immediately or late, or redirect it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from frd.rpc import SERVER_OPTIONS, Context, collector, job_of
from frd.wire.bundle import unbundled
from frd.wire.codec import Decoder, encode_service
from frd.wire.messages import PROTOCOL, AgentEvent, Hello, Redirect, ServiceEvent, Welcome
from tests.world.daemons import free_address


class Replica:
    """It welcomes streams, unless `redirect_to` or, by job, `owners` say where else to go."""

    def __init__(self, *, redirect_to: str = "", following: str = "") -> None:
        self.address = free_address()
        self.redirect_to = redirect_to
        self.owners: dict[str, str] = {}
        self.following = following
        self.welcome_after_s = 0.0
        self.aborts = ""
        """Why it ends streams instead of a welcome."""
        self.streams: list[list[AgentEvent]] = []
        """The messages of each stream."""
        self.bundled: list[list[int]] = []
        """How many messages came as one, by stream."""
        self.jobs: list[str | None] = []
        self.welcomed: list[str | None] = []
        """The jobs of streams that were welcomed."""
        self.tokens: list[str] = []
        self.open: list[Context] = []
        """Welcomed streams."""
        self.pings = 0
        """On clock streams, which an agent opens once it is welcome."""

    def of_job(self, job: str | None) -> list[AgentEvent]:
        """The messages of the last stream of a job."""
        return [events for events, of in zip(self.streams, self.jobs, strict=True) if of == job][-1]

    @property
    def hellos(self) -> int:
        return len(self.streams)

    async def send(self, event: ServiceEvent) -> None:
        """On the last stream that is open."""
        await self.open[-1].write(encode_service(event))

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        decoder, events = Decoder(), list[AgentEvent]()
        metadata = dict(context.invocation_metadata() or ())
        self.streams.append(events)
        job = job_of(context.invocation_metadata())
        self.jobs.append(job)
        self.tokens.append(str(metadata.get("authorization", "")))
        bundled = list[int]()
        self.bundled.append(bundled)
        while isinstance(data := await context.read(), bytes):
            messages = [decoder.decode(one) for one in unbundled(data)]
            events += messages
            bundled.append(len(messages))
            if not isinstance(messages[0], Hello):
                continue
            elsewhere = self.owners.get(job or "", self.redirect_to)
            if elsewhere:
                await context.write(encode_service(Redirect(elsewhere, "another has the job")))
                return
            if self.aborts:
                await context.abort(grpc.StatusCode.ABORTED, self.aborts)
            await asyncio.sleep(self.welcome_after_s)
            welcome = Welcome(PROTOCOL, "test", str(id(self)), 1 << 24, self.following)
            await context.write(encode_service(welcome))
            self.open.append(context)
            self.welcomed.append(job)
        if context in self.open:
            self.open.remove(context)

    async def clock(self, _: AsyncIterator[bytes], context: Context) -> None:
        while isinstance(await context.read(), bytes):
            self.pings += 1


@asynccontextmanager
async def serving(
    *replicas: Replica,
    options: Sequence[tuple[str, Any]] = SERVER_OPTIONS,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for replica in replicas:
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((collector(replica.handle, replica.clock),))
            if credentials is None:
                assert server.add_insecure_port(replica.address)
            else:
                assert server.add_secure_port(replica.address, credentials)
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield
