"""The clocks of simulated hosts, drawn at random; `tests.world.clocks` has the clocks themselves.

True time is nanoseconds since the beginning of the world.
"""

from __future__ import annotations

import random
from typing import Final

from frd.model import NodeNs, NodeRawNs
from frd_agent.node_time import ClockReading
from tests.world.clocks import EPOCH, Clock, Host, S

BOOTED: Final = 50_000 * S
"""What raw clocks show at the beginning, about."""
_DRIFT_PPB: Final = 50_000


def draw_host(dice: random.Random) -> Host:
    """A host whose wall clock is off by up to a second, and drifts as quartz does."""
    off = round(dice.gauss(0, 0.05) * S) if dice.random() < 0.8 else dice.randrange(-S, S)
    drift = dice.choice((0, dice.randrange(-_DRIFT_PPB, _DRIFT_PPB)))
    slew = dice.choice((0, 0, dice.randrange(-20_000, 20_000)))
    raw = Clock(BOOTED + dice.randrange(1_000 * S), drift)
    return Host(raw, Clock(EPOCH + off, drift + slew))


def read_clocks(host: Host, at: int, dice: random.Random) -> ClockReading:
    """Both clocks at `at`; the real one is read a little later, as on a busy machine."""
    slack = dice.randrange(50, 400) if dice.random() < 0.98 else dice.randrange(400, 200_000)
    real = host.real(at + dice.randrange(slack))
    return ClockReading(NodeRawNs(host.raw(at)), NodeNs(real), slack + 1)
