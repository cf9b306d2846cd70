"""One agent process: the production's pure parts, driven by simulated time.

What `frd_agent.agent` and `frd_agent.uplink.stream` do around those parts with tasks, sockets and
files is done here with actions of the kernel: read the clocks, read the ranks, send messages while
the wire accepts them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from frd.errors import ServiceUnavailable
from frd.model import EntryColumns, NodeNs, NodeRawNs
from frd.wire.bundle import bundles
from frd.wire.clock import ClockHello, Ping, decode_pong, encode_clock
from frd.wire.codec import decode_service, encode_agent
from frd.wire.messages import (
    PROTOCOL,
    Ack,
    AgentEvent,
    Goodbye,
    Hello,
    Pace,
    Redirect,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    Welcome,
)
from frd_agent.counters import Counters
from frd_agent.memory.samples import Samples
from frd_agent.node_time import NodeTime
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.node_clock import BURST, Clock
from frd_agent.uplink.outbox import ROW_BYTES, Outbox
from frd_agent.uplink.route import PROVEN_S, Backoff, Route
from tests.sim.answers import Answers
from tests.sim.clocks import read_clocks
from tests.sim.kernel import Kernel
from tests.sim.network import Conn, Surroundings
from tests.sim.watched import Process, Watched
from tests.world.clocks import MS, Host, S

TURN: Final = S // 4
_SAMPLE: Final = S // 2
_PING: Final = S
_NEWS: Final = 60 * S
_REFUSALS: Final = 2

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an agent's buffers, and of the bytes on the wire before a write waits."""

    outbox_rows: int = 400_000
    memory_bytes: int = 8 * 1024 * 1024
    window_bytes: int = 256 * 1024


class SimAgent:
    """One process of the agent of one node."""

    def __init__(
        self,
        kernel: Kernel,
        dice: random.Random,
        host: Host,
        node: str,
        boot_id: str,
        limits: Limits,
        processes: list[Process],
        around: Surroundings,
    ) -> None:
        self.kernel = kernel
        self.node = node
        self.limits = limits
        self.session = f"{dice.getrandbits(64):016x}"
        self.dictionary = Dictionary()
        self.outbox = Outbox(limits.outbox_rows * ROW_BYTES)
        self.current = CurrentState(self.dictionary.attempt_of)
        self.samples = Samples(limits.memory_bytes, self.dictionary.series_number)
        self.stats = Counters()
        self.watched: dict[int, Watched] = {}
        """By pid."""
        self.conn: Conn | None = None
        self.born = kernel.now
        self._boot_id = boot_id
        self._dice = dice
        self._host = host
        self._processes = processes
        """Rank processes of the node; the world adds new ones."""
        self.around = around
        # Frozen lives depend on what is drawn: what was not drawn then has its own dice.
        self._reads = self._own_dice = random.Random(f"clock/{self.session}")
        self._own_dice.random()
        self.time = NodeTime(
            self.stats, lambda: read_clocks(host, kernel.now, self._reads), self.raw_ns
        )
        hello = ClockHello(boot_id, self.session)
        self.clock = Clock(hello, self.stats, self.time, roll=dice.uniform)
        self.dispatch = Dispatch(
            self.dictionary, self.outbox, self.current, self.samples, self._in_flight
        )
        self._backoff = Backoff(dice.uniform)
        self.route: Route | None = None
        """In a cluster."""
        self._instance = ""
        self._welcome = False
        self._refusals = 0
        self._welcomed_at: int | None = None
        self._pong: tuple[int, NodeRawNs] | None = None
        self._pings = 0
        self._steps = 0
        """Of the wall clock, seen so far."""
        self._sample_at = 0
        self.is_stopped = False
        self._answers = Answers(self)
        kernel.after(dice.randrange(TURN), self._turn)
        kernel.after(dice.randrange(TURN), self._connect)

    def wall_ns(self) -> NodeNs:
        return NodeNs(self._host.real(self.kernel.now))

    def raw_ns(self) -> NodeRawNs:
        return self.raw_at(self.kernel.now)

    def raw_at(self, at: int) -> NodeRawNs:
        return NodeRawNs(self._host.raw(at))

    @property
    def mood(self) -> str:
        """How it answers, see `tests.sim.answers`."""
        return self._answers.mood

    @property
    def is_welcome(self) -> bool:
        return self._welcome

    def stop(self) -> None:
        """SIGKILL."""
        self.is_stopped = True
        if self.conn is not None:
            self.conn.hang_up()

    # -- turns ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self.is_stopped:
            return
        self.around.settle()
        self._look()
        self._find_processes()
        for watched in list(self.watched.values()):
            watched.turn()
        self._forget_files()
        if self.kernel.now >= self._sample_at:
            self._sample_at = self.kernel.now + _SAMPLE
            self._sample()
        self.pump()
        self.kernel.after(TURN + self._dice.randrange(-MS, MS), self._turn)

    def _find_processes(self) -> None:
        now = self.kernel.now
        alive = {process.key for process in self._processes if process.rank.alive}
        for process in self._processes:
            if process.info.pid in self.watched or not process.has_files:
                continue
            died_lately = process.died_at is not None and now - process.died_at < _NEWS
            if process.rank.alive or died_lately or process.key in alive:
                self.watched[process.info.pid] = Watched(process, self)

    def _forget_files(self) -> None:
        for watched in self.watched.values():
            process = watched.process
            is_sent = self._welcome and self.current.is_sent(watched.number)
            if watched.is_over and is_sent:
                process.forget_files(self.kernel.now)

    def _sample(self) -> None:
        begin = self.raw_ns()
        alive = [w for w in self.watched.values() if w.process.rank.alive]
        readings = [reading for watched in alive for reading in watched.sample()]
        if readings:
            self.samples.add(begin, begin + MS, readings)

    def _look(self) -> None:
        """Read the clocks. After a step the agent pings immediately, which is not what production
        does: what is drawn in frozen lives depends on every message."""
        self._drawing_as_ever(self.clock.look)
        steps, self._steps = self._steps, self.stats.clock_steps
        conn = self.conn
        if self._steps > steps and conn is not None and self._welcome:
            for number in range(3):
                self.kernel.after((1 + number) * 10 * MS, lambda: self._ping(conn, again=False))

    def _drawing_as_ever(self, read: Callable[[], _T]) -> _T:
        """Frozen lives depend on what these readings draw."""
        self._reads = self._dice
        try:
            return read()
        finally:
            self._reads = self._own_dice

    def _in_flight(self) -> Iterator[EntryColumns]:
        for watched in self.watched.values():
            if (rows := watched.in_flight()) is not None:
                yield rows

    # -- the stream ----------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.is_stopped:
            return
        self._welcomed_at, self._welcome = None, False
        self.conn = self.around.dial(self)
        if self.conn is None:
            self._lost()
            return
        clocks = self.wall_ns(), self.raw_ns()
        hello = Hello(PROTOCOL, "simulated", self.node, self._boot_id, self.session, *clocks)
        self.conn.up.send(encode_agent(hello))

    def lost(self) -> None:
        """The agent notices that its stream has ended."""
        if self.conn is not None and not self.is_stopped:
            self.conn, self._welcome = None, False
            self._lost()

    @property
    def _lasted_s(self) -> float:
        return 0.0 if self._welcomed_at is None else (self.kernel.now - self._welcomed_at) / S

    def _lost(self) -> None:
        lasted_s = self._lasted_s
        candidates = 1
        if self.route is not None:
            candidates = self.route.candidates
            if lasted_s > PROVEN_S:
                self.route.lasted()
        delay_s = self._backoff.next_s(lasted_s, candidates)
        self.kernel.after(max(round(delay_s * 1e9), MS), self._connect)

    def receive(self, data: bytes) -> None:
        """A message of the service."""
        match event := decode_service(data):
            case Welcome():
                knows_nothing = event.instance != self._instance
                self._instance = event.instance
                self.dispatch.open(knows_nothing=knows_nothing)
                self._welcome = True
                self._welcomed_at = self.kernel.now
                if self.route is not None:
                    self.route.welcomed(event.next)
                self._begin_pings()
            case Ack():
                self._refusals = 0
                self.dispatch.ack(event.revisions)
            case Pace():
                self.dispatch.adopt(event, self.raw_ns())
            case Resync():
                self.dispatch.resync()
            case Refusal():
                self._refused()
                return
            case Redirect():
                self._redirected(event.address)
                return
            case Request():
                self._answers.receive(event)
        self.pump()

    def say(self, part: ResponsePart) -> None:
        """Send a part of an answer; its index is the agent's own number of the rank."""
        if self.conn is not None and self._welcome:
            of = f"answer/{self.session}/{part.rank_index}/{part.part}"
            for event in self.dispatch.translate(part):
                self.conn.up.send(encode_agent(event), of)

    def settle(self) -> None:
        """The jobs have done all that they do until now."""
        self.around.settle()

    def _refused(self) -> None:
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._refusals = 0
            self.outbox.clear()
        if self.conn is not None:
            self.conn.hang_up()
        self.lost()

    def _redirected(self, address: str) -> None:
        assert self.route is not None
        assert self.conn is not None
        if self._lasted_s > PROVEN_S:
            self.route.lasted()
        self.conn.hang_up()
        try:
            self.route.redirected(address)
        except ServiceUnavailable:
            self.lost()
            return
        self.conn, self._welcome = None, False
        self.kernel.after(MS, self._connect)

    def pump(self, *, hurry: bool = False) -> None:
        """Send what is due, as far as the wire accepts it; `hurry`: everything is due."""
        if (conn := self.conn) is None or not self._welcome or self.is_stopped:
            return
        messages = self._due(conn, hurry=hurry)
        for data in bundles(messages) if self.dispatch.is_paced else messages:
            conn.up.send(data)
        if self.dispatch.must_reopen:
            if self.route is not None:
                self.route.again()
            conn.hang_up()
            self.lost()

    def _due(self, conn: Conn, *, hurry: bool) -> Iterator[bytes]:
        while conn.up.bytes < self.limits.window_bytes and (
            events := self.dispatch.next(self.raw_ns(), hurry=hurry)
        ):
            for event in events:
                yield encode_agent(self._stamped(event))

    def _stamped(self, event: AgentEvent) -> AgentEvent:
        return self._drawing_as_ever(lambda: self.clock.stamp(event))

    def say_goodbye(self) -> None:
        """SIGTERM: send the rest, and a goodbye."""
        if self.conn is not None and self._welcome:
            self.pump(hurry=True)
            self.conn.up.send(encode_agent(Goodbye("the agent stops")))
        self.is_stopped = True

    # -- pings ---------------------------------------------------------------------------------

    def _begin_pings(self) -> None:
        conn = self.conn
        if conn is None:
            return
        conn.pings.send(encode_clock(self.clock.hello))
        self._pong, self._pings = None, 0
        for number in range(BURST):
            self.kernel.after((1 + number) * 10 * MS, lambda: self._ping(conn, again=False))
        self.kernel.after(_PING, lambda: self._ping(conn, again=True))

    def _ping(self, conn: Conn, *, again: bool) -> None:
        if self.is_stopped or conn is not self.conn:
            return
        self._look()
        self._pings += 1
        pong, self._pong = self._pong, None
        readings = self.clock.take_readings()
        conn.pings.send(encode_clock(Ping(self._pings, self.raw_ns(), readings, pong)))
        if again:
            pause = round(_PING * self._dice.uniform(0.8, 1.2))
            self.kernel.after(10 * MS, lambda: self._ping(conn, again=False))
            self.kernel.after(pause, lambda: self._ping(conn, again=True))

    def receive_pong(self, data: bytes) -> None:
        number, _ = decode_pong(data)
        self._pong = number, self.raw_ns()
