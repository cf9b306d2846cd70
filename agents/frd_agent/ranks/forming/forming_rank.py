"""A process that is going to be a rank, but has no process group yet.

It is reported as a rank of its attempt, with the stage that its tap reports and without any group.
When it has its groups, a `Rank` takes its place: for the service the same process of the same rank.
Nothing is known of its collectives, and it has no socket: its Python stack comes from py-spy, or
from what its tap wrote last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frd.errors import DumpError
from frd.forms import exit_text
from frd.model import NodeRawNs, RankState, RankStatus, Stage
from frd_agent import tap
from frd_agent.addresses.read import Log
from frd_agent.proc import Vital
from frd_agent.ranks.forming.stage_files import StageReport
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import Rank, RankContext
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.outside import StackText, from_outside
from frd_agent.ranks.tap_files import ExitRecord, TapIdentity
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import KeptDump

ENDED: Final = "ended before it had a process group"
_WRITES_S: Final = 5 * tap.STAGE_EVERY_S
_OWN_NS: Final = 20e9
_OWN: Final = "its process groups were made without init_process_group, and frd reads no others"
_FORMS: Final = "has no process group yet"


class FormingRank:
    """`process` is the caller's, who closes it; None if it is in another pid namespace."""

    def __init__(
        self, claim: TapIdentity, process: Process | None, shared: RankContext, owner: int | None
    ) -> None:
        """`owner`: of its file."""
        self.identity = claim
        self.process = RankProcess(claim, None, process, owner)
        self._shared = shared
        attempt = shared.dictionary.forming_attempt(claim.attempt, claim.world_size, claim.run)
        address, stderr = shared.addresses.of(self.process, claim)
        self.key, self.info = claim.attempt, replace(claim.info, address=address)
        self.naming = Naming(shared.dictionary, attempt)
        self.log = Log(self.process, stderr, shared.addresses.configured(claim))
        self.number = shared.dictionary.rank(attempt, self.info)
        self.reports = shared.reports(attempt)
        self.is_gone = False
        self._stage: Stage | None = None
        self._said: StageReport | None = None
        self._own_since_ns: NodeRawNs | None = None
        """Since when it has groups and is not about to make a default group."""
        self._state, self.detail = RankState.LIVE, ""
        self._since_ns = shared.time.until(claim.started_at_ns)

    def __str__(self) -> str:
        return str(self.identity)

    def learn(self, report: StageReport) -> None:
        """The tap has written another report."""
        # In the node's raw time. A time of the future is taken as now, one before the boot as 1.
        since_ns, as_of_ns = map(self._shared.time.until, (report.since_ns, report.as_of_ns))
        self._stage = Stage(report.op, since_ns, max(as_of_ns, since_ns))
        self.reports.current.set_as_of(self.number, NodeRawNs(self._stage.as_of_ns))
        self._said = report

    def poll(self, now_ns: NodeRawNs) -> bool:
        """False if the process is gone."""
        vital = self.process.look(suspicious=False)
        if vital is Vital.GONE:
            return False
        stage_ns = self._stage.as_of_ns if self._stage is not None else now_ns
        if vital is Vital.STOPPED:
            self._report(RankState.SILENT, now_ns, self.process.describe())
        elif self.process.is_hidden and (now_ns - stage_ns) / 1e9 > _WRITES_S:
            why = f"{self.process.describe()}; its tap has stopped writing"
            self._report(RankState.SILENT, now_ns, why)
        else:
            is_inside = self._stage is not None and self._stage.op
            has_own = not is_inside and self._said is not None and self._said.has_groups
            self._own_since_ns = (self._own_since_ns or now_ns) if has_own else None
            is_own = has_own and now_ns - (self._own_since_ns or now_ns) >= _OWN_NS
            detail = "" if is_inside else _OWN if is_own else _FORMS
            self._report(RankState.LIVE, now_ns, detail)
        return True

    def _report(
        self, state: RankState, now_ns: NodeRawNs, detail: str, since_ns: NodeRawNs | None = None
    ) -> None:
        self.detail = detail
        if state is not self._state:
            self._state, self._since_ns = state, since_ns or now_ns
        stage = None if self.is_gone else self._stage
        unread = detail if detail is _OWN else ""
        status = RankStatus(
            *(self.number, self._state, self._since_ns, detail, 0, None, now_ns, stage, unread)
        )
        self.reports.current.set_status(status)

    def exited(self, record: ExitRecord | None, now_ns: NodeRawNs) -> None:
        """The process is gone. How it ended is text: no rank is lost that has never been one."""
        recorded_at_ns = self._shared.time.one_to_raw(record.at_ns) or None if record else None
        how, at_ns = self.process.ended(record, recorded_at_ns, now_ns)
        self.end(now_ns, f"{ENDED}: {exit_text(how)}" if exit_text(how) else ENDED, at_ns)

    def end(self, now_ns: NodeRawNs, why: str, since_ns: NodeRawNs | None = None) -> None:
        """It does not become this rank, from `since_ns` on."""
        self.is_gone = True
        self._report(RankState.FINISHED, now_ns, why, since_ns)
        self.reports.wake()

    def give_way(self, rank: Rank, now_ns: NodeRawNs) -> bool:
        """Its process is `rank` from now on; False if that is another rank than it claimed."""
        if self.identity.seat == rank.identity.seat:
            self.is_gone = True
            self.forget()
            return True
        self.end(now_ns, f"went on as {rank}")
        return False

    def forget(self) -> None:
        self.reports.forget(self.number)

    async def ask(self, timeout_s: float) -> list[KeptDump]:
        """As `Rank.ask`."""
        raise DumpError(f"{self}: it has no process group yet")

    def kept(self) -> list[KeptDump]:
        return []

    async def read_stack(self, handler_timeout_s: float, py_spy_timeout_s: float) -> StackText:
        """As `StackReader.read`; it has no socket."""
        stack = await from_outside(self.process, handler_timeout_s + py_spy_timeout_s)
        if stack.source == "py-spy" or self._said is None or not self._said.frames:
            return stack
        return StackText("tap", f"{_written(self._said)}{stack.text}")


def _written(report: StageReport) -> str:
    """The frames as faulthandler writes them."""
    frames = "".join(
        f'  File "{frame.file}", line {frame.line} in {frame.name}\n' for frame in report.frames
    )
    return f"Thread 0x{report.pid:016x} (most recent call first):\n{frames}\n"
