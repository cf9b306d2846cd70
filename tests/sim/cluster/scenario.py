"""The events of a cluster's world: the job's faults, and troubles of replicas, servers and wire."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tests.sim.programs import draw_plan
from tests.sim.scenario import LAST, WARM, Event, Scenario, Trouble, draw
from tests.world.clocks import S

_WORLDS: Final = (4, 4, 8)
_WEIGHTS: Final = {
    Trouble.REPLICA_KILLED: 8,
    Trouble.REPLICA_RESTARTED: 3,
    Trouble.REPLICA_PAUSED: 8,
    Trouble.CUT_FROM_SERVERS: 6,
    Trouble.CUT_ONE_WAY: 3,
    Trouble.CUT_FROM_AGENTS: 3,
    Trouble.NO_LEADER: 4,
    Trouble.LOST_ANSWERS: 4,
    Trouble.SLOW_SERVERS: 3,
    Trouble.DISMISSED: 3,
    Trouble.MARKED: 4,
    Trouble.AGENT_KILLED: 2,
    Trouble.AGENT_RESTARTED: 1,
    Trouble.PARTITION: 2,
    Trouble.RESET: 3,
    Trouble.SLOW_READER: 1,
    Trouble.NODE_STEP: 1,
    Trouble.SERVICE_STEP: 1,
    Trouble.LIAR: 1,
    Trouble.JOB_RESTARTED: 1,
}
_OF_PEOPLE: Final = frozenset({Trouble.DISMISSED, Trouble.MARKED})
_NEAR_A_FAULT: Final = 0.4
"""Share of the troubles that begin when a fault of the job does, or while it is found."""
_WITH_A_FAULT: Final = 0.7
"""Of the jobs that would have none."""
_BEFORE: Final = 6 * S
_AFTER: Final = 12 * S


def draw_cluster(seed: int, world: int | None = None, *, asks: bool = False) -> Scenario:
    """The world of a seed; `world` overrides the number of ranks, `asks` as in `Scenario`."""
    alone, dice = draw(seed, world, asks=asks), random.Random(f"{seed}/cluster")
    plan = alone.plan
    if world is None and not asks:
        plan = draw_plan(random.Random(f"{seed}/plan"), world=dice.choice(_WORLDS))
    events = [event for event in alone.events if event.trouble is None]
    if not events and dice.random() < _WITH_A_FAULT:
        events.append(Event(0, dice.randrange(WARM, LAST - 10 * S), None))
    faults = [event.at for event in events]
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    for _ in range(dice.choice((1, 2, 3, 4, 6, 8))):
        trouble = dice.choices(kinds, weights)[0]
        at = dice.randrange(5 * S, LAST - S)
        if faults and dice.random() < _NEAR_A_FAULT:
            at = min(dice.choice(faults) + dice.randrange(-_BEFORE, _AFTER), LAST - S)
        length = min(round(10 ** dice.uniform(-1, 1.5) * S), LAST + 10 * S - at)
        if trouble is Trouble.NO_LEADER:
            length = dice.randrange(4 * S, 9 * S)
        elif trouble in _OF_PEOPLE:
            length = LAST - at  # that long they look for a finding
        events.append(Event(0, at, trouble, dice.choice((0.0, 0.0, 0.5, 1.0)), length))
    events.sort(key=lambda event: event.at)
    numbered = tuple(replace(event, number=number) for number, event in enumerate(events))
    return replace(alone, plan=plan, events=numbered)
