"""People who close findings by hand and acknowledge them, at the replica that has the job.

What a replica has answered to them, and stored, holds for all later owners of the cell: a dismissed
finding stays closed while its trouble lasts, and a mark stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from frd.cluster.cells import cell_of
from frd.errors import FrdError
from frd.model import AlignedNs, Finding, FindingState, Kind
from frd.service.findings.people import acknowledge
from frd.service.journal.payloads import Dismissal
from tests.sim.oracle import Violation
from tests.sim.scenario import Event, Trouble
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.cluster.replica import SimReplica
    from tests.sim.cluster.world import ClusterWorld

_ANN: Final = "ann"
_LATER: Final = S


class People:
    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.dismissed: dict[str, Finding] = {}
        self.marked: set[str] = set()
        self.refused = 0
        self.unstored = 0
        """What was answered, and was not stored."""

    def come(self, event: Event) -> None:
        """Look for an open finding, and say something of it; or look again later."""
        world = self._world
        for replica in world.running():
            if not world.heard.is_owner(replica) or cell_of(world.job) not in replica.cells:
                continue
            for finding in world.heard.open_now(replica):
                if event.trouble is Trouble.DISMISSED:
                    replica.loop.create_task(self._dismiss(replica, finding))
                else:
                    replica.loop.create_task(self._mark(replica, finding))
                return
        if world.kernel.now < event.until:
            world.kernel.after(_LATER, partial(self.come, event))

    async def _dismiss(self, replica: SimReplica, finding: Finding) -> None:
        try:
            closed = await replica.cells.dismiss(Dismissal(finding.id, "known", _ANN))
        except FrdError:
            self.refused += 1
            return
        if closed is None:
            self.refused += 1
        elif self._is_stored(closed):
            self.dismissed[closed.id] = closed
        else:
            self.unstored += 1

    async def _mark(self, replica: SimReplica, finding: Finding) -> None:
        mark = acknowledge(_ANN, AlignedNs(replica.now.utc()))
        try:
            marked = await replica.cells.mark(finding, mark)
        except FrdError:
            self.refused += 1
            return
        if self._is_stored(marked):
            self.marked.add(marked.id)
        else:
            self.unstored += 1

    def _is_stored(self, finding: Finding) -> bool:
        stored = self._world.oracle.stored().get(finding.id)
        return stored is not None and (stored.state, stored.acknowledged_by) == (
            finding.state, finding.acknowledged_by,
        )  # fmt: skip

    def look(self, replica: SimReplica, findings: Mapping[str, Finding]) -> None:
        """The owner shows these."""
        world = self._world
        for id_ in self.marked & findings.keys():
            if findings[id_].acknowledged_by != _ANN:
                raise Violation("mark lost", f"{replica.process}: {findings[id_].summary}")
        for id_, closed in self.dismissed.items():
            if id_ in findings and findings[id_].state is FindingState.OPEN:
                raise Violation("dismissed, open again", f"{replica.process}: {closed.summary}")
            for other in world.heard.lasting(closed):
                if other.opened_at > (closed.closed_at or 0) and self._lasts(closed):
                    what = f"{replica.process}: {closed.id} -> {other.id}: {other.summary}"
                    raise Violation("dismissed, found again", what)

    def _lasts(self, finding: Finding) -> bool:
        """Its cause is as it was when it was dismissed. A lost rank of which no agent has reported
        for long is forgotten, as its finding would have closed without people."""
        run, stored = self._world.runs[-1], self._world.oracle.stored().get(finding.id)
        if finding.kind is Kind.RANK_LOST and stored is not None and not stored.goes_on:
            return False
        named = {suspect.rank for suspect in finding.suspects}
        return run.key.attempt == finding.attempt and any(
            named & injected.culprits and run.job.is_felt(injected) for injected in run.job.injected
        )
