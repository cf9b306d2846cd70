"""The report on a set of traces: per rank and step, files, and what is not known.

The traces are read once, in pieces, by an engine: each piece becomes a `Part`, from whose facts the
ranks of processes follow; then the parts of each rank are joined where they are. All results are
frozen values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frd.forms import fold_ranks, utc_text
from frd.model import RankInfo
from frd.offline.io.discovery import TraceFile, find_traces, pieces_of
from frd.offline.io.engine import Engine, InProcess, Progress, engine_for
from frd.offline.io.identity import Identities, Process, identities_of
from frd.offline.io.part import Facts, Source, facts_of, read_part
from frd.offline.io.rank_report import SUMS, FileUse, Step, Usage, usage_of
from frd.offline.io.starved import Starved


@dataclass(frozen=True, slots=True)
class RankIo:
    """One rank; or one process whose rank is not known."""

    rank: int | None
    processes: Mapping[Process, str]
    """With the evidence for the rank."""
    usage: Usage
    sources: Sequence[Source]
    """For `Source.part`, see `IoAnalysis.facts`."""


@dataclass(frozen=True, slots=True)
class IoAnalysis:
    """What the traces say."""

    ranks: Sequence[RankIo]
    """By rank; processes without a rank last."""
    traces: Mapping[Path, str]
    """What is missing in each file; empty if nothing is."""
    identities: Identities
    facts: Sequence[Facts]
    """Of all pieces that were read."""
    offsets_ns: Mapping[int, int]
    """By rank: what was added to its times."""
    starved: Sequence[Starved] = ()
    warnings: Sequence[str] = ()
    broken_lines: int = field(default=0)
    events: int = field(default=0)

    def path(self, file: FileUse) -> str:
        return self.identities.files.text(file.trace, file.key)

    def files(self) -> list[tuple[int | None, FileUse]]:
        """The slowest files of all ranks, the slowest first."""
        found = [(one.rank, file) for one in self.ranks for file in one.usage.files]
        return sorted(found, key=lambda pair: -pair[1].io_ns)

    def unclosed(self) -> list[tuple[int | None, FileUse]]:
        return [(one.rank, file) for one in self.ranks for file in one.usage.unclosed]

    def not_listed(self) -> list[str]:
        """What the lists of files and steps leave out."""
        lists: dict[str, Callable[[Usage], int]] = {
            "files that took less time": lambda use: use.files_in_all - len(use.files),
            "files opened earlier and never closed": lambda use: (
                use.unclosed_in_all - len(use.unclosed)
            ),
            "steps with less unoverlapped I/O": lambda use: use.steps_in_all - len(use.steps),
        }
        found = []
        for what, left_out in lists.items():
            cut = [one for one in self.ranks if left_out(one.usage)]
            if cut:
                count = sum(left_out(one.usage) for one in cut)
                found.append(f"{count:,} {what}, of {names_of(cut)}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The value of `io` that `frd analyze --traces --json` prints; see docs/io.md."""
        return {
            "events": self.events,
            "ranks": {
                str(one.rank): _usage_json(one) for one in self.ranks if one.rank is not None
            },
            "processes": [
                {"host": process.host, "pid": process.pid, **_usage_json(one)}
                for one in self.ranks
                if one.rank is None
                for process in one.processes
            ],
            "files": [
                {
                    "path": self.path(file),
                    "rank": rank,
                    "io_s": file.io_ns / 1e9,
                    "bytes": file.nbytes,
                    "ops": file.ops,
                }
                for rank, file in self.files()
            ],
            "unclosed": [
                {
                    "rank": rank,
                    "path": self.path(file),
                    "since": utc_text(file.opened_ns) if file.opened_ns else None,
                    "used": file.is_used,
                }
                for rank, file in self.unclosed()
            ],
            "starved_by": [one.to_json() for one in self.starved],
            "steps": [
                {"rank": one.rank, **_step_json(step)}
                for one in self.ranks
                for step in one.usage.steps
            ],
            "files_read": [*map(str, self.traces)],
            "incomplete": [
                {"path": str(path), "problem": problem}
                for path, problem in self.traces.items()
                if problem
            ],
            "not_listed": self.not_listed(),
            "broken_lines": self.broken_lines,
            "warnings": list(self.warnings),
        }


def names_of(ranks: Sequence[RankIo]) -> str:
    """Some ranks and processes in words; at least one."""
    known = [one.rank for one in ranks if one.rank is not None]
    more = len(ranks) - len(known)
    names = [f"rank{'s' * (len(known) > 1)} {fold_ranks(known)}"] if known else []
    names += [f"{more} process{'es' * (more > 1)} without a rank"] if more else []
    return " and ".join(names)


def _usage_json(one: RankIo) -> dict[str, Any]:
    return {
        **_sums_json(one.usage),
        "events": one.usage.events,
        "evidence": sorted(set(one.processes.values())),
    }


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "epoch": None if step.epoch < 0 else step.epoch,
        "step": step.step,
        "begin": utc_text(step.begin_ns),
        "duration_s": (step.end_ns - step.begin_ns) / 1e9,
        **_sums_json(step),
    }


def _sums_json(of: Usage | Step) -> dict[str, float]:
    return {name: value(of) for name, (_, value) in SUMS.items()}


def load_traces(
    paths: Sequence[Path],
    *,
    known: Mapping[int, RankInfo] | None = None,
    offsets_ns: Mapping[int, int] | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> IoAnalysis:
    """Read and analyze the traces in files and folders.

    Args:
        known: identities of ranks, as in a dump folder.
        offsets_ns: by rank: what is added to its times to get aligned ones.
        scheduler: address of a Dask scheduler; by default much is read by processes of this
            machine, if Dask is installed.
        progress: called after every piece with the number done and the total.

    Raises:
        TraceError: no trace there.
        ConfigError, ServiceUnavailable: no Dask, or no answer at `scheduler`.
    """
    files, warnings = find_traces(paths)
    packed = sum(file.size for file in files if file.packed)
    plain = sum(file.size for file in files) - packed
    with engine_for(packed, plain, scheduler, warnings.append) as engine:
        return analyze_traces(
            files, engine, known or {}, offsets_ns or {}, progress=progress, warnings=warnings
        )


def analyze_traces(
    files: Sequence[TraceFile],
    engine: Engine | None = None,
    known: Mapping[int, RankInfo] | None = None,
    offsets_ns: Mapping[int, int] | None = None,
    *,
    progress: Progress | None = None,
    warnings: Sequence[str] = (),
) -> IoAnalysis:
    engine = engine or InProcess()
    offsets_ns = offsets_ns or {}
    parts = [engine.submit(read_part, piece) for file in files for piece in pieces_of(file)]
    facts: list[Facts] = engine.gather([engine.submit(facts_of, p) for p in parts], progress)
    identities = identities_of(facts, known or {})
    owned = _owned(facts, identities)
    sources = [_sources(one, facts, identities, offsets_ns) for one in owned]
    usages = [
        engine.submit(usage_of, some, *(parts[source.part] for source in some)) for some in sources
    ]
    ranks = [
        RankIo(one.rank, one.processes, usage, some)
        for one, usage, some in zip(owned, engine.gather(usages), sources, strict=True)
    ]
    return IoAnalysis(
        ranks=ranks,
        traces={path: "; ".join(_problems(parts)) for path, parts in _by_file(facts).items()},
        identities=identities,
        facts=facts,
        offsets_ns=offsets_ns,
        warnings=[*warnings, *identities.warnings, *_warnings(facts)],
        broken_lines=sum(one.broken for one in facts),
        events=sum(one.events for one in facts),
    )


# -- whose is what ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Owned:
    """What one rank owns, or one process without a rank."""

    rank: int | None
    processes: dict[Process, str] = field(default_factory=dict)
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Index of the part, and pid."""


def _owned(facts: Sequence[Facts], identities: Identities) -> list[_Owned]:
    found: dict[tuple[bool, int, Process | None], _Owned] = {}
    for at, one in enumerate(facts):
        for pid in one.pids:
            process = identities.process(one.piece.file.path, pid)
            owner = identities.owners.get(process)
            rank = owner.rank if owner else None
            key = (owner is None, rank or 0, process if owner is None else None)
            mine = found.setdefault(key, _Owned(rank))
            mine.processes[process] = owner.evidence if owner else "no evidence"
            mine.pieces.append((at, pid))
    order = sorted(found, key=lambda key: (key[0], key[1], key[2] or Process("", 0)))
    return [found[key] for key in order]


def _sources(
    one: _Owned, facts: Sequence[Facts], identities: Identities, offsets_ns: Mapping[int, int]
) -> list[Source]:
    offset = 0 if one.rank is None else offsets_ns.get(one.rank, 0)
    found: list[Source] = []
    for at, pid in one.pieces:
        path = facts[at].piece.file.path
        ancestors = identities.ancestors(identities.process(path, pid))
        is_child = not one.processes.keys().isdisjoint(ancestors)
        found.append(Source(at, pid, identities.unit_ns(path), offset, is_child))
    return found


# -- what is missing -------------------------------------------------------------------------------


def _by_file(facts: Sequence[Facts]) -> dict[Path, list[Facts]]:
    by_file: dict[Path, list[Facts]] = defaultdict(list)
    for one in facts:
        by_file[one.piece.file.path].append(one)
    return by_file


def _problems(parts: Sequence[Facts]) -> Iterable[str]:
    return dict.fromkeys(problem for one in parts for problem in one.problems)


def _warnings(facts: Sequence[Facts]) -> Iterator[str]:
    """One for each file that is not whole."""
    for path, parts in _by_file(facts).items():
        for problem in _problems(parts):
            yield f"{path}: {problem}"
        if broken := sum(one.broken for one in parts):
            first = next(one.first_broken for one in parts if one.broken)
            lines = "line" if broken == 1 else "lines"
            yield f"{path}: {broken} broken {lines} (cut or glued), the first: {first}: left out"
        if aggregated := sum(one.aggregated for one in parts):
            yield (
                f"{path}: {aggregated} records sum up many calls (DFTRACER_ENABLE_AGGREGATION): "
                "they have no begin and no end, and are left out"
            )
        if stepped := sum(one.stepped for one in parts):
            yield f"{path}: {stepped} calls during which the clock stepped back count as 0 s"
