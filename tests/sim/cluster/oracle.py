"""What a cluster promises in addition: findings that survive, and rows that an owner has applied.

A cell may have two owners for a while, one of which does not know yet that it has been replaced.
What the present owner shows is judged as one service's findings are. The former one goes on from
what it knew; it may accuse no innocent rank either, and is not heard (`heard`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.cluster.cells import cell_of
from frd.model import Change, Confidence, Finding, FindingEvent, FindingState, Kind
from frd.service.cells.owner import Opened
from frd.service.findings.keepers import SharedKeeper
from frd.service.journal.payloads import decode_finding
from tests.sim.oracle import _OF_INCIDENTS, Oracle, Violation, _gist, _labels
from tests.sim.scenario import POLICY
from tests.world.clocks import S

if TYPE_CHECKING:
    from frd.service.cells.cell import Cell
    from tests.sim.cluster.replica import SimReplica
    from tests.sim.cluster.world import ClusterWorld
    from tests.sim.faults import Injected
    from tests.sim.world import Run

_HIGH: Final = Confidence.HIGH
_SETTLED: Final = 20 * S
"""So long after a takeover, restored findings that close while their fault lasts are due to it."""
_EXPIRED: Final = round(POLICY.lost_close_after_s * S)
"""So long after it, they may close because no agent has reported on them."""
_OF_MEMORY: Final = frozenset({Kind.MEMORY_SPIKE, Kind.OOM})
_GRACE: Final = 3
"""So many checks in a row, because a heartbeat and what follows from it take a moment."""


class ClusterOracle(Oracle):
    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._cluster = world
        self._owner: SimReplica | None = None
        """The last replica that has taken over the job's cell."""
        self._known: dict[SimReplica, dict[str, Finding]] = {}
        """What each replica shows of the job's cell."""
        self._began: dict[Cell, dict[str, int]] = defaultdict(dict)
        self._foreign: dict[tuple[SimReplica, int], int] = {}
        self.takeovers = 0
        self.shown_at = 0
        """When findings last changed."""
        self.taken_at = 0
        """When the last owner has taken the job's cell over."""
        self._restored: set[str] = set()
        """Findings that were open at the last takeover."""
        self._moved: set[str] = set()
        """Findings that were restored and not shown since, or closed by hand, whose end is not
        shown: what is stored may have their times by another state of the clocks."""

    @property
    def owner(self) -> str:
        """Of the job's cell; empty if it had none yet."""
        return self._owner.name if self._owner is not None else ""

    # -- what happens ----------------------------------------------------------------------------

    def taken_over(self, replica: SimReplica, opened: Opened) -> None:
        """`replica` has claimed the job's cell and read what was left there. Another one may have
        claimed it meanwhile: then this one is a former owner, and learns that soon."""
        self.takeovers += 1
        if not self._cluster.heard.is_owner(replica):
            self._known[replica] = {finding.id: finding for finding in opened.findings}
            return
        self.taken_at = self._world.kernel.now
        self._evidence.restarted()
        restored = {finding.id: finding for finding in opened.findings}
        still_open = {id_ for id_, one in restored.items() if one.state is FindingState.OPEN}
        unsaved = self._unsaved()
        self._check_pauses(opened)
        known = dict(self.findings)
        for id_, finding in self.findings.items():
            if id_ in unsaved:
                if (stored := restored.get(id_) or self.stored().get(id_)) is not None:
                    known[id_] = stored  # only the answer was lost, perhaps
                else:
                    del known[id_]
            elif finding.state is FindingState.OPEN and id_ not in restored:
                raise Violation("lost in a takeover", finding.summary)
            elif finding.state is FindingState.CLOSED and id_ in still_open:
                raise Violation("open again after a takeover", finding.summary)
            elif id_ in restored and not _labels(finding) <= _labels(restored[id_]):
                raise Violation(
                    "changed by a takeover", f"{finding.summary} -> {restored[id_].summary}"
                )
        self._restored = still_open
        self._moved |= restored.keys()
        self.findings = known | restored
        self._known[replica] = self.findings
        self._owner = replica
        for finding in opened.findings:
            self._check_blame(finding)

    def _check_pauses(self, opened: Opened) -> None:
        """The new owner knows the pauses that the last one has stored."""
        if self._owner is None or self._owner.cell is None:
            return
        cell, left = self._owner.cell, {one.job: one.encode() for one in opened.pauses}
        assert isinstance(cell._keeper, SharedKeeper)
        for job, pauses in cell._keeper.pauses.items():
            if job not in cell.evaluator._unsaved_pauses and left.get(job) != pauses.encode():
                raise Violation("pauses lost", f"{pauses.encode()} -> {left.get(job)}")
        self._cluster.heard.counts["pauses taken over"] += len(left)

    def _unsaved(self) -> set[str]:
        """Findings with a change that the last owner has shown, but could not store in time."""
        cell = self._owner.cell if self._owner is not None else None
        return set(cell.evaluator._unsaved) if cell is not None else set()

    def shown(self, replica: SimReplica, events: Sequence[FindingEvent]) -> None:
        """`replica` has published changes of findings."""
        self.shown_at = self._world.kernel.now
        present, self.findings = self.findings, self._known[replica]
        opened = self._opened.copy()
        restored = self._restored
        if replica is not self._owner:
            self._restored = set()  # what a former owner makes of them is not heard
        assert replica.cell is not None
        self.began = self._began[replica.cell]
        try:
            self.published(events, replica.cell.state.status_view)
        finally:
            self._restored = restored
            if replica is not self._owner:
                self.findings, self._opened = present, opened

    def _follow(self, event: FindingEvent) -> None:
        super()._follow(event)
        finding, now = event.finding, self._world.kernel.now
        (self._moved.add if finding.goes_on else self._moved.discard)(finding.id)
        if finding.closed_at is not None and finding.closed_at < finding.opened_at:
            early = (finding.opened_at - finding.closed_at) / S
            raise Violation("closed before it opened", f"{early:.3f} s: {finding.summary}")
        if event.change is Change.OPENED and finding.kind in _OF_MEMORY:
            for known in map(self.findings.__getitem__, self._restored):
                if known.state is FindingState.OPEN and _about(known) == _about(finding):
                    raise Violation("opened again", f"{known.summary} -> {finding.summary}")
        if event.change is not Change.CLOSED or finding.id not in self._restored:
            return
        if finding.goes_on:
            return  # a person has closed it
        since = now - self.taken_at
        has_expired = since >= _EXPIRED and finding.close_reason.startswith("nothing new for")
        if since > _SETTLED or has_expired:
            return
        run = self._run_of(finding)
        if run is not self._world.runs[-1] or finding.kind not in _OF_INCIDENTS:
            return
        if not any(rank.alive for rank in run.job.ranks):
            return  # it was ended, and starts again in a moment
        named = {suspect.rank for suspect in finding.suspects if suspect.confidence is _HIGH}
        for injected in run.job.injected:
            if named & injected.culprits and run.job.is_felt(injected):
                raise Violation(
                    "closed by a takeover", f"{finding.summary}: {finding.close_reason}"
                )

    # -- at any time -----------------------------------------------------------------------------

    def check_now(self) -> None:
        super().check_now()
        self.waits.look(self._world.runs[-1])  # replicas ask agents in every life
        if self._cluster.failures:
            raise Violation("internal error", "; ".join(self._cluster.failures))
        self._cluster.heard.look()
        self._cluster.heard.check()
        foreign: dict[tuple[SimReplica, int], int] = {}
        for replica in self._cluster.running():
            view = replica.lease.view
            for cell in replica.cells:
                owner = view.owners.get(cell)
                if view.connected and owner not in (None, replica.name):
                    foreign[replica, cell] = self._foreign.get((replica, cell), 0) + 1
                    if foreign[replica, cell] > _GRACE:
                        what = f"{replica.name} shows cell {cell} and knows that {owner} owns it"
                        raise Violation("two owners", what)
        self._foreign = foreign

    def check_owned(self) -> None:
        """Every cell has one owner, to which all replicas send agents."""
        running = self._cluster.running()
        for cell in range(self._cluster.cell_count):
            having = [replica.name for replica in running if cell in replica.cells]
            open_at = [replica.name for replica in running if replica.owner.is_open(cell)]
            known = {replica.lease.view.owners.get(cell) for replica in running}
            if len(having) != 1 or having != open_at or known != set(having):
                what = f"cell {cell}: at {having}, open at {open_at}, known as {known}"
                raise Violation("not owned", what)

    def _is_found(self, injected: Injected, run: Run) -> bool:
        """Also by a finding that a person has closed: what becomes of it is not reported."""
        closed = [finding for finding in self.findings.values() if finding.goes_on]
        named = {rank for one in closed for rank in (*one.unknown, *(s.rank for s in one.suspects))}
        return bool(named & injected.culprits) or super()._is_found(injected, run)

    # -- at the end ------------------------------------------------------------------------------

    def check_replay(self, folder: Path) -> None:
        """The servers and all local copies have the last versions of the findings."""
        heard, world = self._cluster.heard, self._cluster
        heard.check()
        heard.check_noticed()
        shown = self._seen(self.findings.values())
        _same("stored findings", shown, self._seen(self.stored().values()))
        for replica in world.running():
            local = [one for id_ in shown if (one := replica.store.get(id_)) is not None]
            _same(f"findings of {replica.name}", shown, self._seen(local))

    def _seen(self, findings: Iterable[Finding]) -> dict[str, tuple[object, ...]]:
        """What is stored of them, by id: times in microseconds."""
        seen: dict[str, tuple[object, ...]] = {}
        for finding in findings:
            kind, state, opened_at, closed_at, suspects = _gist(finding)
            seen[finding.id] = kind, state, suspects
            if finding.id not in self._moved:
                assert isinstance(opened_at, int)
                closed_us = closed_at // 1000 if isinstance(closed_at, int) else None
                seen[finding.id] += opened_at // 1000, closed_us
        return seen

    def stored(self) -> dict[str, Finding]:
        """The findings of the job's cell, as the servers have them."""
        prefix = f"v.{cell_of(self._cluster.job):02}."
        entries = self._cluster.servers.entries
        values = [
            entry.value
            for key, entry in entries.items()
            if key.startswith(prefix) and key != prefix
        ]
        return {finding.id: finding for finding in map(decode_finding, values)}


def _about(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.attempt, {suspect.rank for suspect in finding.suspects}


def _same(what: str, shown: object, other: object) -> None:
    if shown != other:
        raise Violation(what, f"shown {shown}, there {other}")
