"""Lives of agents whose clocks behave as real ones do, and what is claimed of their times.

An oscillator is a quartz: it drifts by up to 50 ppm, and its temperature changes that, steadily, in
cycles, or in the decay that follows when a fan starts, by up to `WANDER_PPM` a second for both
hosts together. A drift that jumps is that of a virtual machine which was suspended and continues on
another host; so it comes with a clock that stood still. A way of a message takes `LEAST_WAY_NS` or
more, with any asymmetry, for all of a life or while a queue lasts; or both ways are faster and
similar.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from frd.engine.clocks.alignment import WANDER_PPM
from frd.engine.clocks.offset_interval import LEAST_WAY_NS
from tests.world.clocks import EPOCH, MS, US, Agent, Clock, Host, Network, Path, S

LIFE = 100 * S
TICK = S // 4
"""Drifts are constant for so long."""


def oscillator(dice: random.Random, steepest: int, fastest: float) -> Callable[[int], int]:
    """Drift in parts per 10^9 at times that rise; it changes by at most `fastest` a second."""
    rate = fastest * dice.choice((1.0, dice.random()))
    since, start, base = 0, 0.0, float(dice.choice((-steepest, dice.randint(-steepest, steepest))))
    kind = dice.choice(("steady", "steady", "ramps", "fan", "cycle"))
    period = 10 ** dice.uniform(0.5, 2.5)
    if kind == "cycle":
        base *= 0.8
    slope, until = 0.0, 0

    def drift(at: int) -> int:
        nonlocal since, start, slope, until, base
        match kind:
            case "ramps":
                if at >= until:
                    base += slope * (until - since) / S
                    since, until = at, at + dice.randrange(S, 60 * S)
                    slope = dice.choice((-rate, 0.0, rate, dice.uniform(-rate, rate)))
                value = base + slope * (at - since) / S
            case "fan":
                if at >= until:
                    base, since, until = (
                        _decayed(base, start, period, at - since),
                        at,
                        at + dice.randrange(10 * S, 90 * S),
                    )
                    start = dice.choice((-rate, rate))
                value = _decayed(base, start, period, at - since)
            case "cycle":
                value = base + rate * period * math.sin(at / S / period)
            case _:
                value = base
        return max(-steepest, min(round(value), steepest))

    return drift


def _decayed(base: float, start: float, period: float, passed: int) -> float:
    return base + start * period * (1 - math.exp(-passed / S / period))


def host(dice: random.Random, steepest: int, fastest: float, life: int) -> Host:
    """Drifts, and sleeps at times."""
    drift = oscillator(dice, steepest, fastest)
    born = Host(Clock(dice.randrange(1, 10**16), drift(0)), Clock(EPOCH))
    asleep = dice.randrange(10 * S, life) if dice.random() < 0.2 else 2 * life + 60 * S
    at = TICK
    while at < life + 60 * S:
        if at > asleep:
            length = int(10 ** dice.uniform(8.7, 10.3))
            born.sleep(at, length, real_knows=True)
            at, asleep = at + length, 2 * life + 60 * S
            if dice.random() < 0.5:
                drift = oscillator(dice, steepest, fastest)
        ppb = drift(at)
        if ppb != born.raw.ppb:
            born.raw.change(at, ppb=ppb)
        at += TICK
    return born


def network(dice: random.Random) -> Network:
    """Good or bad, with different delays in each direction; some lose pings."""
    lost = dice.choice((0.0, 0.0, 0.3))
    if dice.random() < 0.2:
        least = int(10 ** dice.uniform(3, math.log10(LEAST_WAY_NS)))
        noise = int(least * 10 ** dice.uniform(-2, 0))
        there, back = (Path(int(least * dice.uniform(1, 2)), noise) for _ in range(2))
        return Network(there, back, lost)
    slow = 10 ** dice.choice((0.0, dice.uniform(0, 1.6)))
    noise = int(slow * 40 * US * 10 ** dice.choice((0.0, 0.0, dice.uniform(-3, 0))))
    there, back = (
        Path(
            int(slow * LEAST_WAY_NS * 4 ** dice.choice((0.0, dice.random(), 2 * dice.random()))),
            noise,
            dice.choice((0.0, 0.0, 0.1)),
        )
        for _ in range(2)
    )
    return Network(there, back, lost)


def jammed(of: Network, dice: random.Random) -> Network:
    """A queue in one direction, unless the network is faster than `LEAST_WAY_NS`."""
    if min(of.there.least, of.back.least) < LEAST_WAY_NS:
        return of
    longer = int(10 ** dice.uniform(4, 6.7))
    if dice.random() < 0.5:
        return replace(of, there=replace(of.there, least=of.there.least + longer))
    return replace(of, back=replace(of.back, least=of.back.least + longer))


@dataclass
class Life:
    """An agent's pings from the first second on, and the uncertainties claimed for stamps."""

    seed: int
    claims: list[int] = field(default_factory=list)
    unclaimed: int = 0
    broken: list[str] = field(default_factory=list)
    contradictions: int = 0

    def __post_init__(self) -> None:
        dice = self.dice = random.Random(self.seed)
        self.length = LIFE if dice.random() < 0.9 else 3 * LIFE
        one_sided = dice.random() < 0.3
        wander = WANDER_PPM * 1_000 * 0.97
        share = dice.choice((0.0, 0.5, 1.0, dice.random()))
        steepest = 100_000 if one_sided else 50_000
        self.node = host(dice, steepest, wander * share, self.length)
        steepest = 0 if one_sided else 50_000
        self.service = host(dice, steepest, wander * (1 - share), self.length)
        self.network = network(dice)
        self.jammed = jammed(self.network, dice)
        starts = dice.choice((0, dice.randrange(self.length), self.length, self.length))
        self.queue = range(starts, starts + int(10 ** dice.uniform(9, 11.5)))
        """When there is a queue."""
        self.together, self.every = dice.choice(((1, S), (1, S), (2, S), (2, 8 * S)))

    def live(self) -> None:
        dice, life = self.dice, self.length
        silence = dice.choice((life, life, dice.randrange(20 * S, 60 * S)))
        restart = dice.choice((life, life, dice.randrange(20 * S, 90 * S)))
        agent, since, at, pings = self._agent(), S, S, 0
        while at < life:
            pause = self.every + dice.randrange(-100 * MS, 100 * MS)
            if pings < 8 or pings % self.together:
                pause = 5 * MS
            if at > silence:
                silence, pause = life, 60 * S
            if at > restart:
                restart, since, pings, agent = life, at + pause, 0, self._agent()
            at = self.node.awake(at + pause)
            agent.network = self.jammed if at in self.queue else self.network
            came = agent.ping(at)
            pings += 1
            if pings < 4 or dice.random() < 0.3:
                self._ask(agent, since, self.service.awake(came + dice.randrange(5 * MS)))
            at = max(at, came - S)
            self.contradictions += agent.clock.contradictions

    def _agent(self) -> Agent:
        return Agent(self.node, self.service, self.network, self.dice)

    def _ask(self, agent: Agent, since: int, now: int) -> None:
        """Align stamps of the last moments, and of any time since the session began."""
        alignment = agent.alignment(now)
        ages = [int(10 ** self.dice.uniform(5, 10.8)) for _ in range(4)]
        for made in (*(now - age for age in ages), self.dice.randrange(since, now + 1)):
            at = self.node.awake(made)
            if not since <= at <= now or not agent.knows(at, now):
                continue
            error, bound = agent.error(alignment, at)
            if bound is None:
                self.unclaimed += 1
                continue
            self.claims.append(bound)
            if abs(error) > bound:
                self.broken.append(f"seed {self.seed}, {now}: stamp of {at}: {error} > {bound}")
