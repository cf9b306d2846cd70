"""Lives of a service with two tenants: job b hangs, and the owner of a token of job a attacks.

Streams, admission, tokens, limits, engine and evaluator are the production's; calls are simulated,
and time is virtual. Each life draws some attackers, each with one or more kinds of attack.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, cast

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.views import StatusView
from frd.model import (
    AttemptKey,
    Finding,
    FindingEvent,
    GroupInfo,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
    ServiceRawNs,
    Signature,
)
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.access.grants import Tokens
from frd.service.cells.replica import NoLog
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.evidence.inquiries import Inquiries
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import Keeper
from frd.service.ingest.collector import ACK_EVERY_S, Home, Ingest
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.service.state import ServiceState
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AgentEvent,
    AttemptDecl,
    Declare,
    Goodbye,
    GroupDecl,
    Hello,
    Leaving,
    MemoryEvents,
    RankDecl,
    SeriesDecl,
    SignatureDecl,
    Statuses,
)
from tests.sim.cluster.calls import Call
from tests.sim.liar import _LIES
from tests.world.clocks import S
from tests.world.messages import watermarks
from tests.world.virtual_time import run_virtual

A, B = "a-token-of-job-a-only", "b-token-of-job-b-only"
POLICY: Final = Policy(stall_after_s=5.0, max_objects=60_000, max_findings_per_job=20)
WITHIN_S: Final = 2.0
"""After the threshold."""
_START: Final = 1_790_000_000 * S
_STEP_S: Final = 0.5
_RANKS, _NODES, _SUSPECT = 4, 2, 3


@dataclass(frozen=True, slots=True)
class Life:
    found_s: float
    """From the beginning of the hang to its finding."""
    suspects: Sequence[int]
    findings: Counter[str]
    """By job."""
    messages: int
    """Of the attackers."""
    refused: Counter[str]


class _Call(Call):
    """A call with a token."""

    def __init__(self, token: str, peer: str) -> None:
        super().__init__(asyncio.get_running_loop(), "", f"ipv4:{peer}:1")
        self._token = token

    def invocation_metadata(self) -> object:
        return (("authorization", f"Bearer {self._token}"),)


class _Keeper(Keeper):
    """Keeps nothing."""

    name = "nothing"
    failures = 0

    async def save(self, events: object, pauses: object) -> None:
        pass

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Service:
    def __init__(self, folder: Path) -> None:
        tokens = folder / "tokens"
        tokens.write_text(f"{A} role=agent job=a\n{B} role=agent job=b\n")
        tokens.chmod(0o600)
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.opened: dict[str, tuple[float, Finding]] = {}
        """First version of each finding, and when it was published."""
        shared = Shared(Engine(POLICY))
        self.now = RealTime(lambda: _START + self.raw(), self.raw)
        self.clocks = AgentClocks(self.now)
        self.streams = Streams(
            shared, self.clocks, NoLog(),
            now=self.now, version="test", instance="one", ids=itertools.count(1),
        )  # fmt: skip
        self.evaluator = Evaluator(
            shared, _Keeper(), NoLog(),
            now=self.now, project=self._project, publish=self._publish,
            settle=self.streams.settle,
        )  # fmt: skip
        self.home = Home(self.streams, Inquiries(self.streams))
        admission = Admission(Tokens(tokens), 100, objects_per_peer=200_000)
        self.ingest = Ingest(self, admission, stream_bytes_per_s=1 << 24)

    async def find(self, job: str | None) -> Home:
        return self.home

    def passed_s(self) -> float:
        return self._loop.time() - self._began

    def raw(self) -> ServiceRawNs:
        return ServiceRawNs(100 * S + round(self.passed_s() * S))

    async def run(self) -> None:
        for number in itertools.count():
            await self.evaluator.evaluate()
            if number % 2:
                self.clocks.refresh()
                self.streams.compare_clocks()
            await asyncio.sleep(ACK_EVERY_S)
            self.streams.flush_acks()

    def _project(self, status_view: StatusView) -> ServiceState:
        self.streams.keep(frozenset(view.key for view in status_view.attempts))
        now = status_view.at
        return ServiceState(status_view, refused_ranks=self.streams.refused_ranks(now))

    def _publish(self, events: Sequence[FindingEvent]) -> None:
        for event in events:
            self.opened.setdefault(event.finding.id, (self.passed_s(), event.finding))


class _Agent:
    """One stream of some node."""

    def __init__(
        self, service: _Service, token: str, peer: str, node: str, session: str, ahead_ns: int = 0
    ) -> None:
        self._service, self._ahead_ns = service, ahead_ns
        self.call = _Call(token, peer)
        handler = service.ingest.handle(cast(AsyncIterator[bytes], None), cast(Context, self.call))
        self.serving = asyncio.create_task(handler)
        self.sent = 0
        self.send(
            Hello(PROTOCOL, "test", node, f"boot-{node}", session, NodeNs(self.raw()), self.raw())
        )

    def raw(self, ago_s: float = 0.0) -> NodeRawNs:
        return NodeRawNs(max(self._service.raw() + self._ahead_ns - round(ago_s * S), 1))

    def send(self, *events: AgentEvent | bytes) -> None:
        for event in events:
            self.sent += 1
            self.call.arrive(event if isinstance(event, bytes) else encode_agent(event))

    def live(self, ranks: int) -> None:
        each = (RankStatus(n, RankState.LIVE, self.raw()) for n in range(ranks))
        self.send(Statuses(tuple(each)))


# -- job b -----------------------------------------------------------------------------------------


async def _work(service: _Service, node: int, hangs_s: float) -> None:
    """Two ranks of job b: a collective each half second, until rank 3 stays away from one."""
    agent = _Agent(service, B, f"10.0.1.{node}", f"b{node}", f"session-b{node}")
    ranks = [rank for rank in range(_RANKS) if rank % _NODES == node]
    infos = [RankInfo(r, _RANKS, f"b{node}", f"boot-b{node}", 100 + r) for r in ranks]
    agent.send(
        Declare(
            attempts=(AttemptDecl(0, AttemptKey("b", 0), _RANKS, "run"),),
            ranks=tuple(RankDecl(i, 0, info) for i, info in enumerate(infos)),
            groups=(GroupDecl(0, 0, GroupInfo("0", "default_pg", tuple(range(_RANKS)))),),
            signatures=(SignatureDecl(0, Signature("nccl", "all_reduce", ((4,),), ((4,),))),),
        )
    )
    agent.live(len(ranks))
    seq, since = 0, NodeRawNs(0)
    while True:
        passed_s = service.passed_s()
        if passed_s < hangs_s:
            seq = int(passed_s / _STEP_S)
        stuck = [rank != _SUSPECT and passed_s >= hangs_s for rank in ranks]
        since = (since or agent.raw()) if any(stuck) else NodeRawNs(0)
        now = agent.raw()
        agent.send(
            watermarks(
                range(len(ranks)), enqueued=[seq + waits for waits in stuck], completed=seq,
                head=[since if waits else 0 for waits in stuck],
                seen=range(len(ranks)), as_of=now, sent=now, raw=now,
            )
        )  # fmt: skip
        await asyncio.sleep(_STEP_S)


# -- attacks ---------------------------------------------------------------------------------------


@dataclass
class _Attacker:
    service: _Service
    dice: random.Random
    number: int
    agents: list[_Agent] = field(default_factory=list)

    def agent(self, **others: int) -> _Agent:
        node = self.dice.choice((f"a{self.number}", "b0", "b1"))
        session = f"session-a{self.number}-{len(self.agents)}"
        peer = f"10.0.2.{self.dice.randrange(3)}"
        self.agents.append(_Agent(self.service, A, peer, node, session, **others))
        return self.agents[-1]

    def ranks(self, count: int) -> tuple[RankDecl, ...]:
        """Some with node, boot id and pid of a rank of job b."""
        node = self.dice.choice((f"a{self.number}", "b0", "b1"))
        return tuple(
            RankDecl(n, 0, RankInfo(n, 0, node, f"boot-{node}", 100 + n)) for n in range(count)
        )

    def job(self) -> str:
        return self.dice.choice("aaab")


_Attack: TypeAlias = Callable[[_Attacker], AsyncIterator[None]]
"""Goes on for as long as it is asked; each time it does a little."""


async def _findings(of: _Attacker) -> AsyncIterator[None]:
    """Hangs in many small groups, each an incident."""
    agent, count = of.agent(), of.dice.randrange(25, 60)
    groups = (GroupInfo(f"g{n}", f"g{n}", (2 * n, 2 * n + 1)) for n in range(count))
    agent.send(
        Declare(
            attempts=(AttemptDecl(0, AttemptKey("a", 10_000), 0),),  # superseded by no other
            ranks=of.ranks(2 * count),
            groups=tuple(GroupDecl(n, 0, info) for n, info in enumerate(groups)),
        )
    )
    agent.live(2 * count)
    moves = of.dice.choice((1, 50, 1 << 40))
    since = agent.raw(of.dice.uniform(0, 60))
    for number in itertools.count():
        now = agent.raw()
        if number % moves == 0:
            since = max(since, agent.raw(of.dice.uniform(0, 60)))
        agent.send(
            watermarks(
                range(0, 2 * count, 2), group=range(count), enqueued=number // moves, completed=-1,
                head=since, seen=range(2 * count), as_of=now, sent=now, raw=now,
            )
        )  # fmt: skip
        yield


async def _attempts(of: _Attacker) -> AsyncIterator[None]:
    """Attempts of the job without end, each with ranks, groups and a launch."""
    agent, numbers = of.agent(), of.dice.sample(range(4_000), 4_000)
    for first in range(0, 4_000, 8):
        each = range(first, first + 8)
        keys = (AttemptKey("a", numbers[n]) for n in each)
        run = of.dice.choice(("", f"run-{first}"))
        agent.send(
            Declare(
                attempts=tuple(AttemptDecl(n, key, 0, run) for n, key in zip(each, keys)),  # noqa: B905
                ranks=tuple(
                    RankDecl(n, n, RankInfo(0, 0, "n", f"boot-{of.number}", n)) for n in each
                ),
                groups=tuple(GroupDecl(n, n, GroupInfo("0", "", tuple(range(40)))) for n in each),
            )
        )
        yield


async def _large(of: _Attacker) -> AsyncIterator[None]:
    """Groups, signatures and series until it is refused, then on a new stream."""
    while True:
        agent = of.agent()
        key = AttemptKey(of.job(), of.dice.randrange(10))
        agent.send(Declare(attempts=(AttemptDecl(0, key, 0),), ranks=of.ranks(8)))
        for n in range(of.dice.randrange(1, 30)):
            group = GroupInfo(
                f"{of.number}.{n}", "large", tuple(range(of.dice.randrange(1, 5_000)))
            )
            signature = Signature("nccl", f"op{n}", ((1, 2, n),) * 1_000)
            series = SeriesInfo(0, SeriesKind.DEVICE_USED, f"GPU{n}")
            agent.send(
                Declare(
                    groups=(GroupDecl(n, 0, group),),
                    signatures=(SignatureDecl(n, signature),),
                    series=(SeriesDecl(n, series),),
                )
            )
            yield


async def _garbage(of: _Attacker) -> AsyncIterator[None]:
    """Bytes, and the false messages of `tests.sim.liar`, on ranks that exist or not."""
    while True:
        agent = of.agent(ahead_ns=of.dice.randrange(-50 * S, 10**6 * S))
        key = AttemptKey(of.job(), 0)
        agent.send(Declare(attempts=(AttemptDecl(0, key, 0),), ranks=of.ranks(2)))
        for _ in range(of.dice.randrange(1, 8)):
            agent.send(of.dice.choice(_LIES)(of.dice, agent.raw()))
        yield


async def _exits(of: _Attacker) -> AsyncIterator[None]:
    """Ranks that die, run out of memory, and whose agent leaves, again and again."""
    while True:
        agent = of.agent()
        key = AttemptKey("a", of.dice.randrange(4))
        agent.send(Declare(attempts=(AttemptDecl(0, key, 4),), ranks=of.ranks(4)))
        agent.live(4)
        yield
        state = of.dice.choice((RankState.EXITED, RankState.FINISHED, RankState.SILENT))
        event = MemoryEvent(1, MemoryEventKind.OOM, agent.raw(), requested_bytes=1 << 40)
        agent.send(Statuses((RankStatus(0, state, agent.raw()),)), MemoryEvents((event,)))
        last = Statuses((), leaving=Leaving(4)), Goodbye("over")
        agent.send(of.dice.choice(last))
        yield


async def _calls(of: _Attacker) -> AsyncIterator[None]:
    """Streams without a rank, up to the limit of the host and beyond."""
    while True:
        for _ in range(20):
            of.agent()
        yield


_ATTACKS: Final[tuple[_Attack, ...]] = (_findings, _attempts, _large, _garbage, _exits, _calls)


async def _attack(of: _Attacker, kinds: Sequence[_Attack], every_s: float) -> None:
    running = [kind(of) for kind in kinds]
    while True:
        for one in running:
            await anext(one, None)
        await asyncio.sleep(every_s)


# -- a life ----------------------------------------------------------------------------------------


def live(seed: int, folder: Path, attacks: Sequence[_Attack] = _ATTACKS) -> Life:
    """
    Raises:
        AssertionError: the hang of job b was not found in time, or ranks of job b are accused that
            do nothing wrong.
    """
    return run_virtual(_live(random.Random(f"{seed}/hostile"), folder, attacks))


async def _live(dice: random.Random, folder: Path, attacks: Sequence[_Attack]) -> Life:
    service = _Service(folder)
    hangs_s = dice.uniform(3, 12)
    attackers = [_Attacker(service, dice, number) for number in range(dice.randrange(1, 5))]
    tasks = [asyncio.create_task(service.run())]
    tasks += [asyncio.create_task(_work(service, node, hangs_s)) for node in range(_NODES)]
    for attacker in attackers:
        kinds = dice.sample(attacks, dice.randrange(1, min(len(attacks), 3) + 1))
        tasks.append(asyncio.create_task(_attack(attacker, kinds, dice.uniform(0.05, 1.0))))
    try:
        # The last collective that all joined began up to a step before.
        await asyncio.sleep(hangs_s + _STEP_S + POLICY.stall_after_s + WITHIN_S)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        calls = [agent.serving for attacker in attackers for agent in attacker.agents]
        for task in (*tasks, *calls):
            task.cancel()
        await asyncio.gather(*tasks, *calls, return_exceptions=True)
    of_b = [one for one in service.opened.values() if one[1].job == "b"]
    assert of_b, "the hang of job b was not found"
    (at_s, finding), *others = of_b
    assert not others, [one.summary for _, one in of_b]
    return Life(
        found_s=at_s - hangs_s,
        suspects=[suspect.rank for suspect in finding.suspects],
        findings=Counter(one.job for _, one in service.opened.values()),
        messages=sum(agent.sent for attacker in attackers for agent in attacker.agents),
        refused=service.ingest.refused,
    )


def lives(seeds: range, folder: Path) -> Iterator[tuple[int, Life]]:
    for seed in seeds:
        yield seed, live(seed, folder)
