"""What the tap of a rank shows of its main thread while counters rest, as its agent reports it.

The tap publishes the frames; the agent finds what the thread waits in, and reads from /proc whether
it has run. An agent of an earlier release does neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frd.flight.stacks.waits import call_of, native_line
from frd.model import REST, NodeRawNs, Stage
from tests.sim.ops import S
from tests.sim.places import place_of
from tests.sim.stacks import by_faulthandler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frd.flight.entry import Status
    from tests.sim.agent import SimAgent
    from tests.sim.watched import Process

_RESTS: Final = 3 * S // 2


class Looks:
    """Of one process, by one agent."""

    def __init__(self, process: Process, agent: SimAgent) -> None:
        self._rank = process.rank
        self._agent = agent
        self._counters: Mapping[tuple[int, int], Status] = {}
        self._rested_since = agent.kernel.now
        self._first: tuple[str, str, NodeRawNs, int] | None = None
        """Of the looks that show the same: op, line, when the first was, and the processor time
        until then."""
        self.stage: Stage | None = None

    def published(self, counters: Mapping[tuple[int, int], Status]) -> None:
        """The tap has read the counters."""
        agent, now = self._agent, self._agent.kernel.now
        if counters != self._counters:
            self._counters, self._rested_since = counters, now
            self.stage = self._first = None
            return
        if agent.around.hidden and agent.protocol > 1 and now - self._rested_since >= _RESTS:
            self._look()

    def _look(self) -> None:
        text, now_ns = by_faulthandler(place_of(self._rank)), self._agent.raw_ns()
        call, ran_ns = call_of(text), self._rank.thread.ran_ns(self._agent.kernel.now)
        op, where = (call.op, call.where) if call is not None else ("", native_line(text))
        first = self._first
        if first is None or first[:2] != (op, where) or (not op and first[3] != ran_ns):
            self._first = first = op, where, now_ns, ran_ns
        rests = first[2] < now_ns and ran_ns == first[3]
        self.stage = Stage(op or (REST if rests else ""), first[2], now_ns, where, rests)
