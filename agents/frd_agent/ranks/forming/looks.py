"""What the looks of a tap at one rank show together: what it waits in, where, and since when.

A tap publishes frames and processor time of the thread that runs the program, about once a second
while the counters of the rank rest. One look shows a moment; two of them that show the same place
and hardly any processor time in between show one wait (`frd.flight.stacks.waits`), as two stacks do
that are requested, but they cost the rank nothing that it could notice.

A rank at rest in native code may wait for another rank, in work that it has posted. The kernel
shows whether that can be: then its main thread waits for another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frd.flight.stacks.text import is_of_standard_library, stack_of
from frd.flight.stacks.waits import Call, is_one_wait, place_of
from frd.model import NATIVE, REST, NodeNs, NodeRawNs, Stage
from frd_agent import tap
from frd_agent.ranks.forming.stage_files import StageReport
from frd_agent.ranks.tap_files import ExitFrame

_MAX_TEXT = 200


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
