"""A process that is going to be a rank, but has no process group yet; and ranks at rest.

It is reported as a rank of its attempt, with the stage that its tap reports and without any group.
When it has its groups, a `Rank` takes its place: for the service the same process of the same rank.
Nothing is known of its collectives, and it has no socket: its Python stack comes from py-spy, or
from what its tap wrote last.

Taps report a long initialization, and where a rank is at rest, by files; nothing in them is trusted
(`token_files`). A file of a process that is no rank yet has a *claim*: the identity that follows
from the environment of the process. Whether the claim is true is not known here.

A tap publishes frames and processor time of the thread that runs the program, about once a second
while the counters of the rank rest. One look shows a moment; two of them that show the same place
and hardly any processor time in between show one wait (`frd.flight.stacks.waits`), as two stacks do
that are requested, but they cost the rank nothing that it could notice. A rank at rest in native
code may wait for another rank, in work that it has posted. The kernel shows whether that can be:
then its main thread waits for another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from frd.errors import DumpError
from frd.flight.stacks.text import is_of_standard_library, stack_of
from frd.flight.stacks.waits import Call, is_one_wait, place_of
from frd.forms import exit_text
from frd.model import NATIVE, REST, NodeNs, NodeRawNs, RankState, RankStatus, Stage
from frd_agent import tap
from frd_agent.addresses.read import Log
from frd_agent.proc import Vital
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import Rank, RankContext
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import StackText, from_outside
from frd_agent.ranks.tap_files import ExitFrame, ExitRecord, TapIdentity
from frd_agent.ranks.token_files import Published, TokenFile
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import KeptDump

ENDED: Final = "ended before it had a process group"
_WRITES_S: Final = 5 * tap.STAGE_EVERY_S
_OWN_NS: Final = 20e9
_OWN: Final = "its process groups were made without init_process_group, and frd reads no others"
_FORMS: Final = "has no process group yet"
_MAX_TEXT = 200
_Time = Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]


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


class Looks:
    """At one rank, from when its counters came to rest."""

    def __init__(self, to_raw: Callable[[NodeNs], NodeRawNs]) -> None:
        self._to_raw = to_raw
        self._report: StageReport | None = None
        self._frames: tuple[ExitFrame, ...] = ()
        self._place: Call | None = None
        """Of these frames."""
        self._may_be_native = False
        self._last: Call | None = None
        self._at = self._since = NodeRawNs(0)
        self._ran_ns: int | None = None
        """Of the main thread, at the first of the looks that show the same."""
        self.stage: Stage | None = None
        """None: where the program is cannot be known."""

    def take(self, report: StageReport, waits_for_thread: Callable[[], bool]) -> None:
        """The tap may have looked again. `waits_for_thread`: what the kernel shows at present."""
        if report is not self._report:
            self._report = report
            self.stage = self._with(report, waits_for_thread)

    def _with(self, report: StageReport, waits_for_thread: Callable[[], bool]) -> Stage | None:
        place = self._place_of(report)
        at = max(self._to_raw(report.as_of_ns), self._at)
        if report.op:
            where = place.where[:_MAX_TEXT] if place is not None else ""
            self._last, self._at = None, at
            return Stage(report.op, min(self._to_raw(report.since_ns), at), at, where)
        last, self._last = self._last, place
        if place is None:
            return None
        goes_on = last is not None and is_one_wait(last, place, at - self._at)
        if not goes_on:
            self._since, self._ran_ns = at, place.ran_ns
        self._at = at
        rests = goes_on and place.ran_ns is not None and place.ran_ns == self._ran_ns
        op = place.op or (REST if goes_on else "")
        op = NATIVE if op == REST and self._may_be_native and waits_for_thread() else op
        return Stage(op, self._since, at, place.where[:_MAX_TEXT], rests)

    def _place_of(self, report: StageReport) -> Call | None:
        """Of a rank at rest all looks show the same frames, which are read once. No more of them is
        read than a tap writes: any process may write such a file."""
        if report.frames != self._frames:
            frames = [
                (file[-tap.MAX_TEXT :], line, name[: tap.MAX_TEXT])
                for file, line, name in report.frames[: tap.MAX_FRAMES]
            ]
            stack = stack_of(frames, 0)
            self._frames, self._place = report.frames, place_of(stack)
            self._may_be_native = not any(map(is_of_standard_library, stack.main[:1]))
        place = self._place
        if place is None or place.ran_ns is None:
            return place
        return replace(place, ran_ns=report.ran_ns)


def is_news(before: Stage | None, now: Stage | None) -> bool:
    """More than that time has passed, or that a rank at work is in another line."""
    shown, shows = ((one.op, one.op and one.where, one.rests) if one else None
                    for one in (before, now))  # fmt: skip
    return shown != shows and (shown, shows) != (None, ("", "", False))


class StageReport(Published, frozen=True, kw_only=True):
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    start_ticks: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The start of the process as /proc shows it; 0 unknown."""
    pid_namespace: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """Its inode; 0 unknown."""
    op: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-z_]*$")]
    """One of `frd.model.INITIALIZATION`, or empty. What else a rank waits in, its frames show."""
    since_ns: _Time
    as_of_ns: _Time
    frames: Annotated[tuple[ExitFrame, ...], msgspec.Meta(max_length=256)] = ()
    """Of the main thread at `as_of_ns`, innermost first, or of the one that runs the program."""
    ran_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    """How long that thread had run; None unknown, as with taps that report no rank at rest."""
    claim: TapIdentity | None = None
    """None of a process that is a rank."""
    has_groups: bool = False
    """The program has process groups that it made without init_process_group."""
    exit: ExitRecord | None = None
    """Of a program that has ended with a claim."""

    def __post_init__(self) -> None:
        if self.as_of_ns < self.since_ns:
            raise ValueError(f"as_of_ns: {self.as_of_ns}: before since_ns")
        if (claim := self.claim) is not None:
            if (claim.token, claim.pid) != (self.token, self.pid):
                raise ValueError("claim: of another process")
            if claim.groups or claim.socket or claim.shm or claim.exit:
                raise ValueError("claim: of a process that has been a rank")


class StageFile(TokenFile[StageReport]):
    """The stage file of a process."""

    SUFFIX = ".stage"
    MAX_BYTES = 256 * 1024
    DECODER = msgspec.json.Decoder(StageReport)

    @staticmethod
    def on(content: StageReport, node: str) -> StageReport:
        if content.claim is None:
            return content
        claim = msgspec.structs.replace(content.claim, host=node)
        return msgspec.structs.replace(content, claim=claim)
