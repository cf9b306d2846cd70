"""Stack texts of simulated ranks, as an agent sends them."""

from __future__ import annotations

from typing import Final

from frd.flight.stacks.text import RESTED, USAGE
from frd_agent.ranks.stacks.children import _LEAST_S, usage_text
from tests.sim.places import Frame, Place, place_of
from tests.sim.ranks import SimRank

_TAP: Final = (
    "Current thread 0x00007f43f67fc6c0 (most recent call first):\n  <no Python frame>\n\n"
    "Thread 0x00007f44215edb80 (most recent call first):\n"
)
_IN_KERNEL: Final = (
    "== /proc/{pid}/status\nName:\tpython\nState:\tT (stopped)\n"
    "== /proc/{pid}/wchan\ndo_signal_stop\n"
)


class Reading:
    """One stack that an agent reads: it begins, looks at the frames some time later, and ends."""

    def __init__(self, rank: SimRank, pid: int, now: int) -> None:
        self._rank = rank
        self._pid = pid
        self._began = now
        self._ran_ns = rank.thread.ran_ns(now)
        self._text = ""
        self.source = ""

    def look(self) -> None:
        rank = self._rank
        if rank.stopped:
            self._text, self.source = _IN_KERNEL.format(pid=self._pid), "proc"
        elif rank.gil_held:  # its interpreter does not answer
            self._text, self.source = _by_py_spy(place_of(rank), self._pid), "py-spy"
        else:
            self._text, self.source = by_faulthandler(place_of(rank)), "traceback"

    def end(self, now: int) -> str:
        """The whole text, of a rank that still lives."""
        passed_s = (now - self._began) / 1e9
        ran_ns = self._rank.thread.ran_ns(now)
        lines = ""
        if passed_s >= _LEAST_S:
            lines = f"{USAGE}{usage_text((ran_ns - self._ran_ns) / 1e9 / passed_s)}\n"
        if ran_ns == self._ran_ns:
            lines += f"{RESTED}{ran_ns} ns\n"
        return lines + self._text


def by_faulthandler(place: Place) -> str:
    """The text of one that can be read by its own interpreter."""
    return _TAP + "".join(
        f'  File "{one.file}", line {one.line} in {one.name}\n' for one in place.frames
    )


def _by_py_spy(place: Place, pid: int) -> str:
    def line(one: Frame) -> str:
        return f"    {one.name} ({one.file}:{one.line})\n"

    head = f"Process {pid}: /opt/venv/bin/python /home/u/job/train.py\nPython v3.11.7\n\n"
    thread = f'Thread {pid} (active+gil): "MainThread"\n'
    return head + thread + "".join(map(line, place.frames))
