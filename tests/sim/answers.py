"""Answers of a simulated agent to the service's requests: dumps, stacks, waits, and RAS.

An answer describes the rank when it is read, and goes out some time later. Agents differ: one
answers quickly, another late or seldom, another refuses. All of that has separate dice.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from frd.errors import FrdError
from frd.flight.decode import parse_answer
from frd.flight.write import write_pickle
from frd.model import Holder
from frd.wire.messages import PART_BYTES, Part, Request, ResponsePart
from frd.wire.waits import encode_ras, encode_report
from tests.sim.falsified import Falsified
from tests.sim.inspection import Inspection
from tests.sim.ras import report_of
from tests.sim.recorder import HANDLERS
from tests.sim.stacks import Reading
from tests.world.clocks import MS, S

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent
    from tests.sim.network import Conn
    from tests.sim.ranks import SimRank
    from tests.sim.watched import Process


@dataclass(frozen=True, slots=True)
class Mood:
    """How an agent answers: shares of answers that never come, that come after their time, and that
    are errors; and how long the others take, in seconds."""

    never: float
    late: float
    fails: float
    takes_s: tuple[float, float]


MOODS: Final = {
    "good": Mood(0.01, 0.01, 0.02, (0.02, 0.4)),
    "slow": Mood(0.02, 0.15, 0.02, (0.3, 6.0)),
    "lossy": Mood(0.4, 0.1, 0.1, (0.02, 0.4)),
    "refuses": Mood(0.0, 0.0, 1.0, (0.02, 0.1)),
}
_WEIGHTS: Final = (10, 3, 2, 1)
_METERED: Final = 0.3
"""Share of stacks for which the agent measures processor time for a second."""


class Answers:
    def __init__(self, agent: SimAgent) -> None:
        self._agent = agent
        dice = random.Random(f"answers/{agent.session}")
        self.mood = dice.choices(list(MOODS), _WEIGHTS)[0]
        self._inspection = Inspection(agent, self._holder)
        self._false = Falsified(agent.session) if agent.around.mutates else None

    def receive(self, request: Request) -> None:
        agent = self._agent
        agent.around.asked(request)
        for index in request.rank_indexes:
            number = agent.dispatch.rank_of(index)
            watched = next((w for w in agent.watched.values() if w.number == number), None)
            if watched is None:
                continue
            one = _One(request, watched.number, agent.conn)
            process = watched.process
            if request.waits:
                self._answer_waits(one, process)
            if request.ras:
                self._answer_ras(one, process)
            if request.dump:
                self._answer_dump(one, process)
            if request.stacks:
                self._answer_stack(one, process)

    # -- when, and whether ---------------------------------------------------------------------

    def _dice(self, one: _One, part: Part) -> random.Random:
        """Of one answer: another question less or more changes none of the others."""
        agent = self._agent
        return random.Random(f"{agent.session}/{one.number}/{part}/{agent.kernel.now // S}")

    def _delay(self, one: _One, part: Part) -> int | None:
        """How long the answer takes; None: it never comes, or an error did."""
        mood, dice = MOODS[self.mood], self._dice(one, part)
        fate, delay = dice.random(), round(dice.uniform(*mood.takes_s) * S)
        if fate < mood.never:
            return None
        if fate < mood.never + mood.fails:
            self._after(delay, one, part, error="the agent is busy")
            return None
        if fate < mood.never + mood.fails + mood.late:
            return delay + round(one.request.timeout_s * dice.uniform(1.0, 2.0) * S)
        if part is Part.WAITS:
            delay //= 20
        return delay

    def _after(
        self,
        delay: int,
        one: _One,
        part: Part,
        data: bytes = b"",
        source: str = "",
        error: str = "",
    ) -> None:
        self._agent.kernel.after(delay, lambda: self._send(one, part, data, source, error))

    def _send(self, one: _One, part: Part, data: bytes, source: str, error: str) -> None:
        """On the stream that asked, if it is still open."""
        agent = self._agent
        if agent.is_stopped or agent.conn is None or agent.conn is not one.conn:
            return
        for start in range(0, max(len(data), 1), PART_BYTES):
            piece, last = data[start : start + PART_BYTES], start + PART_BYTES >= len(data)
            whole = one.request.request_id, one.number, part
            self._say(ResponsePart(*whole, piece, last, source, error))

    def _say(self, part: ResponsePart) -> None:
        if self._false is None:
            self._agent.say(part)
            return
        for delay, one in self._false.of(part):
            self._agent.kernel.after(delay, partial(self._agent.say, one))

    # -- parts ---------------------------------------------------------------------------------

    def _answer_stack(self, one: _One, process: Process) -> None:
        if (delay := self._delay(one, Part.STACK)) is None:
            return
        agent, dice, rank = self._agent, self._dice(one, Part.STACK), process.rank
        if dice.random() < _METERED:
            delay += S
        look_after = round(delay * dice.random())
        agent.settle()
        if not rank.alive:
            self._after(MS, one, Part.STACK, error="the process is gone")
            return
        reading = Reading(rank, process.info.pid, agent.kernel.now)

        def look() -> None:
            agent.settle()
            if rank.alive:
                reading.look()

        def end() -> None:
            agent.settle()
            if not rank.alive or not reading.source:
                self._send(one, Part.STACK, b"", "", "the process is gone")
            else:
                text = reading.end(agent.kernel.now).encode()
                if self._false is not None:
                    self._false.remember(process.key.attempt, text)
                self._send(one, Part.STACK, text, reading.source, "")

        agent.kernel.after(look_after, look)
        agent.kernel.after(delay, end)

    def _answer_dump(self, one: _One, process: Process) -> None:
        if (delay := self._delay(one, Part.DUMP)) is None:
            return
        agent = self._agent
        agent.settle()
        rank, error, data, source = process.rank, "", b"", rank_source(process.rank)
        try:
            if not rank.alive or rank.stopped or rank.gil_held:
                raise FrdError("it does not answer")
            dump = parse_answer(rank.dump(source), source=source)
            groups = {group.name: (group.desc, group.ranks) for group in rank.groups}
            data = write_pickle(dump, groups)
        except FrdError as why:
            error = str(why)
        identity = msgspec.json.encode({**asdict(process.info), "warnings": [error]})
        self._after(delay, one, Part.DUMP, data, source, error)
        self._after(delay, one, Part.IDENTITY, identity, source)

    def _answer_waits(self, one: _One, process: Process) -> None:
        if (delay := self._delay(one, Part.WAITS)) is None:
            return
        agent = self._agent
        agent.settle()
        if not process.rank.alive:
            self._after(delay, one, Part.WAITS, error="the process is gone")
            return
        report = self._inspection.ask(process)
        self._after(delay, one, Part.WAITS, encode_report(report), "proc")

    def _answer_ras(self, one: _One, process: Process) -> None:
        if (delay := self._delay(one, Part.RAS)) is None:
            return
        self._agent.settle()
        rank = process.rank
        if not rank.alive or not any(group.backend == "nccl" for group in rank.seats):
            self._after(delay, one, Part.RAS, error="NCCL RAS: nothing listens")
            return
        data = encode_ras(report_of(rank, self._agent.around.processes(process.key)))
        self._after(delay, one, Part.RAS, data, "ras")

    # -- other ranks ---------------------------------------------------------------------------

    def _holder(self, process: Process, rank: SimRank) -> Holder | None:
        """The agent sees only the processes of its node."""
        for other in self._agent.around.processes(process.key):
            if other.rank is rank and rank.node == process.rank.node:
                return Holder(other.info.pid, rank.rank, "python")
        return None


@dataclass(frozen=True, slots=True)
class _One:
    """What was asked of one rank, and on which stream."""

    request: Request
    number: int
    conn: Conn | None


def rank_source(rank: SimRank) -> str:
    """The handler of its recorder: NCCL's, if it has one."""
    return [handler for handler in rank.handlers if handler in HANDLERS.values()][-1]
