"""Whose process a trace is of, and what its hashes mean.

Most traces have no rank. The evidence, the better first: the rank that MPI gave (PR), the rank that
the program logged (CM, or the end of the process), a process that the dump folder knows by host and
pid, a parent with a rank, digits after "rank" in the file's name. The last one is a guess and says
so. Hashes are resolved over all traces, because a forked child uses those of its parent; the own
file goes first, because v1 has hashes of 16 bits, which collide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from frd.dftracer.kinds import FORKS
from frd.dftracer.line import Event, Metadata, inline_text
from frd.model import RankInfo
from frd.offline.io.part import Facts

GUESS: Final = "guessed from the file name"
_UNITS: Final = {"NS": 1, "US": 1_000, "MS": 1_000_000, "SEC": 1_000_000_000}
_UNIT: Final = 1_000
_TEXTS: Final = frozenset({"FH", "HH", "SH"})
_RANK_NAME: Final = re.compile(r"Rank (\d{1,9})")
_IN_FILE_NAME: Final = re.compile(r"rank[-_]?(\d{1,9})|-(\d{1,9})-of-\d+\.pfw", re.IGNORECASE)
_MAX_RANK: Final = 1 << 30


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
    _texts: dict[str, str] = field(default_factory=dict)
    _own: dict[tuple[Path, str], str] = field(default_factory=dict)
    """Where a trace defines a hash differently from another one."""

    def process(self, trace: Path, pid: int) -> Process:
        return Process(self.hosts.get(trace) or f"the unknown host of {trace.name}", pid)

    def unit_ns(self, trace: Path) -> int:
        return self.units.get(trace, _UNIT)

    def text(self, trace: Path, key: str) -> str:
        """The text of a key; for a hash that no trace defines, the hash."""
        if (inline := inline_text(key)) is not None:
            return inline
        own = self._own.get((trace, key)) if self._own else None
        return own or self._texts.get(key) or f"?{key}"

    def define(self, trace: Path, key: str, text: str) -> None:
        if self._texts.setdefault(key, text) != text:
            self._own[trace, key] = text


def identities_of(facts: Sequence[Facts], known: Mapping[int, RankInfo]) -> Identities:
    """`known` are the identities in the dump folder, by rank."""
    out = Identities()
    for one in facts:
        for meta in one.metadata:
            if meta.kind in _TEXTS:
                out.define(one.piece.file.path, meta.key, meta.value)
    for one in facts:
        trace = one.piece.file.path
        if one.host and trace not in out.hosts:
            out.hosts[trace] = out.text(trace, one.host)
        out.units.update((trace, unit) for unit in _units(one.metadata))
    _own_ranks(facts, out)
    _ranks_of_dumps(facts, known, out)
    _parents(facts, out)
    _inherit(facts, out)
    _guess(facts, out)
    _inherit(facts, out)
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
    by_process = {(info.node, info.pid): rank for rank, info in known.items() if info.pid}
    by_process |= {(host.partition(".")[0], pid): r for (host, pid), r in by_process.items()}
    for _, process in _processes(facts, out):
        for host in (process.host, process.host.partition(".")[0]):
            rank = by_process.get((host, process.pid))
            if rank is not None:
                out.owners.setdefault(process, Owner(rank, "host and pid of the rank's dump"))


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
        seen: list[Process] = []
        at: Process | None = process
        while at is not None and at not in out.owners and at not in seen:
            seen.append(at)
            at = out.parents.get(at)
        if at is not None and at in out.owners:
            owner = out.owners[at]
            guess = f", {GUESS}" if GUESS in owner.evidence else ""
            for one in seen:
                out.owners[one] = Owner(owner.rank, f"child of {at.label}{guess}")


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
