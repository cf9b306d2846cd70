"""One watched rank: what the agent's `Rank` does around its pure parts, in simulated time.

At each turn of the agent, counters are published, rings are requested and read (as bytes, by the
production's `Recorders`), and the rank's progress is put into the current state.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from frd.errors import ServiceUnavailable
from frd.flight.entry import Status
from frd.forms import exit_text
from frd.model import (
    AttemptKey,
    EntryColumns,
    ExitInfo,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
)
from frd_agent.memory.target import Reading
from frd_agent.node_time import ClockReading
from frd_agent.ranks.exits import ended_at, exit_info, state_after
from frd_agent.ranks.poll_schedule import PollPolicy, PollSchedule
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rank_progress import live_progress, raw_counters
from frd_agent.recorder.recorders import Heartbeat, Recorders
from frd_agent.recorder.rows import Row, columns
from frd_agent.recorder.worker_server import Busy, First, Handlers, Refused, Silent
from tests.sim.looks import Looks
from tests.sim.ranks import SimRank
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.agent import SimAgent

_PUBLISH: Final = S
_DUMP_S: Final = 3.0
_STOPPED_S: Final = 1.5
_FILES_STAY: Final = 60 * S


@dataclass(slots=True)
class Process:
    """A rank's process and the files of its tap, which outlive agents."""

    key: AttemptKey
    rank: SimRank
    info: RankInfo
    died_at: int | None = None
    has_files: bool = True
    """The files go some time after its end, once the end has been reported."""

    def forget_files(self, now: int) -> None:
        if self.died_at is not None and now > self.died_at + _FILES_STAY:
            self.has_files = False


class _Socket:
    """The worker server of a rank: answers, unless the rank is stopped or gone."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    def connected(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def taken_at(self, asked_at: ClockReading) -> ClockReading:
        return asked_at

    async def names(self) -> tuple[str, ...]:
        self._check()
        return self._rank.handlers

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        self._check()
        if first is not None:
            first.answered = not self._rank.gil_held
            if first.required and not first.answered:
                raise Busy("its interpreter does not answer")
        return self._rank.dump(name, **params)

    def _check(self) -> None:
        if not self._rank.alive:
            raise Refused("gone")
        if self._rank.stopped:
            raise Silent("stopped")


class Watched:
    """One watched rank, like `frd_agent.ranks.rank.Rank`."""

    def __init__(self, process: Process, agent: SimAgent) -> None:
        self.process = process
        self._agent = agent
        dictionary = agent.dictionary
        self._attempt = dictionary.attempt(process.key, process.info.world_size)
        self.number = dictionary.rank(self._attempt, process.info)
        self._naming = Naming(dictionary, self._attempt)
        self._recorders = Recorders(cast(Handlers, _Socket(process.rank)), agent.time)
        self._recorders.hooked = process.rank.hooked
        self._recorders.begin_attempt(self._naming)
        self._watch = PollSchedule(PollPolicy())
        self._groups: tuple[TapGroup, ...] = ()
        self._raw: dict[tuple[int, int], Status] | None = None
        self._published_at_ns = NodeRawNs(0)
        self._published_mono_ns: int = agent.raw_ns()
        self._published: tuple[dict[tuple[int, int], Status], NodeNs, NodeRawNs] | None = None
        self._publish_at = agent.kernel.now
        self._shown = (0, 0, 0)
        self._is_exact = False
        self._state, self._since_ns = RankState.LIVE, agent.raw_ns()
        self._saw_it_alive = process.rank.alive
        """If so, the agent learns of the end immediately and from the kernel, as by a pidfd."""
        self._silent = False
        self._looks = Looks(process, agent)
        self._errors = 0
        self.is_over = False
        self.recorded = 0
        """Rows given to the outbox."""
        self.lost = 0
        """Entries that were overwritten before they were read."""
        series = (SeriesKind.DEVICE_USED, SeriesKind.TORCH_RESERVED, SeriesKind.TORCH_ALLOCATED)
        device = process.info.devices[0]
        self._series = [SeriesInfo(self.number, kind, device) for kind in series]
        self._learn_groups()

    # -- a turn --------------------------------------------------------------------------------

    def turn(self) -> None:
        rank = self.process.rank
        if not rank.alive:
            if not self.is_over:
                self._end()
            return
        self._learn_groups()
        self._read_counters()
        self._publish()
        now_s = self._agent.raw_ns() / 1e9
        self._stand(now_s)
        self._judge()
        if self._watch.due(now_s, now_s) is not None:
            self._watch.asked(now_s)
            self._ask()
            self._stand(now_s)

    def _publish(self) -> None:
        """What the tap's thread does in the rank, about once a second."""
        rank, now = self.process.rank, self._agent.kernel.now
        if now >= self._publish_at and not (rank.stopped or rank.gil_held):
            self._publish_at = now + _PUBLISH
            agent = self._agent
            self._published = rank.counters(), agent.wall_ns(), agent.raw_ns()
            self._looks.published(self._published[0])

    def _read_counters(self) -> None:
        if self._published is not None:
            self._raw, wall_ns, self._published_mono_ns = self._published
            self._published_at_ns = self._agent.time.one_to_raw(wall_ns)
            self._published = None

    def _stand(self, now_s: float) -> None:
        exact = self._show()
        age_s = max(self._agent.raw_ns() - self._published_mono_ns, 0) / 1e9
        self._watch.needs_gil = self._recorders.needs_gil
        self._watch.see(self._raw, age_s, exact=exact, now=now_s)

    def _show(self) -> bool:
        shown = (self._recorders.revision, self._published_mono_ns, self._published_at_ns)
        if shown != self._shown:
            progress = live_progress(self._recorders.trackers, self._raw, self._published_at_ns)
            self._agent.current.set_progress(self.number, progress)
            self._shown, self._is_exact = shown, progress.exact
        return self._is_exact

    def _judge(self) -> None:
        since = self._published_at_ns or self._agent.raw_ns()
        if self.process.rank.stopped and self._watch.age_s > _STOPPED_S:
            self._report(RankState.SILENT, since, "process is stopped (state T)")
        elif self._watch.is_stale and self._silent:
            self._report(RankState.SILENT, since, "its socket does not answer")
        else:
            note = "its tap's heartbeat is old: the GIL may be held" if self._watch.is_stale else ""
            self._report(RankState.LIVE, self._agent.raw_ns(), note)

    def _report(
        self, state: RankState, since_ns: NodeRawNs, detail: str, how: ExitInfo | None = None
    ) -> None:
        if state is not self._state:
            self._state, self._since_ns = state, since_ns
        gap = self.lost + self._agent.outbox.dropped.get(self.number, 0)
        now_ns = self._agent.raw_ns()
        stage = self._looks.stage if state is RankState.LIVE else None
        self._agent.current.set_status(
            RankStatus(self.number, self._state, self._since_ns, detail, gap, how, now_ns, stage)
        )

    def _record(self, rows: list[Row]) -> None:
        self._agent.outbox.record(columns(self.number, 0, rows))
        self.recorded += len(rows)

    def _ask(self) -> None:
        beat = Heartbeat(self._published_at_ns, is_stale=self._watch.is_stale)
        now_s = self._agent.raw_ns() / 1e9
        may_hold = self._watch.hold_in_s(now_s, now_s) is not None
        asked = self._recorders.read(_DUMP_S, beat, self._record, may_hold=may_hold)
        try:
            reading = _finish(asked)
        except ServiceUnavailable as error:
            self._silent = isinstance(error, Silent)
            return
        self._silent = False
        if reading.problems:
            raise AssertionError(f"a dump that cannot be read: {reading.problems}")
        self.lost += reading.lost
        raw = raw_counters(self._recorders.trackers)
        self._watch.dumped(raw, reading.entries, held_at=now_s if reading.held else None)
        if reading.unread:
            self._watch.retry()
        self._agent.current.set_channels(self._recorders.channels(self.number))

    def _end(self) -> None:
        self.is_over = True
        self._show()
        rank = self.process.rank
        how = exit_info(rank.exit, rank.wait_status if self._saw_it_alive else None)
        agent = self._agent
        seen_at_ns = agent.raw_at(rank.ended_at) if self._saw_it_alive else agent.raw_ns()
        recorded_at_ns = agent.time.one_to_raw(rank.exit.at_ns) if rank.exit else None
        at_ns = ended_at(how, recorded_at_ns, seen_at_ns)
        self._report(state_after(how), at_ns, exit_text(how), how)

    def _learn_groups(self) -> None:
        if self.process.rank.groups == self._groups:
            return
        self._groups = self.process.rank.groups
        self._naming.replace(self._groups)
        for group in self._naming.all_groups():
            self._agent.current.expect(self.number, group)
        present = {group.name for group in self._groups}
        self._recorders.close(lambda name: name not in present)

    # -- memory and clocks ---------------------------------------------------------------------

    def sample(self) -> list[Reading]:
        """What NVML and the tap's mmap show; and torch's own word on what failed."""
        memory = self.process.rank.memory()
        time = self._agent.time
        for error in memory.errors[self._errors :]:
            self._agent.samples.event(
                MemoryEvent(
                    self.number, MemoryEventKind.OOM, time.one_to_raw(NodeNs(error.at_ns)),
                    self.process.info.devices[0], error.requested,
                )
            )  # fmt: skip
        self._errors = len(memory.errors)
        values = (memory.used, memory.reserved, memory.allocated)
        return [
            Reading(self._attempt, series, memory.total, value)
            for series, value in zip(self._series, values, strict=True)
        ]

    def in_flight(self) -> EntryColumns | None:
        rows = self._recorders.in_flight()
        return columns(self.number, 0, rows) if rows else None


def _finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits: the simulated rank answers immediately."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a simulated rank kept its agent waiting")
