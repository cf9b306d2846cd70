"""What the tap of a rank shows of its main thread while counters rest: the production's reading of
it, in simulated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from frd.model import INITIALIZATION, NodeNs, Stage
from frd_agent.ranks.forming import forming_rank
from frd_agent.ranks.forming.forming_rank import StageReport
from frd_agent.ranks.tap_files import ExitFrame
from tests.sim.ops import S
from tests.sim.places import Place, Sys, place_of
from tests.sim.stacks import by_faulthandler
from tests.stacks import call_of

if TYPE_CHECKING:
    from frd.flight.entry import Status
    from tests.sim.agent import SimAgent
    from tests.sim.watched import Process

_REFRESH: Final = 2 * S


class Looks:
    """Of one process, by one agent."""

    def __init__(self, process: Process, agent: SimAgent) -> None:
        self._process = process
        self._agent = agent
        self._counters: Mapping[tuple[int, int], Status] = {}
        self._looks: forming_rank.Looks | None = None
        self._init = "", NodeNs(0)
        """The call of an initialization that the tap saw, and since when."""
        self._refreshed_at = 0
        self.stage: Stage | None = None

    def published(self, counters: Mapping[tuple[int, int], Status]) -> None:
        """The tap has read the counters."""
        agent, is_still = self._agent, counters == self._counters
        self._counters = counters
        if not is_still or not agent.around.hidden:
            self.stage = self._looks = None
            return
        self._looks = self._looks or forming_rank.Looks(agent.time.until)
        place = place_of(self._process.rank)
        is_native = place.sys in (Sys.PEER, Sys.NATIVE)
        self._looks.take(self._report(place), lambda: is_native)
        is_due = agent.kernel.now - self._refreshed_at >= _REFRESH
        if is_due or forming_rank.is_news(self.stage, self._looks.stage):
            self._refreshed_at, self.stage = agent.kernel.now, self._looks.stage

    def _report(self, place: Place) -> StageReport:
        call, now_ns = call_of(by_faulthandler(place)), self._agent.wall_ns()
        op = call.op if call is not None and call.op in INITIALIZATION else ""
        if op != self._init[0]:
            self._init = op, now_ns
        since_ns = min(self._init[1], now_ns) if op else now_ns
        return StageReport(
            schema=1, token="", pid=self._process.info.pid, start_ticks=0, op=op,
            since_ns=since_ns, as_of_ns=now_ns, frames=tuple(map(ExitFrame._make, place.frames)),
            ran_ns=self._process.rank.thread.ran_ns(self._agent.kernel.now),
        )  # fmt: skip
