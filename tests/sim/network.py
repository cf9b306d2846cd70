"""The wire between one agent and the service, as TCP behaves: late, cut, slow, broken, in order.

A stream neither loses nor reorders data while it is open; a reset breaks it, or a partition that
outlasts the timeouts of both sides. One side may notice long before the other: then data that is on
its way still arrives, and messages of an old stream mix with those of its successor.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from frd.model import AttemptKey
from frd.wire.codec import encode_service
from frd.wire.messages import Request
from tests.sim.kernel import Kernel
from tests.sim.service import ClockStream, Service
from tests.world.clocks import MS, Path, S

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent
    from tests.sim.watched import Process

_RESENT: Final = 3 * S
"""Within so long TCP has sent again what was lost, while the wire is not cut."""
_LAST_WORDS: Final = S
"""So much later the other side knows that a stream is over, if the wire lets it."""


@dataclass(slots=True)
class Link:
    """Both ways between a node and the service, and what is wrong with them now."""

    there: Path
    back: Path
    dice: random.Random
    cut_until: int = 0
    """True time; what is on its way before then arrives after it."""
    message_ns: int = 0
    """The service takes so long to read a message."""

    def is_cut(self, at: int) -> bool:
        return at < self.cut_until

    def delay(self, path: Path, dice: random.Random | None = None) -> int:
        return min(path.delay(dice or self.dice), _RESENT)


def draw_link(dice: random.Random) -> Link:
    """A rack, a cluster, or a bad day."""
    least, mean = dice.choice(
        ((MS // 10, MS // 20), (MS // 2, MS // 2), (2 * MS, 5 * MS), (40 * MS, 60 * MS))
    )
    tail = dice.choice((0.0, 0.0, 0.01))
    return Link(Path(least, mean, tail), Path(least, mean, tail), dice)


class Pipe:
    """One direction of one stream: first in, first out, some time later."""

    def __init__(
        self,
        kernel: Kernel,
        link: Link,
        path: Path,
        deliver: Callable[[bytes], None],
        message_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self._kernel = kernel
        self._link = link
        self._path = path
        self._deliver = deliver
        self._message_ns = message_ns
        self._queue: deque[tuple[int, bytes]] = deque()
        self.last = 0
        """When the last thing sent arrives, if it is read immediately."""
        self._closed = False
        self.bytes = 0
        """On their way."""

    def send(self, data: bytes, of: str = "") -> None:
        """`of`: names separate dice, so that other messages are delayed as without it."""
        dice = random.Random(f"{of}/{self._kernel.now // S}") if of else None
        due = max(self._kernel.now, self._link.cut_until) + self._link.delay(self._path, dice)
        self.last = max(due, self.last + 1)
        self._queue.append((self.last, data))
        self.bytes += len(data)
        if len(self._queue) == 1:
            self._kernel.at(self.last + self._message_ns(), self._arrive)

    def close(self) -> None:
        """What is on its way is lost."""
        self._closed = True
        self._queue.clear()
        self.bytes = 0

    def _arrive(self) -> None:
        if self._closed:
            return
        if self._link.is_cut(self._kernel.now):
            later = self._link.cut_until + self._link.delay(self._path)
            self._kernel.at(later, self._arrive)
            return
        _, data = self._queue.popleft()
        self.bytes -= len(data)
        if self._queue:
            due, _ = self._queue[0]
            self._kernel.at(max(due, self._kernel.now + 1) + self._message_ns(), self._arrive)
        self._deliver(data)


class Surroundings(Protocol):
    """The world as an agent sees it."""

    @property
    def mutates(self) -> bool:
        """Agents send false answers."""

    @property
    def hidden(self) -> bool:
        """Agents report all that those of this release report of waits."""

    def settle(self) -> None:
        """Advance the jobs to the present."""

    def dial(self, agent: SimAgent) -> Conn | None:
        """A connection to the service; None if no service answers."""

    def processes(self, key: AttemptKey) -> Sequence[Process]:
        """Of all ranks of an attempt, in order."""

    def asked(self, request: Request) -> None:
        """An agent was asked."""


class Conn:
    """One stream of rows and its stream of pings, with an end on either side."""

    def __init__(self, kernel: Kernel, link: Link, agent: SimAgent, service: Service) -> None:
        self.service = service
        self.stream = service.streams.open()
        self._lay(kernel, link, agent, ClockStream(service))

    def _lay(self, kernel: Kernel, link: Link, agent: SimAgent, clock: ClockStream) -> None:
        """The ways between both ends."""
        self.agent = agent
        self.is_open = True
        """On the service's side."""
        self.up = Pipe(kernel, link, link.there, self._take, lambda: link.message_ns)
        self.pings = Pipe(kernel, link, link.there, self._ping)
        self._down = Pipe(kernel, link, link.back, agent.receive)
        self._pongs = Pipe(kernel, link, link.back, agent.receive_pong)
        self._kernel = kernel
        self._link = link
        self._clock = clock

    # -- the service's side --------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if not self.is_open:
            return
        if not self.service.take(self.stream, data):
            self.flush()
            self.end_at_service()
            return
        self.flush()
        self.agent.pump()

    def _ping(self, data: bytes) -> None:
        if self.is_open and (pong := self._clock.take(data)) is not None:
            self._pongs.send(pong)

    def flush(self) -> None:
        """Send what the stream has for the agent."""
        if self.is_open and self.stream.wake.is_set():
            self.stream.wake.clear()
            for event in self.stream.take_outgoing():
                of = f"request/{self.agent.session}" if isinstance(event, Request) else ""
                self._down.send(encode_service(event), of)

    def end_at_service(self) -> None:
        """The service notices that the stream is over."""
        if self.is_open:
            self._stop_reading()
            self.service.close(self.stream)
            lost_at = max(self._kernel.now, self._link.cut_until) + _LAST_WORDS
            self._kernel.at(lost_at, self.lose)

    def _stop_reading(self) -> None:
        self.is_open = False
        self.up.close()
        self.pings.close()

    # -- the agent's side ----------------------------------------------------------------------

    def hang_up(self, noticed_after: int = 100 * MS) -> None:
        """The agent's end is gone; what it has sent still arrives."""
        self._down.close()
        self._pongs.close()
        self._kernel.at(max(self.up.last, self._kernel.now) + noticed_after, self.end_at_service)

    def reset(self, agent_after: int, service_after: int) -> None:
        """Broken in the middle; either side notices some time later."""
        self._kernel.after(service_after, self.end_at_service)
        self._kernel.after(agent_after, self.lose)

    def lose(self) -> None:
        self._down.close()
        self._pongs.close()
        if self.agent.conn is self:
            self.agent.lost()

    def die_with_service(self, agent_after: int) -> None:
        """The service's process is gone, with all that it had not read."""
        self._stop_reading()
        self._kernel.after(agent_after, self.lose)
