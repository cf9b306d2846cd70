"""A scripted service for a real agent: it records the messages and answers as a test wants."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio

from frd.model import (
    EntryColumns,
    MemoryColumns,
    MemoryEvent,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
)
from frd.rpc import SERVER_OPTIONS, Context, collector, job_of
from frd.wire.clock import ClockEvent, Ping, decode_clock, encode_pong
from frd.wire.codec import Decoder, encode_service
from frd.wire.messages import (
    PROTOCOL,
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    MemoryEvents,
    Part,
    Refusal,
    Request,
    ResponsePart,
    Statuses,
    Watermarks,
    Welcome,
)
from tests.world.daemons import agent_command, async_until, free_address, running


class Collector:
    """One service process, as an agent sees it; it refuses the first `refuse` batches of rows."""

    def __init__(self, address: str = "", *, refuse: int = 0) -> None:
        self.address = address or free_address()
        self.refuse = refuse
        self.hellos: list[Hello] = []
        self.jobs: list[str | None] = []
        """Of each stream, from its metadata."""
        self.ranks: list[RankInfo] = []
        """By index of the present stream."""
        self.rows: list[EntryColumns] = []
        self.watermarks: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Enqueued, completed and head time, by global rank and group index."""
        self.as_of: dict[int, int] = {}
        self.statuses: dict[int, RankStatus] = {}
        self.series: list[SeriesInfo] = []
        """By index of the present stream; `rank` is the global one."""
        self.samples: dict[SeriesInfo, list[tuple[int, int, int]]] = {}
        """Begin, end and value."""
        self.events: list[MemoryEvent] = []
        self.parts: dict[tuple[int, Part], ResponsePart] = {}
        self.goodbyes: list[str] = []
        """Reasons, of all streams: of a node's, which its jobs replace, as well."""
        self.leaving: set[int] = set()
        """Live ranks of each word that the agent was asked to stop."""
        self.pings: list[list[ClockEvent]] = []
        """By clock stream; the first one ends after three, an odd answer to the second."""
        self.context: Context | None = None

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        decoder = Decoder()
        self.context = context
        self.jobs.append(job_of(context.invocation_metadata()))
        while isinstance(data := await context.read(), bytes):
            event = decoder.decode(data)
            if isinstance(event, Hello):
                self.ranks, self.series = [], []
                welcome = Welcome(PROTOCOL, "test", f"{id(self)}", 1 << 24)
                await context.write(encode_service(welcome))
            if isinstance(event, EntryColumns) and self.refuse:
                self.refuse -= 1
                refusal = Refusal("backwards", "entries.seq: as the test wants")
                await context.write(encode_service(refusal))
                return
            if isinstance(event, EntryColumns) and event.first_revision:
                last = event.first_revision + len(event) - 1
                await context.write(encode_service(Ack({event.rank: last})))
            self._apply(event)

    async def clock(self, _: AsyncIterator[bytes], context: Context) -> None:
        stream: list[ClockEvent] = []
        self.pings.append(stream)
        while isinstance(data := await context.read(), bytes):
            stream.append(decode_clock(data))
            if isinstance(ping := stream[-1], Ping):
                await context.write(encode_pong(ping.number, 0.2))
            if len(stream) > 3 and len(self.pings) == 1:
                return
            if len(stream) > 2 and len(self.pings) == 2:
                await context.write(b"\xff")

    def _apply(self, event: AgentEvent) -> None:  # noqa: PLR0912 - a case for each event
        match event:
            case Hello():
                self.hellos.append(event)
            case Declare():
                self.ranks += [rank.info for rank in event.ranks]
                for series in event.series:
                    rank = self.ranks[series.info.rank].rank
                    self.series.append(replace(series.info, rank=rank))
            case MemoryColumns():
                self._add_samples(event)
            case MemoryEvents():
                self.events += event.events
            case EntryColumns():
                self.rows.append(event)
            case Watermarks():
                c = event.columns
                for i, rank in enumerate(c.rank.tolist()):
                    pair = self.ranks[rank].rank, int(c.group[i])
                    numbers = c.enqueued[i], c.completed[i], c.head_created_ns[i]
                    self.watermarks[pair] = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
                for rank, at in zip(c.seen_rank.tolist(), c.as_of_ns.tolist(), strict=True):
                    self.as_of[self.ranks[rank].rank] = at
            case Statuses():
                if event.leaving is not None:
                    self.leaving.add(event.leaving.live_ranks)
                for status in event.statuses:
                    self.statuses[self.ranks[status.rank].rank] = status
            case ResponsePart():
                self.parts[self.ranks[event.rank_index].rank, event.part] = event
            case Goodbye():
                self.goodbyes.append(event.reason)

    def _add_samples(self, batch: MemoryColumns) -> None:
        for index, values in zip(batch.series.tolist(), batch.values.tolist(), strict=True):
            samples = self.samples.setdefault(self.series[index], [])
            moments = zip(batch.begin_ns.tolist(), batch.end_ns.tolist(), values, strict=True)
            samples += [moment for moment in moments if moment[2] != -1]

    def state(self, rank: int) -> RankState | None:
        return self.statuses[rank].state if rank in self.statuses else None

    def is_at(self, rank: int, enqueued: int, completed: int) -> bool:
        """The rank's watermarks in the first group."""
        return self.watermarks.get((rank, 0), ())[:2] == (enqueued, completed)

    async def ask(self, rank: int, *, stacks: bool = False) -> None:
        assert self.context is not None
        index = max(i for i, info in enumerate(self.ranks) if info.rank == rank)
        self.parts.clear()
        await self.context.write(encode_service(Request(1, (index,), True, stacks, 8.0)))
        wanted = 3 if stacks else 2
        await async_until(lambda: len(self.parts) == wanted, "the answer")


@asynccontextmanager
async def serving(service: Collector) -> AsyncIterator[Collector]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((collector(service.handle, service.clock),))
    assert server.add_insecure_port(service.address)
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)


@asynccontextmanager
async def agent(
    run_dir: Path, service: str, *flags: object
) -> AsyncIterator[subprocess.Popen[str]]:
    with running(agent_command(run_dir, "--service", service, *flags)) as process:
        yield process
