"""Whose process a trace is of, and which files the hashes in traces mean.

Most traces have no rank. The evidence, the better first: the rank that MPI gave (PR), the rank that
the program logged (CM, or the end of the process), a process that the dump folder knows by host and
pid, a parent with a rank, digits after "rank" in the file's name. The last one is a guess and says
so. Two processes are the same only if nothing else fits: a name of a host that could be two hosts
matches neither.

A forked child uses hashes that only its parent's trace defines, so hashes are resolved over all
traces. v1 has hashes of 16 bits, which collide: between jobs, and within one trace. In a trace a
hash means what this trace or those of its ancestors define. If that is more than one file, nothing
in a record says which: the hash then means all of them, and its text says so.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from frd.dftracer.line import FORKS, Event, Metadata, inline_text
from frd.model import RankInfo
from frd.offline.io.part import Facts

GUESS: Final = "guessed from the file name"
_UNITS: Final = {"NS": 1, "US": 1_000, "MS": 1_000_000, "SEC": 1_000_000_000}
_UNIT: Final = 1_000
_RANK_NAME: Final = re.compile(r"Rank (\d{1,9})")
_IN_FILE_NAME: Final = re.compile(r"rank[-_]?(\d{1,9})|-(\d{1,9})-of-\d+\.pfw", re.IGNORECASE)
_MAX_RANK: Final = 1 << 30
_MAX_SHOWN: Final = 3
"""Names of an ambiguous hash that are shown."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of files by trace and key, see `frd.dftracer.line.file_key`."""

    _common: Mapping[str, str] = field(default_factory=dict)
    """The name of each hash; of an ambiguous one, the first."""
    _ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All names of hashes that have several."""
    _within: Mapping[tuple[Path, str], Sequence[str]] = field(default_factory=dict)
    """Their names in a trace that defines or inherits them."""

    def names(self, trace: Path, key: str) -> Sequence[str]:
        """The files that a key may mean; none for a hash that no trace defines."""
        if (inline := inline_text(key)) is not None:
            return (inline,)
        if (several := self._ambiguous.get(key)) is not None:
            return self._within.get((trace, key), several)
        return (self._common[key],) if key in self._common else ()

    def text(self, trace: Path, key: str) -> str:
        """``A or B`` if it may mean both; for an unknown hash, the hash."""
        names = self.names(trace, key)
        more = len(names) - _MAX_SHOWN
        shown = [*names[:_MAX_SHOWN], *([f"{more} more"] if more > 0 else [])]
        return " or ".join(shown) or f"?{key}"


def definitions(facts: Sequence[Facts], kind: str) -> Iterator[tuple[Path, str, str]]:
    """Trace, hash and text of metadata of a kind."""
    for one in facts:
        for meta in one.metadata:
            if meta.kind == kind:
                yield one.piece.file.path, meta.key, meta.value


def file_names(
    facts: Sequence[Facts], ancestors: Callable[[], Mapping[Path, Sequence[Path]]]
) -> FileNames:
    """`ancestors` are the traces of the ancestors of each trace's processes."""
    common: dict[str, str] = {}
    ambiguous: dict[str, dict[str, None]] = {}
    for _, key, name in definitions(facts, "FH"):
        if (first := common.setdefault(key, name)) != name:
            ambiguous.setdefault(key, {first: None})[name] = None
    if not ambiguous:
        return FileNames(common)
    own: dict[tuple[Path, str], dict[str, None]] = defaultdict(dict)
    for trace, key, name in definitions(facts, "FH"):
        if key in ambiguous:
            own[trace, key][name] = None
    within: dict[tuple[Path, str], Sequence[str]] = {}
    inherited = ancestors()
    for one in facts:
        trace = one.piece.file.path
        for key in ambiguous.keys() & set(one.files):
            found = [own.get((path, key), {}) for path in (trace, *inherited.get(trace, ()))]
            if names := tuple(dict.fromkeys(name for names in found for name in names)):
                within[trace, key] = names
    return FileNames(common, {key: tuple(names) for key, names in ambiguous.items()}, within)


@dataclass(frozen=True, slots=True, order=True)
class Process:
    host: str
    """Names the trace if that does not name the host (without DFTRACER_INC_METADATA=1)."""
    pid: int

    @property
    def label(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Owner:
    rank: int
    evidence: str


@dataclass(slots=True)
class Identities:
    """The join of all facts."""

    owners: dict[Process, Owner] = field(default_factory=dict)
    hosts: dict[Path, str] = field(default_factory=dict)
    """Host name by trace."""
    units: dict[Path, int] = field(default_factory=dict)
    """Nanoseconds in the unit of a trace, if it is not µs."""
    parents: dict[Process, Process] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: FileNames = field(default_factory=FileNames)

    def process(self, trace: Path, pid: int) -> Process:
        return Process(self.hosts.get(trace) or f"the unknown host of {trace.name}", pid)

    def ancestors(self, process: Process) -> Sequence[Process]:
        """The nearest first. Numbers of processes are used again, so that there may be circles."""
        seen: dict[Process, None] = {process: None}
        at = self.parents.get(process)
        while at is not None and at not in seen:
            seen[at] = None
            at = self.parents.get(at)
        return list(seen)[1:]

    def unit_ns(self, trace: Path) -> int:
        return self.units.get(trace, _UNIT)


def identities_of(facts: Sequence[Facts], known: Mapping[int, RankInfo]) -> Identities:
    """`known` are the identities in the dump folder, by rank."""
    out = Identities()
    _hosts(facts, out)
    for one in facts:
        out.units.update((one.piece.file.path, unit) for unit in _units(one.metadata))
    _own_ranks(facts, out)
    _ranks_of_dumps(facts, known, out)
    _parents(facts, out)
    _inherit(facts, out)
    _guess(facts, out)
    _inherit(facts, out)
    out.files = file_names(facts, partial(_traces_of_ancestors, facts, out))
    _warn_of_many(out)
    return out


def _units(metadata: Sequence[Metadata]) -> Iterator[int]:
    for meta in metadata:
        if meta.kind == "CM" and meta.key == "time_metric" and meta.value.upper() in _UNITS:
            yield _UNITS[meta.value.upper()]


def _processes(facts: Sequence[Facts], of: Identities) -> Iterator[tuple[Facts, Process]]:
    for one in facts:
        for pid in one.pids:
            yield one, of.process(one.piece.file.path, pid)


# -- hosts, and where hashes are defined -----------------------------------------------------------


def _hosts(facts: Sequence[Facts], out: Identities) -> None:
    """The host of each trace, by its own definition if it has one."""
    own: dict[Path, dict[str, str]] = defaultdict(dict)
    anywhere: dict[str, set[str]] = defaultdict(set)
    for trace, key, name in definitions(facts, "HH"):
        own[trace].setdefault(key, name)
        anywhere[key].add(name)
    for one in facts:
        trace, key = one.piece.file.path, one.host
        if key and trace not in out.hosts:
            unknown = next(iter(anywhere[key])) if len(anywhere[key]) == 1 else f"?{key}"
            out.hosts[trace] = inline_text(key) or own[trace].get(key, unknown)
    for trace, names in own.items():
        if len(names) > 1:
            out.warnings.append(
                f"{trace}: has records of {len(names)} hosts "
                f"({', '.join(list(names.values())[:4])}), which are all taken for records of "
                f"{out.hosts.get(trace, 'one host')}: give each process its own trace, else ranks "
                "are added up"
            )


def _traces_of_ancestors(facts: Sequence[Facts], out: Identities) -> dict[Path, list[Path]]:
    """The traces of the ancestors of each trace's processes."""
    traces: dict[Process, dict[Path, None]] = defaultdict(dict)
    for one, process in _processes(facts, out):
        traces[process][one.piece.file.path] = None
    found: dict[Path, list[Path]] = {}
    for one, process in _processes(facts, out):
        ancestors = out.ancestors(process)
        found.setdefault(one.piece.file.path, []).extend(
            path for ancestor in ancestors for path in traces.get(ancestor, ())
        )
    return found


# -- evidence, the better first --------------------------------------------------------------------


def _own_ranks(facts: Sequence[Facts], out: Identities) -> None:
    claims: list[tuple[int, Process, int, str]] = []
    for one in facts:
        trace = one.piece.file.path
        for meta in one.metadata:
            if (claim := _claim(meta)) is not None:
                order, rank, evidence = claim
                claims.append((order, out.process(trace, meta.pid), rank, evidence))
        for event in one.tracer:
            if (at_end := _rank_at_end(event)) is not None:
                process = out.process(trace, event.pid)
                claims.append((3, process, at_end, "logged at the end of the process"))
    for _, process, rank, evidence in sorted(claims, key=lambda claim: claim[0]):
        owner = out.owners.setdefault(process, Owner(rank, evidence))
        if owner.rank != rank:
            out.warnings.append(
                f"{process.label}: rank {owner.rank} ({owner.evidence}), but also rank {rank} "
                f"({evidence}): the first one is used"
            )


def _claim(meta: Metadata) -> tuple[int, int, str] | None:
    if meta.kind == "PR" and meta.key == "rank":
        rank = _rank(meta.value)
        return None if rank is None else (0, rank, "given by MPI")
    if meta.kind == "process_name" and (found := _RANK_NAME.fullmatch(meta.key)):
        return 1, int(found[1]), "given by MPI"
    if meta.kind == "CM" and meta.key.lower() == "rank":
        rank = _rank(meta.value)
        return None if rank is None else (2, rank, "logged by the program")
    return None


def _rank_at_end(event: Event) -> int | None:
    app = event.args.get("app") if event.name == "end" else None
    return _rank(app.get("rank")) if isinstance(app, dict) else None


def _rank(value: Any) -> int | None:
    try:
        rank = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return rank if 0 <= rank <= _MAX_RANK else None


def _ranks_of_dumps(facts: Sequence[Facts], known: Mapping[int, RankInfo], out: Identities) -> None:
    exact: dict[tuple[str, int], set[int]] = defaultdict(set)
    nodes: dict[str, set[str]] = defaultdict(set)
    for rank, info in known.items():
        nodes[_short(info.node)].add(info.node)
        if info.pid:
            exact[info.node, info.pid].add(rank)
    for _, process in _processes(facts, out):
        host, short = process.host, _short(process.host)
        ranks = exact.get((host, process.pid), set())
        if not ranks and len(alike := nodes[short]) == 1:
            (node,) = alike
            if short in (host, node):  # two full names that differ are two hosts
                ranks = exact.get((node, process.pid), set())
        if len(ranks) == 1:
            owner = Owner(next(iter(ranks)), "host and pid of the rank's dump")
            out.owners.setdefault(process, owner)


def _short(host: str) -> str:
    """The name of a host without its domain; an address is no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[0]
    return host


def _parents(facts: Sequence[Facts], out: Identities) -> None:
    for one in facts:
        trace = one.piece.file.path
        for event in one.tracer:
            process = out.process(trace, event.pid)
            if event.name in FORKS and (child := _rank(event.args.get("ret"))):
                out.parents.setdefault(out.process(trace, child), process)
            elif event.name == "start" and (parent := _rank(event.args.get("ppid"))):
                out.parents[process] = out.process(trace, parent)


def _inherit(facts: Sequence[Facts], out: Identities) -> None:
    """The rank of the nearest ancestor that has one."""
    for _, process in _processes(facts, out):
        chain = [process, *out.ancestors(process)]
        nearest = next((at for at, one in enumerate(chain) if one in out.owners), 0)
        if nearest:
            owner = out.owners[chain[nearest]]
            guess = f", {GUESS}" if GUESS in owner.evidence else ""
            for one in chain[:nearest]:
                out.owners[one] = Owner(owner.rank, f"child of {chain[nearest].label}{guess}")


def _guess(facts: Sequence[Facts], out: Identities) -> None:
    for one, process in _processes(facts, out):
        if process not in out.owners and (found := _IN_FILE_NAME.search(one.piece.file.path.name)):
            out.owners[process] = Owner(int(found[1] or found[2]), GUESS)


def _warn_of_many(out: Identities) -> None:
    """Two main processes of one rank may be two attempts of a job, which must not be added."""
    by_rank: dict[int, list[Process]] = defaultdict(list)
    for process, owner in out.owners.items():
        if not owner.evidence.startswith("child of"):
            by_rank[owner.rank].append(process)
    for rank, processes in sorted(by_rank.items()):
        mains = [p for p in processes if out.parents.get(p) not in out.owners]
        if len(mains) > 1:
            labels = ", ".join(process.label for process in sorted(mains)[:4])
            out.warnings.append(
                f"rank {rank}: {len(mains)} processes are traced as this rank ({labels}): if they "
                "are of several attempts, name the traces of one"
            )
