"""Hosts whose clocks drift, slew, step and stop, and networks between them; the truth is known.

Simulated time is whole nanoseconds since the simulation began. A clock is piecewise linear, so its
value is exact at any time, past times included.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field

from frd.engine.clocks.alignment import Alignment
from frd.engine.clocks.estimator import Exchange, NodeClock, Refusal
from frd.model import AlignedNs, NodeRawNs, ServiceRawNs
from frd.service.clocks.agent_clocks import align

S = 1_000_000_000
MS = 1_000_000
US = 1_000
EPOCH = 1_790_000_000 * S


class Clock:
    """Shows `value` at 0, and runs `ppb` parts in 10^9 faster than true time."""

    def __init__(self, value: int, ppb: int = 0) -> None:
        self._from = [0]
        self._value = [value]
        self._ppb = [ppb]

    def __call__(self, at: int) -> int:
        i = -1 if at >= self._from[-1] else max(bisect_right(self._from, at) - 1, 0)
        passed = at - self._from[i]
        return self._value[i] + passed + passed * self._ppb[i] // S

    def change(self, at: int, ppb: int | None = None, jump: int = 0) -> None:
        """From `at`, which is after all earlier changes, run at another rate, or show `jump`
        more."""
        self._value.append(self(at) + jump)
        self._ppb.append(self._ppb[-1] if ppb is None else ppb)
        self._from.append(at)

    @property
    def ppb(self) -> int:
        return self._ppb[-1]


@dataclass
class Host:
    """Both clocks of a host."""

    raw: Clock
    real: Clock
    asleep: list[tuple[int, int]] = field(default_factory=list)

    def step(self, at: int, jump: int) -> None:
        self.real.change(at, jump=jump)

    def sleep(self, at: int, length: int, *, real_knows: bool) -> None:
        """The raw clock stops; the real one shows the true time afterwards, or stops too."""
        for clock, stops in ((self.raw, True), (self.real, not real_knows)):
            if stops:
                ppb = clock.ppb
                clock.change(at, ppb=-S)
                clock.change(at + length, ppb=ppb)
        self.asleep.append((at, at + length))

    def awake(self, at: int) -> int:
        """The first moment from `at` on at which the host does not sleep."""
        return next((end for start, end in self.asleep if start <= at < end), at)

    def is_awake(self, since: int, until: int) -> bool:
        return all(end <= since or start >= until for start, end in self.asleep)


@dataclass(frozen=True)
class Path:
    """One direction between node and service."""

    least: int
    mean: int
    """Mean of an exponential delay added to `least`."""
    tail: float = 0.0
    """Share of messages that take up to a thousand times longer."""

    def delay(self, dice: random.Random) -> int:
        extra = dice.expovariate(1.0) * self.mean
        if self.tail and dice.random() < self.tail:
            extra *= 10 ** (3 * dice.random())
        return self.least + int(extra)


@dataclass(frozen=True)
class Network:
    there: Path
    back: Path
    lost: float = 0.0


class Agent:
    """One agent session, and the service's `NodeClock` of it; aligned time is the service's raw
    clock."""

    def __init__(self, node: Host, service: Host, network: Network, dice: random.Random) -> None:
        self.node, self.service, self.network = node, service, network
        self.dice = dice
        self.clock = NodeClock()
        self.refused: list[Refusal] = []
        self.exchanged_at = 0
        """Begin of the last exchange that the service has."""
        self._came = self._back = 0
        """Messages of one stream keep their order."""
        self._pong: Exchange | None = None
        self._pong_of = 0

    def ping(self, at: int) -> int:
        """Send a ping at `at`; returns when the service has learned from it, or would have."""
        came = max(self.service.awake(at + self.network.there.delay(self.dice)), self._came + 1)
        if self.dice.random() < self.network.lost:
            return came
        self._came = came
        if self._pong is not None and self._back <= at:
            self._note(self.clock.exchange(self._pong))
            self.exchanged_at, self._pong = self._pong_of, None
        went = self.service.awake(came + self.dice.randrange(20 * US, 100 * US))
        if self._pong is None and self.dice.random() >= self.network.lost:
            back = self.node.awake(went + self.network.back.delay(self.dice))
            self._back = back = max(back, self._back + 1)
            self._pong = self.exchange(at, came, went, back)
            self._pong_of = at
        return went

    def exchange(self, at: int, came: int, went: int, back: int) -> Exchange:
        node, service = self.node.raw, self.service.raw
        return Exchange(
            NodeRawNs(node(at)),
            ServiceRawNs(service(came)),
            ServiceRawNs(service(went)),
            NodeRawNs(node(back)),
        )

    def alignment(self, at: int) -> Alignment:
        now = ServiceRawNs(self.service.raw(self.service.awake(at)))
        return align(self.clock.newest(now), AlignedNs)

    def error(self, alignment: Alignment, at: int) -> tuple[int, int | None]:
        """Error and uncertainty of an aligned node stamp of `at`."""
        stamp = self.node.raw(at)
        aligned = alignment.one_to_aligned(stamp)
        return aligned - self.service.raw(at), alignment.uncertainty_ns(stamp)

    def knows(self, at: int, now: int) -> bool:
        """Neither host has slept since the service's last news of this node, nor since `at`."""
        since = min(self.exchanged_at, at)
        return (
            self.exchanged_at > 0
            and self.node.is_awake(since, now)
            and self.service.is_awake(since, now)
        )

    def _note(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refused.append(refusal)
