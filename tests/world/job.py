"""A scripted job under a real `Engine`, with its own clock.

Ranks join and complete collectives; every half second all ranks that report do so and the engine
advances. Nothing sleeps, nothing is replaced by a mock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frd.engine.engine import Engine
from frd.engine.evidence.questions import Question
from frd.engine.policy import Policy
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    Change,
    ExitInfo,
    Finding,
    FindingEvent,
    FindingState,
    Flags,
    GroupInfo,
    NodeNs,
    RankState,
    RankStatus,
    Signature,
)
from tests.world import observe
from tests.world.observe import rank_info

START = AlignedNs(1_700_000_000_000_000_000)
STEP_S = 0.5


class Job:
    def __init__(
        self,
        world: int = 4,
        policy: Policy | None = None,
        *,
        attempt: int = 0,
        engine: Engine | None = None,
        now: AlignedNs = START,
        name: str = "job",
        first_pid: int = 100,
        backends: Iterable[str] = (),
    ) -> None:
        self.backends = tuple(backends)
        self.now = now
        self.world = world
        self.first_pid = first_pid
        self.key = AttemptKey(name, attempt)
        self.engine = engine or Engine(policy or Policy(stall_after_s=5.0))
        self.events: list[FindingEvent] = []
        self.questions: list[Question] = []
        """What ranks were to be asked; see `tests.world.asked`."""
        self.groups: dict[str, GroupInfo] = {}
        self.marks: dict[tuple[str, int], list[int]] = {}
        """(group, rank) -> enqueued, started, completed, head created."""
        self.statuses: dict[int, RankStatus] = {}
        self.reporting = set(range(world))
        self.session = -1
        """The agent session that reports rows."""
        self._declare(range(world))

    # -- declarations ------------------------------------------------------------------------

    def _declare(self, ranks: Iterable[int]) -> None:
        self.attempt = self.engine.attempt(self.key, self.world, self.now)
        self.handles = {name: self.attempt.group(info) for name, info in self.groups.items()}
        for rank in ranks:
            info = rank_info(rank, self.world, per_node=2, first_pid=self.first_pid)
            info = replace(info, backends=self.backends or info.backends)
            self.engine.rank(self.attempt, info, self.now)
            if rank in self.statuses:
                self._report(self.statuses[rank])
        self.attempt.connection(list(ranks), True)

    def group(self, name: str, ranks: Iterable[int]) -> Job:
        self.groups[name] = GroupInfo(name, name, tuple(ranks))
        self.handles[name] = self.attempt.group(self.groups[name])
        for rank in self.groups[name].ranks:
            self.marks[name, rank] = [UNKNOWN_SEQ, UNKNOWN_SEQ, UNKNOWN_SEQ, 0]
        return self

    # -- what ranks do -----------------------------------------------------------------------

    def join(
        self, name: str, ranks: Iterable[int], seq: int, op: str | Signature = "all_reduce"
    ) -> Job:
        for rank in ranks:
            mark = self.marks[name, rank]
            mark[0] = seq
            mark[3] = mark[3] or self.now
            self._entry(name, rank, seq, Flags.JOINED, op)
        return self

    def complete(
        self, name: str, ranks: Iterable[int], seq: int, op: str | Signature = "all_reduce"
    ) -> Job:
        for rank in ranks:
            mark = self.marks[name, rank]
            mark[2] = seq
            mark[3] = 0 if mark[0] == seq else self.now
            self._entry(name, rank, seq, Flags.COMPLETED, op)
        return self

    def all_reduce(self, name: str, seq: int) -> Job:
        ranks = self.groups[name].ranks
        return self.join(name, ranks, seq).complete(name, ranks, seq)

    def receive(self, rank: int, name: str, peer: int, since: AlignedNs) -> Job:
        """A P2P op, the only one of its rank."""
        row = (self.handles[name], peer, False, 1, since)
        observe.p2p_ops(self.attempt, rank, [row], self.now)
        return self

    def status(
        self,
        rank: int,
        state: RankState,
        detail: str = "",
        gap: int = 0,
        how: ExitInfo | None = None,
        at: int | None = None,
    ) -> Job:
        """A status from the rank's agent, now or as of `at`; a rank that is not live stops
        reporting."""
        if state is not RankState.LIVE:
            self.reporting.discard(rank)
        at_ns = NodeNs(self.now if at is None else at)
        self.statuses[rank] = RankStatus(rank, state, at_ns, detail, gap, how)
        self._report(self.statuses[rank])
        return self

    def _report(self, status: RankStatus) -> None:
        self.attempt.observe_status(status, self.now)

    def _entry(self, name: str, rank: int, seq: int, flags: Flags, op: str | Signature) -> None:
        as_signature = op if isinstance(op, Signature) else Signature("gloo", op, ((4,),), ((4,),))
        observe.entries(
            self.attempt, rank, self.handles[name], seq, flags,
            signature=as_signature, created=self.now, session=self.session, now=self.now,
        )  # fmt: skip

    # -- time --------------------------------------------------------------------------------

    def run(self, seconds: float) -> list[FindingEvent]:
        """Let time pass; returns the events of findings, which `events` collects."""
        news: list[FindingEvent] = []
        for _ in range(round(seconds / STEP_S)):
            self.now = AlignedNs(self.now + round(STEP_S * 1e9))
            self.report()
            news += self.advance()
        return news

    def advance(self) -> list[FindingEvent]:
        """Evaluate, without any passing of time."""
        outcome = self.engine.advance(self.now)
        self.events += outcome.events
        self.questions += outcome.questions
        return outcome.events

    def report(self) -> None:
        rows = [
            (self.attempt.pair(rank, self.handles[name]), *mark)
            for (name, rank), mark in self.marks.items()
            if rank in self.reporting
        ]
        as_of = self.now - 100_000_000
        observe.watermarks(self.attempt, rows, sorted(self.reporting), as_of)

    def restart_service(self) -> None:
        """Another engine with the open findings; no agent has reported to it yet."""
        kept = self.open()
        self.engine = Engine(self.engine.policy)
        self.engine.restore(kept, self.now)
        self.reporting = set()

    def reconnect(self, ranks: Iterable[int]) -> None:
        """Agents of these ranks resync."""
        ranks = list(ranks)
        self._declare(ranks)
        self.reporting |= set(ranks) - {
            rank for rank, status in self.statuses.items() if status.state is not RankState.LIVE
        }

    # -- questions ---------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        return list(self.engine.status_view(self.now).findings)

    def open(self) -> list[Finding]:
        return [f for f in self.findings() if f.state is FindingState.OPEN]

    def only(self) -> Finding:
        (finding,) = self.open()
        return finding


def changes(events: Iterable[FindingEvent]) -> list[Change]:
    return [event.change for event in events]


def hanging(seconds: float = 0, *, policy: Policy | None = None) -> Job:
    """Four ranks; rank 2 never joins seq 1, in which the others have waited for `seconds`."""
    job = Job(4, policy).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).run(seconds)
    return job
