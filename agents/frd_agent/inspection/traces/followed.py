"""One trace that is followed: read when it has grown, if it may be read and lets itself be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from frd.model import NodeNs, NodeRawNs
from frd_agent.inspection.claims import RankView
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.inspection.traces.chunks import read_chunk
from frd_agent.inspection.traces.history import History, Names
from frd_agent.inspection.traces.open_traces import OpenTrace
from frd_agent.inspection.traces.storage import objection
from frd_agent.inspection.traces.tail import Buffering, Tail
from frd_agent.inspection.tracking import ENOUGH

PAUSE_NS: Final = 30_000_000_000
"""How long a trace is left alone after it could not be read."""


class Traces:
    """What all inspected ranks share. Used by one thread at a time."""

    def __init__(
        self,
        to_raw: Callable[[NodeNs], NodeRawNs],
        helper: Helper | None = None,
        real_now: Callable[[], int] = time.time_ns,
    ) -> None:
        """`to_raw` takes stamps of the node's wall clock, which `real_now` shows."""
        self.to_raw = to_raw
        self.helper = Helper(name="frd-trace-of") if helper is None else helper
        """Not the one that reads memory: if a trace hangs it, no trace is read, and that is all."""
        self.real_now = real_now
        self.broken = 0
        """Lines and gzip members that were left out."""


class Followed:
    def __init__(self, trace: OpenTrace, names: Names) -> None:
        self.trace = trace
        """As of the last look."""
        self.history = History(names)
        self.problem = ""
        """Why it could not be read: ends a sentence that its path begins."""
        self.quiet = 0
        """Looks in a row at which it had not grown."""
        self.quiet_since_ns = NodeRawNs(0)
        self._tail = Tail(is_packed=trace.is_packed)
        self._read_to = 0
        self._objections = 0
        self._pause_until_ns = 0

    @property
    def buffering(self) -> Buffering:
        return self._tail.buffering if self.trace.written else Buffering.BUFFERED

    def look(self, shared: Traces, view: RankView, now_ns: NodeRawNs) -> None:
        """Read what was appended."""
        if self.trace.written == self._read_to:
            self.quiet += 1
            return
        if now_ns < self._pause_until_ns:
            return
        if why := objection(view, self.trace.mount):
            self._objections += 1
            if self._objections >= ENOUGH:
                self.problem = f"is not read: {why}"
            return
        self._objections, self.problem = 0, ""
        trace, tail = self.trace, self._tail
        try:
            chunk = shared.helper.run(lambda: read_chunk(trace, tail))
        except NotInTime:
            self.problem = "could not be read in time"
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
        else:
            if chunk is not None:
                before = tail.broken
                self.history.add(tail.feed(*chunk))
                shared.broken += tail.broken - before
                self._read_to = trace.written
                self.quiet, self.quiet_since_ns = 0, now_ns
                return
        self._pause_until_ns = now_ns + PAUSE_NS
