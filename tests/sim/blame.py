"""Which ranks a finding may name for sure, and how findings open: what their suspects were asked.

A rank that waits in what no recorder shows is not the first cause. From recorders alone it looks
like one, so agents that answer are asked before a finding opens.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from frd.model import Confidence, Finding, Kind, Reason, Suspect
from tests.sim.faults import UNRECORDED, FaultKind, Injected
from tests.sim.places import WAITS, Sys, place_of

if TYPE_CHECKING:
    from tests.sim.world import Run, World

_CIRCLES: Final = frozenset({FaultKind.RECV_CIRCLE, FaultKind.NEW_GROUP_CIRCLE})
_NEVER_SURE: Final = frozenset(
    {FaultKind.POLL_ALL, FaultKind.DEVICE_WAIT, FaultKind.STANDSTILL, FaultKind.SERVING}
)
"""Nothing proves for which rank the others wait, or there is no cause."""
_ANSWER: Final = ("good", "slow")
"""Moods of agents that answer, soon or late."""
_MOODS: Final = ("good", "slow", "lossy", "refuses", "gone")
"""From the best to the worst."""
_HANGS: Final = frozenset({Kind.STALL, Kind.ORDER})
_ASKED: Final = 8
"""Suspects of one finding that are asked before it opens."""


class Blame:
    def __init__(self, world: World) -> None:
        self._world = world
        self.opened: Counter[str] = Counter()
        """Findings of hangs whose suspects were in their programs, by the worst mood of their
        agents."""
        self.with_lines: Counter[str] = Counter()
        """Those of them that opened with the line of each suspect, from its stack."""
        self.with_waits: Counter[str] = Counter()
        """The same, with what each waits for."""

    # -- innocence -----------------------------------------------------------------------------

    def wrong(self, finding: Finding, run: Run) -> Suspect | None:
        """A suspect that is named for sure and should not be."""
        for suspect in finding.suspects:
            if suspect.confidence is Confidence.HIGH and self._is_innocent(suspect, run):
                return suspect
        return None

    def _is_innocent(self, suspect: Suspect, run: Run) -> bool:
        is_strict = self._world.scenario.strict and self._mood(suspect.rank, run) in _ANSWER
        plan = run.job.plan
        # While a job ends, ranks wait in sends and receives that no recorder shows.
        is_hidden = plan.hides_p2p and not plan.hooks and self._world.ended is not None
        if is_hidden and suspect.reason is Reason.CPU_STUCK:
            rank = run.job.ranks[suspect.rank]
            return is_strict and rank.alive and place_of(rank).sys in WAITS
        causes = _causes if is_strict else _all_involved
        guilty = {rank for one in run.job.injected for rank in causes(one, suspect.reason, run)}
        end, liars = self._world.ended, self._world.troubles.liars
        if end is not None and end.attempt == run.key.attempt and end.culprit is not None:
            guilty.add(end.culprit)
        guilty |= {rank.rank for rank in run.job.ranks if rank.node in liars}
        return suspect.rank not in guilty

    def _mood(self, rank: int, run: Run) -> str:
        agent = self._world.nodes[run.job.ranks[rank].node].agent
        return "gone" if agent is None else agent.mood

    # -- how findings open -----------------------------------------------------------------------

    def opens(self, finding: Finding, run: Run) -> None:
        suspects = finding.suspects[:_ASKED]
        ranks = [run.job.ranks[suspect.rank] for suspect in finding.suspects]
        lives = all(rank.alive and place_of(rank).sys is not Sys.EXITS for rank in ranks)
        if finding.kind not in _HANGS or not suspects or not lives:
            return
        mood = max((self._mood(one.rank, run) for one in suspects), key=_MOODS.index)
        self.opened[mood] += 1
        has_waits = [one.waits_for is not None for one in suspects]
        # Of a stopped process there is no line.
        self.with_lines[mood] += all(
            bool(one.stack) or (waits and run.job.ranks[one.rank].stopped)
            for one, waits in zip(suspects, has_waits, strict=True)
        )
        self.with_waits[mood] += all(has_waits)


def _all_involved(injected: Injected, reason: Reason, run: Run) -> frozenset[int]:
    hidden = frozenset[int]() if run.job.plan.hooks else injected.hidden
    return injected.culprits | injected.may_name | hidden


def _causes(injected: Injected, reason: Reason, run: Run) -> frozenset[int]:
    """Not who waits for them."""
    match injected.fault.kind:
        case kind if kind in _NEVER_SURE:
            return frozenset()
        case kind if kind in _CIRCLES:
            is_circle = reason is Reason.ORDER
            return injected.culprits | injected.may_name if is_circle else frozenset()
        case FaultKind.STRAGGLER if reason is not Reason.LATE:
            return injected.culprits
        case kind if kind in UNRECORDED:
            return injected.culprits
        case _:
            return injected.culprits | injected.may_name
