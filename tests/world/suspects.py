"""Real processes that are blocked in something, and what the inspection says of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

from frd.model import WaitKind, WaitsFor
from frd_agent.counters import Counters
from frd_agent.inspection.claims import UNKNOWN
from frd_agent.inspection.inspector import Processes, RankSampler
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.traces.followed import Traces
from frd_agent.node_time import NodeTime, raw_now
from tests.world.run_dir import process_of

_EVERY_S: Final = 0.12
"""Between two samples: the agent takes one a second, a test has no time for that."""
_PATIENCE_S: Final = 30.0

Suspect: TypeAlias = subprocess.Popen[str]


@contextmanager
def suspect(program: str, *arguments: object) -> Iterator[Suspect]:
    """Python that runs `program`, which prints a line just before it blocks. All processes that it
    starts end with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def inspect(
    pid: int,
    ranks: Mapping[int, int | None] | None = None,
    *,
    enough: Callable[[WaitsFor], bool] = lambda found: bool(found.says),
    traces: Traces | None = None,
) -> WaitsFor:
    """What `pid`, which is rank 0, waits for, once that is `enough`."""
    return Inspection(pid, ranks, traces=traces).until(enough)


class Inspection:
    """Of one process, which is rank 0."""

    def __init__(
        self,
        pid: int,
        ranks: Mapping[int, int | None] | None = None,
        *,
        traces: Traces | None = None,
    ) -> None:
        traces = traces or Traces(NodeTime(Counters()).one_to_raw, Helper(deadline_s=5.0))
        self._processes = Processes()
        self._sampler = RankSampler(
            process_of(pid), self._processes, Helper(deadline_s=5.0), traces
        )
        self._rank_of = {pid: 0} if ranks is None else ranks
        self.report = UNKNOWN
        """Of the last sample."""

    def until(self, enough: Callable[[WaitsFor], bool]) -> WaitsFor:
        """Sample until what is found is `enough`."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            self._processes.look(time.monotonic())
            self.report = self._sampler.sample(raw_now(), self._rank_of)
            found = self.report.waits_for
            if enough(found):
                return found
            assert time.monotonic() < deadline_s, found
            time.sleep(_EVERY_S)


def of_kind(kind: WaitKind) -> Callable[[WaitsFor], bool]:
    return lambda found: found.kind is kind
