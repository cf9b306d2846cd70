"""What the traces say of a first cause: the file its rank was reading when it was last seen.

A line is written when its call has returned. So a trace proves that a call was in progress at a
moment only if the call ended later; a call that never returned has no line. Then the last call that
ended, and the file that is open after it, are likely the cause, and the words say no more than
that. A trace that was not finalized may lack what was buffered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from frd.dftracer.block import Block
from frd.dftracer.kinds import Kind
from frd.engine.findings import text as words
from frd.forms import clock_text, duration_text, utc_text
from frd.model import Finding, Int64s, Suspect
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.discovery import Piece
from frd.offline.io.reading import PieceReader
from frd.offline.io.source import Source

if TYPE_CHECKING:
    from frd.offline.io.analysis import IoAnalysis, RankIo

SEEN: Final = "seen"
LIKELY: Final = "likely"
_MIN_CALL_NS: Final = 100_000_000
"""A call in progress that took less is chance, not a cause."""


@dataclass(frozen=True, slots=True)
class Starved:
    """A rank, and the file that kept it waiting."""

    rank: int
    path: str
    certainty: str
    """``seen``: a call on it was in progress; ``likely``: it is open after the last call."""
    call: str
    """The call that was in progress, or that ended last."""
    since_ns: int
    """When the call in progress began, or the last one ended."""
    pid: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "path": self.path,
            "certainty": self.certainty,
            "call": self.call,
            "since": utc_text(self.since_ns),
            "pid": self.pid,
            "text": self.text,
        }


def with_starved(analysis: Analysis, io: IoAnalysis) -> tuple[Analysis, IoAnalysis]:
    """Both, with what the traces say of the suspects of the findings."""
    found: dict[int, Starved] = {}
    for finding in analysis.findings:
        for suspect in finding.suspects:
            mine = next((one for one in io.ranks if one.rank == suspect.rank), None)
            if mine is not None and suspect.rank not in found:
                seen_ns = _last_seen_ns(analysis, finding, suspect)
                found.update((s.rank, s) for s in _starved(io, mine, suspect.rank, seen_ns))
    if not found:
        return analysis, io
    findings = [_with_evidence(finding, found) for finding in analysis.findings]
    summary = analysis.summary
    if first := next((found[s.rank] for s in findings[0].suspects if s.rank in found), None):
        summary = f"{summary}; {_in_short(first)}"
    io = replace(io, starved=list(found.values()))
    return replace(analysis, findings=findings, summary=summary), io


def _with_evidence(finding: Finding, found: Mapping[int, Starved]) -> Finding:
    suspects = tuple(
        replace(one, evidence=f"{one.evidence}; {found[one.rank].text}")
        if one.rank in found
        else one
        for one in finding.suspects
    )
    return replace(finding, suspects=suspects)


def _in_short(one: Starved) -> str:
    perhaps = "" if one.certainty == SEEN else "probably "
    return f"rank {one.rank} is {perhaps}starved by {words.clean(one.path)}"


def _last_seen_ns(analysis: Analysis, finding: Finding, suspect: Suspect) -> int:
    """When the rank was asked for its dump; else the last moment that a dump of the job shows.

    The time of a file alone is no evidence: it may have been copied.
    """
    trace = analysis.trace
    offsets = analysis.clock_offsets_ns
    one = trace.ranks.get(suspect.rank)
    if one is not None and one.dumped_from_ns:
        return one.dumped_from_ns + offsets.get(suspect.rank, 0)
    times = [
        int(of.created_ns.max()) + offsets.get(rank, 0)
        for rank, of in trace.ranks.items()
        if len(of)
    ]
    return max([*times, finding.opened_at, suspect.onset_at or 0])


# -- the state of a rank's processes at a moment ---------------------------------------------------


@dataclass(slots=True)
class _Call:
    name: str
    key: str
    start: int
    end: int


@dataclass(slots=True)
class _State:
    """Of one process, in the unit of its trace."""

    trace: Path
    pid: int
    at: int
    source: Source
    last: _Call | None = None
    """The call of I/O or the annotation that ended last before the moment."""
    during: _Call | None = None
    """The longest call of I/O in progress at the moment."""
    is_finalized: bool = False
    opens: dict[str, int] = field(default_factory=dict)
    """Opens minus closes before the moment, by key."""

    def aligned(self, at: int) -> int:
        return self.source.aligned_one(at)


def _states(io: IoAnalysis, mine: RankIo, seen_ns: int) -> list[_State]:
    states: dict[tuple[Path, int], _State] = {}
    for source in mine.sources:
        facts = io.facts[source.part]
        key = (facts.piece.file.path, source.pid)
        at = (seen_ns - source.offset_ns) // source.unit_ns
        state = states.setdefault(key, _State(*key, at, source))
        state.is_finalized |= any(e.name == "end" and e.pid == source.pid for e in facts.tracer)
        _watch(state, facts.piece)
    return list(states.values())


def _watch(state: _State, piece: Piece) -> None:
    reader = PieceReader(piece)
    for block in reader.blocks():
        names, files = list(reader.calls.names), list(reader.calls.files)
        rows = np.flatnonzero((block.pid == state.pid) & (block.kind != Kind.OTHER))
        start, end = block.start[rows], block.start[rows] + block.dur[rows]

        def call(at: int, block: Block = block, rows: Int64s = rows) -> _Call:
            row = int(rows[at])
            file = int(block.file[row])
            begin = int(block.start[row])
            return _Call(
                names[block.name[row]],  # noqa: B023  used within this turn of the loop
                files[file] if file >= 0 else "",  # noqa: B023
                begin,
                begin + int(block.dur[row]),
            )

        before = np.flatnonzero(end <= state.at)
        if len(before):
            last = call(int(before[end[before].argmax()]))
            if state.last is None or last.end >= state.last.end:
                state.last = last
        during = np.flatnonzero((start <= state.at) & (end > state.at))
        during = during[(block.kind[rows[during]] >= Kind.IO) & (block.file[rows[during]] >= 0)]
        if len(during):
            longest = call(int(during[(end - start)[during].argmax()]))
            if state.during is None or longest.start < state.during.start:
                state.during = longest
        _count_opens(state, block, rows[before], files)


def _count_opens(state: _State, block: Block, rows: Int64s, files: Sequence[str]) -> None:
    kind = block.kind[rows]
    opened = (kind == Kind.OPEN) & (block.failed[rows] == 0)
    for sign, some in ((1, opened), (-1, kind == Kind.CLOSE)):
        numbers, counts = np.unique(block.file[rows[some]], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number >= 0:
                key = files[number]
                state.opens[key] = state.opens.get(key, 0) + sign * count


# -- the claim -------------------------------------------------------------------------------------


def _starved(io: IoAnalysis, mine: RankIo, rank: int, seen_ns: int) -> Iterator[Starved]:
    """At most one."""
    states = _states(io, mine, seen_ns)
    if found := _in_progress(io, states, rank, seen_ns) or _left_open(io, states, rank, seen_ns):
        yield found


def _in_progress(
    io: IoAnalysis, states: Iterable[_State], rank: int, seen_ns: int
) -> Starved | None:
    calls = [
        (one, one.during)
        for one in states
        if one.during is not None
        and one.aligned(one.during.end) - one.aligned(one.during.start) >= _MIN_CALL_NS
    ]
    if not calls:
        return None
    state, call = min(calls, key=lambda pair: pair[0].aligned(pair[1].start))
    begin, end = state.aligned(call.start), state.aligned(call.end)
    path = io.identities.text(state.trace, call.key)
    text = (
        f"starved by {words.clean(path)}: {_process(io, state, rank)} was in {call.name} of it for "
        f"{duration_text((end - begin) / 1e9)} from {clock_text(begin)} on, which includes "
        f"{clock_text(seen_ns)}, when the rank was last seen"
    )
    return Starved(rank, path, SEEN, call.name, begin, state.pid, text)


def _left_open(io: IoAnalysis, states: Iterable[_State], rank: int, seen_ns: int) -> Starved | None:
    """The file of the last call of a process, if it is open."""
    calls = [
        (one, one.last)
        for one in states
        if one.last is not None and one.last.key and one.opens.get(one.last.key, 0) > 0
    ]
    if not calls:
        return None
    state, call = max(calls, key=lambda pair: pair[0].aligned(pair[1].end))
    ended = state.aligned(call.end)
    path = io.identities.text(state.trace, call.key)
    before = duration_text(max(seen_ns - ended, 0) / 1e9)
    unsure = "" if state.is_finalized else " (the trace was not finalized, what was buffered lacks)"
    text = (
        f"probably starved by {words.clean(path)}: the last call of {_process(io, state, rank)} "
        f"that ended is {call.name} of it, {before} before the rank was last seen, and the file is "
        f"open{unsure}"
    )
    return Starved(rank, path, LIKELY, call.name, ended, state.pid, text)


def _process(io: IoAnalysis, state: _State, rank: int) -> str:
    process = io.identities.process(state.trace, state.pid)
    owner = io.identities.owners.get(process)
    child = owner is not None and owner.evidence.startswith("child of")
    return f"its child pid {state.pid}" if child else f"pid {state.pid}"
