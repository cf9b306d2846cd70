"""Knows what really happened, and compares the service's findings with it.

Safety is checked at every evaluation: no uninvolved rank is blamed, no published cause is taken
back, no row is lost without being counted, nothing grows past its limit. Once machines and wire
work, faults of the job must be found; once the job works too, every finding must close. The
expected result is what an expert would say, not what the engine does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.engine.views import StatusView
from frd.model import (
    AttemptKey,
    Change,
    Confidence,
    EntryColumns,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
)
from frd.service.ingest.streams import Stream
from frd.service.journal.replay import replay
from frd.store.journal import read
from frd.wire.messages import AgentEvent, ResponsePart
from tests.sim.blame import Blame
from tests.sim.ends import ASKED, EndKind
from tests.sim.evidence import Evidence, collectives_waited_in
from tests.sim.faults import HIDDEN, UNRECORDED, FaultKind, Injected
from tests.sim.unrecorded_waits import UnrecordedWaits

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent
    from tests.sim.ends import End
    from tests.sim.service import Service
    from tests.sim.watched import Watched
    from tests.sim.world import Node, Run, World

_EXPECTED: Final[dict[FaultKind, tuple[Reason, set[Kind]]]] = {
    FaultKind.CPU_STUCK: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.GIL_HELD: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.P2P_STUCK: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.POLL: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.LOCK: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.CALL: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.RECV_CIRCLE: (Reason.ORDER, {Kind.STALL, Kind.ORDER}),
    FaultKind.FILELOCK: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.POLL_ALL: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.DEVICE_WAIT: (Reason.CPU_STUCK, {Kind.STALL}),
    FaultKind.STANDSTILL: (Reason.CPU_STUCK, {Kind.STANDSTILL}),
    FaultKind.NEW_GROUP_CIRCLE: (Reason.ORDER, {Kind.STALL, Kind.ORDER}),
    FaultKind.STOPPED: (Reason.UNREACHABLE, {Kind.STALL}),
    FaultKind.CRASH: (Reason.EXITED, {Kind.STALL, Kind.RANK_LOST}),
    FaultKind.CRASH_RECORDED: (Reason.EXITED, {Kind.STALL, Kind.RANK_LOST}),
    FaultKind.IN_COLLECTIVE_ALONE: (Reason.IN_COLLECTIVE_ALONE, {Kind.STALL}),
    FaultKind.DEVICE_STUCK: (Reason.DEVICE_STUCK, {Kind.STALL}),
    FaultKind.MISMATCH: (Reason.MISMATCH, {Kind.MISMATCH, Kind.STALL}),
    FaultKind.ORDER: (Reason.ORDER, {Kind.ORDER, Kind.STALL}),
    FaultKind.NETWORK: (Reason.NETWORK_OR_DEVICE, {Kind.STALL}),
    FaultKind.STRAGGLER: (Reason.LATE, {Kind.STRAGGLER}),
    FaultKind.MEMORY_SPIKE: (Reason.MEMORY, {Kind.MEMORY_SPIKE, Kind.OOM}),
    FaultKind.LEAK: (Reason.MEMORY, {Kind.MEMORY_SPIKE, Kind.OOM}),
    FaultKind.OOM: (Reason.MEMORY, {Kind.OOM, Kind.MEMORY_SPIKE}),
}
"""The reason and the kinds of finding by which each fault may be named; other kinds are no faults.
A finding keeps its kind: it may open as a stall, before enough is known, and get a reason later."""
_OF_INCIDENTS: Final = frozenset({Kind.STALL, Kind.MISMATCH, Kind.ORDER, Kind.RANK_LOST})
"""Kinds whose cause stays, once it is certain."""
_OFTEN: Final = 4
"""More findings of one kind about the same ranks are a flapping finding."""
_REPLAYED: Final = 2
"""One world in so many is replayed from its journal, which takes a fifth of its time."""
_ABOUT_RANKS: Final = frozenset(Kind) - {Kind.TELEMETRY_GAP, Kind.CLOCK_UNSYNCHRONIZED}


class Violation(AssertionError):
    """A promise was broken: `promise` names it in a word or two."""

    def __init__(self, promise: str, how: str) -> None:
        super().__init__(f"{promise}: {how}")
        self.promise = promise


@dataclass(slots=True)
class _Rows:
    """Rows of one rank process, as one agent session numbers them."""

    last: int = 0
    """The highest revision that any service process has applied."""
    applied: int = 0
    """How many different ones."""

    def take(self, first: int, last: int) -> int:
        fresh = max(last - max(first - 1, self.last), 0)
        self.applied += fresh
        self.last = max(self.last, last)
        return fresh


class Oracle:
    def __init__(self, world: World) -> None:
        self.findings: dict[str, Finding] = {}
        """In their last version, closed ones included."""
        self.rows = 0
        """Different rows that the service has applied."""
        self._world = world
        self._opened: Counter[tuple[object, ...]] = Counter()
        """By attempt, kind and what it is about."""
        self._evidence = Evidence(world)
        self.waits = UnrecordedWaits(world)
        self.blame = Blame(world)
        self.began: dict[str, int] = {}
        """Aligned times at which findings opened, by id, of this process of the service."""
        self._utc_ahead_ns = 0
        self._rows: dict[tuple[str, int], _Rows] = defaultdict(_Rows)
        """By agent session and pid."""

    # -- what the service does -----------------------------------------------------------------

    def applied(self, stream: Stream, event: AgentEvent, data: bytes) -> None:
        """A message was applied."""
        self._world.digest.update(data)
        if isinstance(event, EntryColumns) and event.first_revision > 0:
            rank = stream.session.ranks[event.rank]
            rows = self._rows[stream.session.key[1], rank.info.pid]
            last = event.first_revision + len(event) - 1
            self.rows += rows.take(event.first_revision, last)
        elif isinstance(event, ResponsePart):
            self.waits.proofs.answered(stream.session.ranks[event.rank_index].info.pid, event)

    def published(self, events: Sequence[FindingEvent], status_view: StatusView) -> None:
        self._utc_ahead_ns = status_view.utc_ahead_ns
        last = {event.finding.id: event for event in events}
        for event in events:
            self._world.digest.update(repr(event).encode())
            self._follow(event)
            self._check_blame(event.finding)
            if event is last[event.finding.id]:  # evidence is attached before ranks are judged
                self._check_waits(event.finding)

    def restarted(self, service: Service) -> None:
        """Published findings are still known, except those that a full disk did not store."""
        self._evidence.restarted()
        self.waits.proofs.restarted()
        self.began = {}
        stored = {finding.id for finding in service.findings.open_findings()}
        opened = {f.id for f in self.findings.values() if f.state is FindingState.OPEN}
        lost = opened - stored
        if lost and not self._world.disk_was_full:
            raise Violation("lost in a crash", f"{[self.findings[i].summary for i in lost]}")
        for finding_id in lost:
            del self.findings[finding_id]

    def _follow(self, event: FindingEvent) -> None:
        """The life of an id: opened once, updated, closed once."""
        finding, known = event.finding, self.findings.get(event.finding.id)
        began = self.began.setdefault(finding.id, finding.opened_at - self._utc_ahead_ns)
        if event.change is Change.OPENED:
            if known is not None and not self._world.disk_was_full:
                raise Violation("opened twice", finding.summary)
            self.waits.opened(finding)
            if (run := self._run_of(finding)) is not None:
                self.blame.opens(finding, run)
                self._check_service(finding, run)
            about = finding.attempt, finding.kind, _about(finding)
            self._opened[about] += 1
            if self._opened[about] > _OFTEN:
                raise Violation("flaps", finding.summary)
        elif event.change is Change.UPDATED and known and _is_late_evidence(known, finding):
            # By then the offset to UTC may be another.
            finding = replace(finding, opened_at=known.opened_at, closed_at=known.closed_at)
        elif known is None or known.state is FindingState.CLOSED:
            if not self._world.disk_was_full:
                raise Violation("was not open", f"{event.change.name}: {finding.summary}")
        elif known.kind != finding.kind or began != finding.opened_at - self._utc_ahead_ns:
            raise Violation("became another", f"{known.summary} -> {finding.summary}")
        elif finding.kind in _OF_INCIDENTS:
            _check_cause(known, finding, self.waits.of(finding.attempt))
        self.findings[finding.id] = finding

    # -- safety --------------------------------------------------------------------------------

    def _check_blame(self, finding: Finding) -> None:
        """No healthy rank is a suspect with high confidence."""
        run = self._run_of(finding)
        if run is None or finding.kind not in _ABOUT_RANKS:
            return
        if (wrong := self.blame.wrong(finding, run)) is not None:
            raise Violation(
                f"innocent, {wrong.reason}",
                f"rank {wrong.rank}: {wrong.evidence}: {finding.summary}",
            )

    def _check_service(self, finding: Finding, run: Run) -> None:
        """Ranks that wait for requests are no finding."""
        world, began = self._world, [one for one in run.job.injected if one.began]
        serves = [one.fault.kind for one in began] == [FaultKind.SERVING]
        if not world.scenario.strict or not serves or world.troubles.liars:
            return
        if (
            finding.kind in (*_OF_INCIDENTS, Kind.STANDSTILL)
            and began[0].healed is None
            and world.ended is None
        ):
            raise Violation("found, serving", finding.summary)

    def _check_waits(self, finding: Finding) -> None:
        """Who provably waits is no suspect with high confidence, if a cause is missing as well in
        the collective of the finding."""
        run = self._run_of(finding)
        if run is not None and (wrong := self.waits.wrong(finding, run)):
            raise Violation("waits", wrong)

    def _run_of(self, finding: Finding) -> Run | None:
        key = AttemptKey(finding.job, finding.attempt)
        return next((run for run in self._world.runs if run.key == key), None)

    def check_now(self) -> None:
        """Limits, which hold at any time."""
        self._evidence.look()
        world = self._world
        if world.scenario.asks:
            self.waits.look(world.runs[-1])
        for node in world.nodes:
            if (agent := node.agent) is None:
                continue
            if agent.outbox.rows > agent.limits.outbox_rows:
                raise Violation("limit", f"{node.name}: outbox holds {agent.outbox.rows} rows")
            if agent.samples._bytes > agent.limits.memory_bytes:
                raise Violation("limit", f"{node.name}: samples hold {agent.samples._bytes} bytes")
        if world.service is not None and len(world.service.streams) > len(world.conns):
            raise Violation("limit", f"{len(world.service.streams)} streams: some were forgotten")

    def check_rows(self) -> None:
        """Recorded = applied + dropped, to the last row, for every agent that ever ran; while an
        agent lives and the wire works, no row waits. False revisions cost a lying agent its rows.
        """
        for number, node in enumerate(self._world.nodes):
            if number not in self._world.troubles.liars:
                for agent in node.sessions:
                    for watched in agent.watched.values():
                        self._check_rows_of(watched, agent, node)

    def _check_rows_of(self, watched: Watched, agent: SimAgent, node: Node) -> None:
        if (queue := agent.outbox._queues.get(watched.number)) is None:
            return
        info = watched.process.info
        rows = self._rows[agent.session, info.pid]
        ranges = [(b.first_revision, b.first_revision + len(b) - 1) for b in queue.batches]
        waiting = sum(max(last - max(first - 1, rows.last), 0) for first, last in ranges)
        dropped = agent.outbox.dropped.get(watched.number, 0)
        lost = watched.recorded - rows.applied - waiting
        of = f"rank {info.rank} of {node.name}"
        if queue.acked > rows.last:
            raise Violation(
                "acknowledged", f"{of}: {queue.acked} acknowledged, {rows.last} applied"
            )
        if not 0 <= lost <= dropped:
            raise Violation("rows lost", f"{of}: {lost} rows lost, {dropped} counted")
        if agent is node.agent and waiting:
            raise Violation("rows wait", f"{of}: {waiting} rows still wait")

    # -- liveness ------------------------------------------------------------------------------

    def check_found(self) -> None:
        """Every fault of the present job that is not healed and can be known is named rightly.

        Nothing can be known of a rank whose agent has lied, nor of the ranks that wait with it. A
        collective that all members have joined and none completes may be due to another fault.
        """
        run = self._world.runs[-1]
        still = [injected for injected in run.job.injected if injected.healed is None]
        for injected in run.job.injected:
            kind = injected.fault.kind
            if kind not in _EXPECTED or self._is_found(injected, run):
                continue
            if kind in HIDDEN and not self._world.scenario.strict:
                continue
            is_alone = injected.fault.kind is not FaultKind.NETWORK or len(still) <= 1
            is_hidden = bool(self._world.troubles.liars) or not is_alone
            if not is_hidden and self._evidence.is_enough(injected, run):
                summaries = [f.summary for f in self.findings.values()]
                raise Violation(f"not found, {kind}", f"{injected}: findings: {summaries}")

    def known_by(self) -> int:
        """True time when there is evidence of every fault of the present job."""
        job = self._world.runs[-1].job
        felt = [injected for injected in job.injected if job.is_felt(injected)]
        return max(map(self._evidence.known_by, felt), default=0)

    def _is_found(self, injected: Injected, run: Run) -> bool:
        reason, kinds = _EXPECTED[injected.fault.kind]
        plan = run.job.plan
        # A rank that waits in a send that no recorder shows looks like a rank that never joined.
        may_name = injected.may_name | injected.hidden
        is_hidden = plan.hides_p2p or injected.fault.kind in UNRECORDED
        hidden = may_name if is_hidden else frozenset()
        named = {(rank, reason) for rank in injected.culprits | hidden}
        if injected.fault.kind is not FaultKind.NEW_GROUP_CIRCLE or plan.hides_p2p:
            named |= {(rank, Reason.CPU_STUCK) for rank in hidden}
        if injected.fault.kind is FaultKind.RECV_CIRCLE:  # its waits are proven later, or never
            named |= {(rank, Reason.CPU_STUCK) for rank in injected.culprits}
        if plan.hooks and plan.pipeline > 1 and injected.fault.kind is FaultKind.GIL_HELD:
            # Its ring needs the GIL, and its counters do not distinguish sends from collectives.
            named |= {(rank, Reason.UNREACHABLE) for rank in injected.culprits}
        return any(
            not named.isdisjoint(_labels(finding))
            or (finding.reason is reason and not injected.culprits)
            for finding in self.findings.values()
            if finding.kind in kinds and finding.attempt == run.key.attempt
        )

    def check_closed(self) -> None:
        """Every finding is closed, with two exceptions.

        A rank that is last in a group across pipeline stages, step after step, because its stage
        finishes last, looks like a straggler to an observer that cannot see the sends: a straggler
        of less than high confidence may stay open. An agent that lied does not take back that a
        rank waits, or that one of its ranks exited: such a finding stays open until the attempt
        ends.
        """
        has_stages = self._world.scenario.plan.pipeline > 1
        has_liars = bool(self._world.troubles.liars)
        still_open = [
            finding
            for finding in self.findings.values()
            if finding.state is FindingState.OPEN
            and not (has_stages and finding.kind is Kind.STRAGGLER and not _is_certain(finding))
            and not (has_liars and finding.kind is Kind.STALL)
            and not self._is_invented_exit(finding)
        ]
        if still_open:
            raise Violation("still open", f"{[(f.kind, f.summary) for f in still_open]}")

    def _is_invented_exit(self, finding: Finding) -> bool:
        """True if only ranks of lying agents are said to be lost."""
        run = self._run_of(finding)
        if run is None or finding.kind is not Kind.RANK_LOST:
            return False
        node_of = {rank.rank: rank.node for rank in run.job.ranks}
        return {node_of[s.rank] for s in finding.suspects} <= set(self._world.troubles.liars)

    def check_end(self, end: End) -> None:
        """An end that was asked for is no incident; a rank that failed is named."""
        found = [
            finding
            for finding in self.findings.values()
            if finding.kind in _OF_INCIDENTS
            and finding.attempt == end.attempt
            and finding.id not in end.known
        ]
        summaries = [finding.summary for finding in found]
        if end.kind in ASKED and found:
            raise Violation(f"found, {end.kind}", f"{summaries}")
        named = {suspect.rank for finding in found for suspect in finding.suspects}
        run = self._world.runs[end.attempt]
        left = (rank for rank in run.job.ranks if rank.alive)
        plan = run.job.plan
        hidden = plan.hooks == "issue" or (plan.hides_p2p and not collectives_waited_in(left))
        if end.kind is EndKind.RETURNS and (found or hidden):
            return  # its peers may not have joined what it left out, or no recorder shows it
        if end.culprit is not None and end.culprit not in named:
            raise Violation(f"not found, {end.kind}", f"rank {end.culprit}: findings: {summaries}")

    def check_replay(self, folder: Path) -> None:
        """The journal gives the same findings again; a torn one may lack the last of a life."""
        if self._world.troubles.crashed or self._world.scenario.seed % _REPLAYED:
            return
        problems: list[str] = []
        replayed = replay(read(folder / "journal", problems.append), problems.append)
        if problems:
            raise Violation("journal", f"{problems}")
        live = {f.id: _gist(f) for f in self.findings.values()}
        again = {f.id: _gist(f) for f in replayed.findings}
        if live != again:
            raise Violation("replay", f"{live} -> {again}")


def _is_late_evidence(known: Finding, finding: Finding) -> bool:
    """A stack, a dump or what NCCL says came when the finding was closed."""
    return known.state is finding.state is FindingState.CLOSED


def _check_cause(known: Finding, finding: Finding, may_wait: Collection[int]) -> None:
    """The named ranks and reasons appear, grow in number, or gain confidence; certain ones stay.
    Ranks that did not answer may give way to one that is proven as well, when they answer again.
    Ranks that `may_wait` in what only stacks show may turn out to do so. No cause is later than the
    finding."""
    was, now = ({one for one in _labels(f) if one[0] not in may_wait} for f in (known, finding))
    answers = bool(now) and {reason for _, reason in was} == {Reason.UNREACHABLE}
    is_surer = _surest(finding) >= _surest(known) if answers else _surest(finding) > _surest(known)
    if not (was <= now or (is_surer and not _labels(known, sure=True))):
        raise Violation("cause taken back", f"{known.summary} -> {finding.summary}")
    late = [s for s in finding.suspects if s.onset_at and s.onset_at > finding.opened_at]
    if late:
        raise Violation("cause after its finding", f"{finding.summary}")


def _labels(finding: Finding, *, sure: bool = False) -> set[tuple[int, Reason]]:
    return {
        (s.rank, s.reason) for s in finding.suspects if not sure or s.confidence is Confidence.HIGH
    }


def _surest(finding: Finding) -> int:
    order = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
    return max((order.index(s.confidence) for s in finding.suspects), default=-1)


def _about(finding: Finding) -> tuple[object, ...]:
    """Its suspects. Without suspects, the stuck collective or the ranks of which nothing is known:
    one fault may stop many groups that have nothing to do with each other, or all clocks."""
    if finding.suspects:
        return tuple(suspect.rank for suspect in finding.suspects)
    ref = finding.collective
    return finding.unknown if ref is None else (ref.group_id, ref.seq, ref.op)


def _is_certain(finding: Finding) -> bool:
    return any(suspect.confidence is Confidence.HIGH for suspect in finding.suspects)


def _gist(finding: Finding) -> tuple[object, ...]:
    suspects = [
        (s.rank, s.reason, s.confidence, s.stack, s.waits_for and s.waits_for.says)
        for s in finding.suspects
    ]
    return finding.kind, finding.state, finding.opened_at, finding.closed_at, suspects
