"""The events of a world, drawn from its seed.

Every event has its own dice, so that leaving one out changes the others as little as possible; this
is how a failing world is reduced.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from frd.engine.policy import Policy
from tests.sim.agent import Limits
from tests.sim.programs import JobPlan, draw_plan
from tests.world.clocks import S

POLICY: Final = Policy(
    stall_after_s=5.0,
    lost_close_after_s=12.0,
    straggler_window_s=40.0,
    clock_unsynchronized_after_s=15.0,
    attempt_retention_s=120.0,
    memory_warmup_s=8.0,
    memory_min_rise_bytes=64 * 1024 * 1024,
)
"""The defaults, with seconds instead of minutes: a world lives for two minutes."""
LEAK_WINDOW: Final = 30 * S
"""The same for `frd.engine.memory.walk.trend.LEAK_WINDOW_NS`."""
_ASKED: Final = replace(POLICY, init_stall_after_s=12.0)
HIDDEN_POLICY: Final = replace(_ASKED, standstill_after_s=15.0)
_ASKED_WORLDS: Final = (4, *[8] * 4, 12, 16)
_HIDES: Final = 0.35
"""Share of worlds with answers in which sends and receives are hidden, at least."""
_SMALL: Final = 8
_USUAL: Final = 64
_SMALLER: Final = 0.75
"""So many of the larger worlds are small ones instead: small worlds find as much in less time.
Worlds beyond the usual size are rare anyway."""
_EAGER: Final = 0.7
"""Share of jobs with late completions that are recorded as nccl2's are."""
WARM: Final = 10 * S
LAST: Final = 45 * S
"""Nothing begins later, and troubles of machines and wire end in time."""


class Trouble(StrEnum):
    """Faults of agents, the service, the wire and clocks."""

    AGENT_KILLED = "agent_killed"
    AGENT_RESTARTED = "agent_restarted"
    """By SIGTERM."""
    SERVICE_KILLED = "service_killed"
    SERVICE_RESTARTED = "service_restarted"
    PARTITION = "partition"
    RESET = "reset"
    """Connections break."""
    SLOW_READER = "slow_reader"
    DISK_FULL = "disk_full"
    NODE_STEP = "node_step"
    """NTP sets the wall clock of a node."""
    SERVICE_STEP = "service_step"
    LIAR = "liar"
    """An agent sends false messages."""
    JOB_RESTARTED = "job_restarted"
    # Only in a cluster:
    REPLICA_KILLED = "replica_killed"
    REPLICA_RESTARTED = "replica_restarted"
    REPLICA_PAUSED = "replica_paused"
    CUT_FROM_SERVERS = "cut_from_servers"
    """A replica does not reach the servers."""
    CUT_ONE_WAY = "cut_one_way"
    """The servers do what a replica asks for, and it gets no answer."""
    CUT_FROM_AGENTS = "cut_from_agents"
    NO_LEADER = "no_leader"
    """The servers answer no replica."""
    LOST_ANSWERS = "lost_answers"
    """Of the servers; requests are lost and delayed, too."""
    SLOW_SERVERS = "slow_servers"
    DISMISSED = "dismissed"
    """A person closes an open finding by hand."""
    MARKED = "marked"
    """A person acknowledges an open finding."""


_WEIGHTS: Final = {
    Trouble.AGENT_KILLED: 4,
    Trouble.AGENT_RESTARTED: 2,
    Trouble.SERVICE_KILLED: 3,
    Trouble.SERVICE_RESTARTED: 1,
    Trouble.PARTITION: 4,
    Trouble.RESET: 4,
    Trouble.SLOW_READER: 2,
    Trouble.DISK_FULL: 2,
    Trouble.NODE_STEP: 3,
    Trouble.SERVICE_STEP: 1,
    Trouble.LIAR: 2,
    Trouble.JOB_RESTARTED: 1,
}


@dataclass(frozen=True, slots=True)
class Event:
    """`trouble` for a share of the nodes, for a while; None: a fault of the job."""

    number: int
    at: int
    trouble: Trouble | None
    share: float = 0.0
    length: int = 0

    @property
    def until(self) -> int:
        return self.at + self.length

    def __str__(self) -> str:
        what = "fault of the job" if self.trouble is None else self.trouble.value
        return f"#{self.number} {what} at {self.at / S:.1f} s"


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    plan: JobPlan
    limits: Limits
    events: tuple[Event, ...]
    ends: bool = False
    """The job ends in one of the ways of `tests.sim.ends`, not only cleanly."""
    asks: bool = False
    """The service asks agents for stacks, dumps and waits, and ranks wait in what only those show.
    """
    hidden: bool = False
    """With `asks`: ranks wait in more such things, and their agents report what their taps see
    while counters rest. Frozen lives have neither."""
    mutates: bool = False
    """Agents send false answers."""
    strict: bool = False
    """A rank that waits in what no recorder shows is never named for sure."""
    policy: Policy = POLICY

    def dice(self, of: object) -> random.Random:
        """Separate dice for everything that has a name."""
        return random.Random(f"{self.seed}/{of}")


def draw(seed: int, world: int | None = None, hooks: str = "", *, asks: bool = False) -> Scenario:
    """The world of a seed; `world` overrides the number of ranks, `hooks` what records the job;
    `asks` as in `Scenario`."""
    dice = random.Random(f"{seed}/scenario")
    plan = draw_plan(random.Random(f"{seed}/plan"), world=world)
    if world is None and _SMALL < plan.world <= _USUAL:
        size = random.Random(f"{seed}/size")
        if size.random() < _SMALLER:
            world = size.choice((_SMALL // 2, _SMALL))
            plan = draw_plan(random.Random(f"{seed}/plan"), world=world)
    limits = Limits(
        outbox_rows=dice.choice((400_000, 400_000, 100, 1_000)),
        memory_bytes=dice.choice((8 << 20, 8 << 20, 1 << 16)),
        window_bytes=dice.choice((256 << 10, 16 << 10, 2 << 10)),
    )
    events = [
        Event(0, dice.randrange(WARM, LAST - 10 * S), None)
        for _ in range(max(dice.choice((0, 1, 1, 1, 1, 2, 3)), asks))
    ]
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    for _ in range(dice.choice((0, 0, 1, 1, 2, 3, 4, 6))):
        trouble = dice.choices(kinds, weights)[0]
        at = dice.randrange(2 * S, LAST - S)
        length = min(round(10 ** dice.uniform(-1, 1.7) * S), LAST + 10 * S - at)
        share = dice.choice((0.0, 0.0, 0.3, 0.5, 1.0))
        events.append(Event(0, at, trouble, share, length))
    events.sort(key=lambda event: event.at)
    numbered = tuple(
        Event(number, e.at, e.trouble, e.share, e.length) for number, e in enumerate(events)
    )
    if hooks:
        plan = plan.hooked(hooks, eager=random.Random(f"{seed}/eager").random() < _EAGER)
    if asks:
        plan = _draw_asked_plan(seed, world)
        return Scenario(seed, plan, limits, numbered, asks=True, policy=_ASKED)
    return Scenario(seed, plan, limits, numbered)


def _draw_asked_plan(seed: int, world: int | None) -> JobPlan:
    """Of a small job; often one of Gloo with a pipeline."""
    dice = random.Random(f"{seed}/asked")
    world = world or dice.choice(_ASKED_WORLDS)
    must_hide = dice.random() < _HIDES
    plans = (draw_plan(random.Random(f"{seed}/plan/{n}"), world=world) for n in range(100))
    return next(plan for plan in plans if plan.hides_p2p or not must_hide)
