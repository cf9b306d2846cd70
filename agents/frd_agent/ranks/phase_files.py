"""Reads the files by which taps publish the phases of programs (`frd_agent.phases`).

Nothing in them is trusted (`token_files`). Their times are stamps of the wall clock, each converted
when it is first read: a later step of the clock moves no phase.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from frd.model import NodeNs, NodeRawNs, PhaseSpan
from frd.wire.messages import MAX_PHASE_NAME, MAX_PHASE_NAMES, MAX_PHASES
from frd_agent.counters import Counters
from frd_agent.ranks.token_files import Published, Refused, TokenFile

_Name = Annotated[str, msgspec.Meta(max_length=MAX_PHASE_NAME)]


class Phase(msgspec.Struct, frozen=True):
    path: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MAX_PHASE_NAMES)]
    since_ns: Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]
    until_ns: Annotated[NodeNs, msgspec.Meta(ge=0, le=2**62)] = NodeNs(0)
    """0: it goes on."""

    def __post_init__(self) -> None:
        if 0 < self.until_ns < self.since_ns:
            raise ValueError(f"until_ns: {self.until_ns}: before since_ns")


class PhaseReport(Published, frozen=True, kw_only=True):
    phases: Annotated[tuple[Phase, ...], msgspec.Meta(max_length=MAX_PHASES)]


class PhaseFile(TokenFile[PhaseReport]):
    """The phases file of a rank, whose program may have none."""

    SUFFIX = ".phases"
    MAX_BYTES = 256 * 1024
    DECODER = msgspec.json.Decoder(PhaseReport)


class PhaseReader:
    """The phases of one rank."""

    def __init__(self, path: Path, to_raw: Callable[[NodeNs], NodeRawNs], stats: Counters) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._path = path
        self._to_raw = to_raw
        self._refused = Refused("phases", stats)
        self._file: PhaseFile | None = None
        self._raw: dict[NodeNs, NodeRawNs] = {}
        """The times in the file."""
        self.spans: tuple[PhaseSpan, ...] | None = None
        """None if the program has never had a phase."""

    def read(self) -> None:
        """Update `spans`. A file that cannot be used changes nothing, and is counted."""
        file = PhaseFile.look(self._path, self._file)
        if file is None or file is self._file:
            return
        self._refused.update([file])
        if file.content is not None:
            self.spans = self._spans(file.content)
        self._file = file

    def _spans(self, report: PhaseReport) -> tuple[PhaseSpan, ...]:
        walls = {wall for one in report.phases for wall in (one.since_ns, one.until_ns) if wall}
        self._raw = {wall: self._raw.get(wall) or self._to_raw(wall) for wall in walls}
        return tuple(self._span(one) for one in report.phases if self._raw[one.since_ns])

    def _span(self, phase: Phase) -> PhaseSpan:
        since_ns = self._raw[phase.since_ns]
        if not phase.until_ns:
            return PhaseSpan(phase.path, since_ns)
        return PhaseSpan(phase.path, since_ns, max(since_ns, self._raw[phase.until_ns]))
