"""A job whose ranks really wait for each other, with their own clock, under a real `Engine`.

A step is a row of *layers*, each of which cuts the ranks into groups: every rank works for a while,
comes to the collective of its group, and leaves when the last member has come. Times are computed
first, for all steps, and then reported as by agents: late, in batches, and by clocks within their
stated uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    AttemptKey,
    Finding,
    FindingEvent,
    FindingState,
    GroupInfo,
    Int64s,
    RankInfo,
    Signature,
)
from tests.world import observe

MS = 1_000_000
S = 1_000_000_000
START = AlignedNs(1_700_000_000 * S)
REPORT_EVERY_S = 2.0

Layer = Sequence[Sequence[int]]
Work = Callable[[int, int], npt.NDArray[np.floating[Any]]]
"""Step and layer to seconds of work, by rank."""


def arrivals(world: int, layers: Sequence[Layer], steps: int, work: Work) -> list[Int64s]:
    """For each layer when each rank came to its collective, ns from the start: (steps, world)."""
    came = [np.zeros((steps, world), np.int64) for _ in layers]
    clock = np.zeros(world, np.int64)
    for step in range(steps):
        for number, layer in enumerate(layers):
            clock += np.round(work(step, number) * S).astype(np.int64)
            came[number][step] = clock
            for ranks in layer:
                clock[list(ranks)] = clock[list(ranks)].max()
    return came


class Race:
    """`per_node` ranks share a clock, which is off by at most `uncertainty_ns`.

    With `lasts_ns`, completions are reported too, that long after the last member joined.
    """

    def __init__(
        self,
        world: int,
        layers: Sequence[Layer],
        *,
        per_node: int = 0,
        uncertainty_ns: int | None = 0,
        policy: Policy | None = None,
        seed: int = 0,
        op: str = "all_reduce",
        lasts_ns: int | None = None,
    ) -> None:
        self.world = world
        self.layers = layers
        self.engine = Engine(policy or Policy())
        self.now = START
        self.events: list[FindingEvent] = []
        self.attempt = self.engine.attempt(AttemptKey("race", 0), world, self.now)
        self.node_of = np.arange(world) // (per_node or world)
        nodes = int(self.node_of.max()) + 1
        dice = np.random.default_rng(seed)
        bound = uncertainty_ns or 0
        self.clock_error = dice.integers(-bound, bound + 1, nodes)[self.node_of]
        for rank in range(world):
            node = int(self.node_of[rank])
            info = RankInfo(rank, world, f"node{node}", f"boot{node}", 100 + rank)
            self.engine.rank(self.attempt, info, self.now)
        self.attempt.connection(range(world), True)
        for node in range(nodes):
            ranks = np.flatnonzero(self.node_of == node).tolist()
            self.attempt.clocks.set(ranks, node, uncertainty_ns, self.now)
        self._groups = [
            [
                self.attempt.group(GroupInfo(f"{n}-{ranks[0]}", f"layer{n}", tuple(ranks)))
                for ranks in layer
            ]
            for n, layer in enumerate(layers)
        ]
        self._signature = Signature("gloo", op, ((4,),), ((4,),))
        self._lasts_ns = lasts_ns
        self._reported = 0

    def run(self, came: Sequence[Int64s]) -> list[FindingEvent]:
        """Report all steps, in batches."""
        first, steps = self.now, len(came[0])
        done = 0
        while done < steps:
            self.now = AlignedNs(self.now + round(REPORT_EVERY_S * S))
            upto = int(np.searchsorted(came[-1].max(axis=1), self.now - first))
            if upto > done:
                self._report(first, came, done, upto)
                done = upto
            self.events += self._advance()
        self._reported += steps
        return self.events

    def settle(self, seconds: float) -> list[FindingEvent]:
        """Let time pass without reports; returns the events of findings."""
        news: list[FindingEvent] = []
        for _ in range(round(seconds)):
            self.now = AlignedNs(self.now + S)
            news += self._advance()
        self.events += news
        return news

    def _advance(self) -> list[FindingEvent]:
        """Raises faults of the engine, which the service survives."""
        events = self.engine.advance(self.now).events
        if self.engine.faults:
            raise self.engine.faults[0]
        return events

    def _report(self, first: AlignedNs, came: Sequence[Int64s], done: int, upto: int) -> None:
        seq = np.arange(self._reported + done, self._reported + upto)
        for number, layer in enumerate(self.layers):
            for group, ranks in zip(self._groups[number], layer, strict=True):
                over = came[number][done:upto, list(ranks)].max(axis=1) + (self._lasts_ns or 0)
                for rank in ranks:
                    completed = first + over + self.clock_error[rank]
                    observe.entries(
                        self.attempt,
                        rank,
                        group,
                        seq,
                        signature=self._signature,
                        created=first + came[number][done:upto, rank] + self.clock_error[rank],
                        completed=completed * (self._lasts_ns is not None),
                        now=self.now,
                    )

    def findings(self) -> list[Finding]:
        return list(self.engine.status_view(self.now).findings)

    def open(self) -> list[Finding]:
        return [f for f in self.findings() if f.state is FindingState.OPEN]
