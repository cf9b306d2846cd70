"""The wire between an agent and one replica, with a gRPC call at its end.

The production's handler of streams serves the call in the replica's event loop. A replica that is
paused reads nothing; what arrives meanwhile waits in its kernel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from frd.rpc import Context, job_metadata
from frd.wire.codec import decode_service
from frd.wire.messages import Ack
from tests.sim.kernel import Kernel
from tests.sim.network import Conn, Link
from tests.sim.service import ClockStream, Service
from tests.world.clocks import MS, S

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent
    from tests.sim.cluster.replica import SimReplica

_CONNECT: Final = 5 * S
_WELCOME: Final = 15 * S
"""Patience of an agent, see `frd_agent.uplink.stream`."""
KEEPALIVE: Final = 7 * S
"""A peer that does not answer is noticed so much later."""


class Call:
    """What the handler uses of a `grpc.aio.ServicerContext`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, job: str, peer: str) -> None:
        self._loop = loop
        self._job = job
        self._peer = peer
        self._inbox: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.send: Callable[[bytes], None] = lambda data: None

    def arrive(self, data: bytes) -> None:
        self._inbox.append(data)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            self._loop.call_soon(_wake, reader)

    async def read(self) -> bytes:
        while not self._inbox:
            self._reader = self._loop.create_future()
            await self._reader
        return self._inbox.popleft()

    async def write(self, data: bytes) -> None:
        self.send(data)

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> object:
        return job_metadata(self._job)

    def auth_context(self) -> Mapping[str, Any]:
        return {}

    def set_code(self, code: object) -> None:
        pass

    def set_details(self, details: str) -> None:
        pass


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)


class ClusterConn(Conn):
    """The same as `Conn`, to a replica."""

    def __init__(
        self, kernel: Kernel, link: Link, agent: SimAgent, replica: SimReplica, job: str
    ) -> None:
        self.replica = replica
        self._lay(kernel, link, agent, ClockStream(cast(Service, replica)))
        self._call = Call(replica.loop, job, f"ipv4:{agent.node}:1")
        self._call.send = self._sent
        self._serving: asyncio.Task[None] | None = None
        self.up.send(b"")  # the headers of the call arrive before its first message
        kernel.after(_CONNECT, self._give_up_connecting)
        kernel.after(_WELCOME, self._give_up_waiting)

    # -- the replica's side ----------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if not self.is_open or self.replica.loop.is_dead:
            return
        if self._serving is None:
            work = self.replica.handle(cast(Context, self._call))
            self._serving = self.replica.loop.create_task(work)
            self._serving.add_done_callback(self._served)
            return
        self._call.arrive(data)
        self.agent.pump()

    def _ping(self, data: bytes) -> None:
        self.replica.loop.call_soon(self._answer, data)

    def _sent(self, data: bytes) -> None:
        if isinstance(event := decode_service(data), Ack):
            self.replica.acknowledged(self.agent.session, event.revisions)
        self._down.send(data)

    def _answer(self, data: bytes) -> None:
        if self.is_open and (pong := self._clock.take(data)) is not None:
            self._pongs.send(pong)

    def _served(self, task: asyncio.Task[None]) -> None:
        """The call is over; its last messages arrive before its end."""
        if self.is_open:
            self._stop_reading()
            over = max(self._down.last, self._kernel.now, self._link.cut_until) + MS
            self._kernel.at(over, self.lose)

    def flush(self) -> None:
        pass

    def end_at_service(self) -> None:
        if self.is_open:
            self._stop_reading()
            if self._serving is not None:
                self.replica.loop.call_soon(self._serving.cancel)
            self._kernel.at(max(self._kernel.now, self._link.cut_until) + S, self.lose)

    # -- the agent's side ------------------------------------------------------------------------

    def fall_silent(self, until: int) -> None:
        """Nothing comes through from now until `until`: after the keepalive both sides give up."""
        if until - self._kernel.now > KEEPALIVE:
            self._kernel.after(KEEPALIVE, self.lose)
            self._kernel.after(KEEPALIVE + S, self.end_at_service)

    def _give_up_connecting(self) -> None:
        is_silent = self.replica.loop.is_paused or self._link.is_cut(self._kernel.now)
        if is_silent and not self.agent.is_welcome:
            self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        if self.agent.conn is self and not self.agent.is_welcome:
            self.hang_up()
            self.agent.lost()
