"""What a cluster promises in addition: no loss of what was acknowledged, and findings that survive.

A cell may have two owners for a while, one of which does not know yet that it has been replaced.
What the present owner shows is judged as one service's findings are. The former one goes on from
what it knew; it may accuse no innocent rank either, and must fall silent when it hears of the
other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.cluster.cells import cell_of
from frd.model import Change, Confidence, EntryColumns, Finding, FindingEvent, FindingState, Kind
from frd.service.cells.owner import Opened
from frd.service.ingest.streams import Stream
from frd.service.journal.payloads import decode_finding
from frd.service.journal.reading import read, recover
from frd.store.records import Record, RecordKind
from frd.wire.messages import AgentEvent
from tests.sim.oracle import _OF_INCIDENTS, Oracle, Violation, _gist, _labels
from tests.sim.scenario import POLICY
from tests.world.account import logged
from tests.world.clocks import S
from tests.world.fake_cluster import FakeFindings, FakeLog, Faults

if TYPE_CHECKING:
    from frd.service.cells.cell import Cell
    from tests.sim.cluster.replica import SimReplica
    from tests.sim.cluster.world import ClusterWorld

_Rows = dict[tuple[str, int], set[int]]
"""Revisions by agent session and pid."""
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
        self._applied: _Rows = defaultdict(set)
        self._foreign: dict[tuple[SimReplica, int], int] = {}
        self.takeovers = 0
        self.shown_at = 0
        """When findings last changed."""
        self._taken_at = 0
        self._restored: set[str] = set()
        """Findings that were open at the last takeover."""

    @property
    def owner(self) -> str:
        """Of the job's cell; empty if it had none yet."""
        return self._owner.name if self._owner is not None else ""

    # -- what happens ----------------------------------------------------------------------------

    def applied(self, stream: Stream, event: AgentEvent, data: bytes) -> None:
        super().applied(stream, event, data)
        if isinstance(event, EntryColumns) and event.first_revision > 0:
            rank = stream.session.ranks[event.rank]
            rows = range(event.first_revision, event.first_revision + len(event))
            self._applied[stream.session.key[1], rank.info.pid].update(rows)

    def taken_over(self, replica: SimReplica, opened: Opened) -> None:
        """`replica` has taken the log of the job's cell and read what was left there. Another one
        may have taken it meanwhile: then this one is a former owner, and learns that soon."""
        self.takeovers += 1
        if self._taker() != replica.name:
            self._known[replica] = {finding.id: finding for finding in opened.findings}
            return
        self._taken_at = self._world.kernel.now
        self._evidence.restarted()
        restored = {finding.id: finding for finding in opened.findings}
        unsaved = self._unsaved()
        known = dict(self.findings)
        for id_, finding in self.findings.items():
            if id_ in unsaved:
                if id_ not in restored:
                    del known[id_]
            elif finding.state is FindingState.OPEN and id_ not in restored:
                raise Violation("lost in a takeover", finding.summary)
            elif finding.state is FindingState.CLOSED and id_ in restored:
                raise Violation("open again after a takeover", finding.summary)
            elif id_ in restored and not _labels(finding) <= _labels(restored[id_]):
                raise Violation(
                    "changed by a takeover", f"{finding.summary} -> {restored[id_].summary}"
                )
        self._restored = {id_ for id_, one in restored.items() if one.state is FindingState.OPEN}
        self.findings = known | restored
        self._known[replica] = self.findings
        self._owner = replica
        for finding in opened.findings:
            self._check_blame(finding)

    def _taker(self) -> str:
        """Who stored the last fence in the log of the job's cell."""
        stream = self._cluster.servers.stream(cell_of(self._cluster.job))
        fences = (one for one in reversed(stream.messages) if not one.epoch)
        return next((fence.data.decode() for fence in fences), "")

    def _unsaved(self) -> set[str]:
        """Findings with a change that the last owner has shown, but could not store in time."""
        cell = self._owner.cell if self._owner is not None else None
        return set(cell.evaluator._unsaved) if cell is not None else set()

    def shown(self, replica: SimReplica, events: Sequence[FindingEvent]) -> None:
        """`replica` has published changes of findings."""
        self.shown_at = self._world.kernel.now
        present, self.findings = self.findings, self._known[replica]
        opened = self._opened.copy()
        assert replica.cell is not None
        self.began = self._began[replica.cell]
        try:
            self.published(events, replica.cell.state.status_view)
        finally:
            if replica is not self._owner:
                self.findings, self._opened = present, opened

    def _follow(self, event: FindingEvent) -> None:
        super()._follow(event)
        finding, now = event.finding, self._world.kernel.now
        if finding.closed_at is not None and finding.closed_at < finding.opened_at:
            early = (finding.opened_at - finding.closed_at) / S
            raise Violation("closed before it opened", f"{early:.3f} s: {finding.summary}")
        if event.change is Change.OPENED and finding.kind in _OF_MEMORY:
            for known in map(self.findings.__getitem__, self._restored):
                if known.state is FindingState.OPEN and _about(known) == _about(finding):
                    raise Violation("opened again", f"{known.summary} -> {finding.summary}")
        if event.change is not Change.CLOSED or finding.id not in self._restored:
            return
        since = now - self._taken_at
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
        if self._cluster.failures:
            raise Violation("internal error", "; ".join(self._cluster.failures))
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

    # -- at the end ------------------------------------------------------------------------------

    def check_replay(self, folder: Path) -> None:
        self._cluster.disk.run(self._check_logs())

    async def _check_logs(self) -> None:
        world, cell = self._cluster, cell_of(self._cluster.job)
        for number, stream in world.servers.streams.items():
            takers = {id(stored.writer) for stored in stream.messages if not stored.epoch}
            if len(takers) > world.takes[number]:
                what = f"cell {number}: {len(takers)} owners, {world.takes[number]} takeovers"
                raise Violation("taken again", what)
            fence = None
            for at, stored in enumerate(stream.messages, stream.first):
                if not stored.epoch:
                    fence, writer = at, stored.writer
                elif fence is None or stored.epoch != fence or stored.writer is not writer:
                    raise Violation("fence", f"cell {number}, bundle {at}: epoch {stored.epoch}")
        log = FakeLog(world.servers.stream(cell), Faults())
        warnings: list[str] = []
        records: list[Record] = []
        bounds = await log.bounds()
        async for some in read(log, *bounds, warnings.append):
            records += some
        if warnings:
            raise Violation("log", f"{warnings}")
        self._check_acknowledged(records)
        await self._check_findings(records)

    def _check_acknowledged(self, records: Sequence[Record]) -> None:
        """Every row that was acknowledged is in the log."""
        stored: _Rows = defaultdict(set)
        for session, _, rank, rows in logged(records):
            if (first := rows.first_revision) > 0:
                stored[session, rank.pid].update(range(first, first + len(rows)))
        for number, node in enumerate(self._world.nodes):
            if number in self._world.troubles.liars:
                continue
            for agent in node.sessions:
                for watched in agent.watched.values():
                    if (queue := agent.outbox._queues.get(watched.number)) is None:
                        continue
                    of = agent.session, watched.process.info.pid
                    acked = {row for row in self._applied[of] if row <= queue.acked}
                    missing = acked - stored[of]
                    if len(missing) > agent.outbox.dropped.get(watched.number, 0):
                        what = f"{len(missing)} rows of rank {watched.process.info.rank}"
                        raise Violation("acknowledged, not in the log", what)

    async def _check_findings(self, records: Sequence[Record]) -> None:
        """The log, the shared store and all local copies have the same last versions."""
        world, cell = self._cluster, cell_of(self._cluster.job)
        shown = {id_: _seen(finding) for id_, finding in self.findings.items()}
        of_findings = (RecordKind.FINDING, RecordKind.RESTORED)
        versions = [decode_finding(one.payload) for one in records if one.kind in of_findings]
        stored = {finding.id: _seen(finding) for finding in versions}
        _same("findings in the log", shown, stored)
        left = await recover(FakeLog(world.servers.stream(cell), Faults()), lambda text: None)
        still_open = {
            f.id: _seen(f) for f in self.findings.values() if f.state is FindingState.OPEN
        }
        _same("recovered findings", still_open, {f.id: _seen(f) for f in left.findings})
        shared = await FakeFindings(world.servers.findings, Faults()).of_cell(cell)
        _same("shared findings", shown, {one.id: _seen(decode_finding(one.data)) for one in shared})
        for replica in world.running():
            local = [replica._store.get(id_) for id_ in shown]
            _same(f"findings of {replica.name}", shown, {f.id: _seen(f) for f in local if f})


def _about(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.attempt, {suspect.rank for suspect in finding.suspects}


def _seen(finding: Finding) -> tuple[object, ...]:
    """What is stored of it: times in microseconds."""
    kind, state, opened_at, closed_at, suspects = _gist(finding)
    assert isinstance(opened_at, int)
    closed_us = closed_at // 1000 if isinstance(closed_at, int) else None
    return kind, state, opened_at // 1000, closed_us, suspects


def _same(what: str, shown: object, other: object) -> None:
    if shown != other:
        raise Violation(what, f"shown {shown}, there {other}")
