"""Which ranks wait in what no recorder shows, and what the service must know of it.

Such a rank may be named, because it has not joined an op that others wait in. Once stacks have
proven that it waits, it must give way to a cause that is missing in the same op.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from frd.engine.state.snapshot import AT_REST
from frd.model import Confidence, Finding, FindingState, Reason, Suspect
from tests.sim.places import WAITS, Sys, place_of
from tests.sim.proofs import Proofs
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.ranks import SimRank
    from tests.sim.world import Run, World

_CONFIRMED: Final = 2 * S
"""From the answer that proves a wait until its rank is named no more: a second and a half, and two
evaluations."""


class UnrecordedWaits:
    def __init__(self, world: World) -> None:
        self._world = world
        self.proofs = Proofs(world.kernel)
        self._opened_at: dict[str, int] = {}
        """True times at which findings opened, by id."""
        self._seen: dict[int, set[int]] = {}

    def look(self, run: Run) -> None:
        """Once in each evaluation."""
        known = self._seen.setdefault(run.key.attempt, set())
        known.update(rank.rank for rank in run.job.ranks if rank.alive and self._may_wait(rank))

    def _may_wait(self, rank: SimRank) -> bool:
        place = place_of(rank)
        return place.sys in WAITS or (self._world.hidden and place.looks_again)

    def of(self, attempt: int) -> Collection[int]:
        """Ranks that have been in what may be a wait; none if agents are not asked about it."""
        return self._seen.get(attempt, ())

    def opened(self, finding: Finding) -> None:
        self._opened_at[finding.id] = self._world.kernel.now

    def wrong(self, finding: Finding, run: Run) -> str:
        """Which suspect should not be one; empty if none."""
        for suspect in finding.suspects if finding.state is FindingState.OPEN else ():
            how = suspect.reason, suspect.confidence
            is_sure = how == (Reason.CPU_STUCK, Confidence.HIGH)
            if is_sure and self._is_proven(suspect, finding, run):
                return f"rank {suspect.rank}: {suspect.evidence}: {finding.summary}"
        return ""

    def _is_proven(self, suspect: Suspect, finding: Finding, run: Run) -> bool:
        """Stacks that the service got prove that the rank waits, and others may be the cause."""
        service, rank = self._world.service, run.job.ranks[suspect.rank]
        still = [one for one in run.job.injected if one.began and one.healed is None]
        culprits = {number for one in still for number in one.culprits}
        missing = finding.collective.missing_ranks if finding.collective is not None else ()
        causes = [run.job.ranks[number] for number in culprits.intersection(missing)]
        if service is None or rank.rank in culprits or place_of(rank).sys is not Sys.PEER:
            return False
        if not any(place_of(one).sys not in WAITS for one in causes if one.alive):
            return False
        pid = run.processes[rank.rank].info.pid
        seen, attempt = self.proofs.of(pid), service.engine.known(run.key)
        if seen is None or attempt is None:
            return False
        groups, now = attempt.tables.groups, self._world.kernel.now
        rest_ns = max(int(groups.threshold_ns[: groups.count].max() * AT_REST), S)
        is_due = now >= seen.at + _CONFIRMED
        opened_at = self._opened_at.get(finding.id, now)
        return is_due and seen.asked_at > opened_at and self.proofs.lasted_ns(pid) >= rest_ns
