"""Which runs of a job the service watches, because two running jobs may have the same name.

A *run* is one launch of a job. The ranks of a run meet at one address and port, which the tap
reports, so the processes of two launches can be distinguished. Two runs of one job are in conflict
if both have a live process for the same rank. The service then watches the run that was reported
first and refuses the other one. Sessions drop reports of refused runs; nothing else on their
streams is affected. When the first run has ended, the service admits the next one.

Ranks of one run that report different addresses (a master that calls itself localhost) make two
runs that share no rank, so both are admitted. Agents that report no run are never refused.

A process is live until its agent reports its end, and for `_AFTER_NS` after the last message of its
agent. Pure: time is an argument.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from frd.model import AlignedNs, AttemptKey, RankInfo

_AFTER_NS: Final = 10_000_000_000
_WARN_AFTER_NS: Final = 3_000_000_000
"""A shorter conflict is a restart: the new processes were seen before the end of the old ones."""
REASON: Final = "job_name"
"""Label of `frd_ingest_refused_total`: a rank process of a run that is refused."""
MAX_RUNS: Final = 64
"""Runs of one job at a time. Further runs are refused and not remembered."""
MAX_PROCESSES: Final = 1 << 18
"""The same for the rank processes of all runs of a job."""
MAX_NAMED: Final = 4
"""Processes that one warning lists."""


class Reporter(Protocol):
    """The part of a `Session` that this module uses."""

    heard_at: AlignedNs
    stream: int

    def admit(self, key: AttemptKey, run: str, now: AlignedNs) -> None: ...

    def suspend(self, key: AttemptKey, run: str) -> None: ...


@dataclass(frozen=True, slots=True)
class JobWarning:
    """A problem of a job that is no finding."""

    job: str
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Ranks that run, are reported, and are not watched."""

    job: str
    ranks: int
    why: str


@dataclass(slots=True)
class _Live:
    """A process whose end has not been reported."""

    info: RankInfo
    keys: set[AttemptKey] = field(default_factory=set)
    """Attempts of the process: a run that sets up its groups again continues in the next one."""
    reporters: set[Reporter] = field(default_factory=set)
    """Sessions with open streams that have declared the process."""
    left_at: int = 0
    """The time of the last message of a session that declared the process and has ended."""

    def is_live(self, now: AlignedNs) -> bool:
        heard_at = max([self.left_at, *(reporter.heard_at for reporter in self.reporters)])
        return now - heard_at < _AFTER_NS


@dataclass(slots=True)
class _Run:
    run: str
    order: int
    """The order of arrival; the lowest is watched."""
    processes: dict[int, _Live] = field(default_factory=dict)
    """The process of each rank that was declared last."""
    keys: set[AttemptKey] = field(default_factory=set)
    reporters: set[Reporter] = field(default_factory=set)
    is_admitted: bool = False
    refused_at: AlignedNs | None = None

    def is_live(self, now: AlignedNs) -> bool:
        return any(live.is_live(now) for live in self.processes.values())

    def has_ended(self) -> bool:
        """True if the ends of all processes were reported, or no agent is left to report them."""
        return not self.processes or not self.reporters

    def suspend(self) -> None:
        self.is_admitted = False
        for reporter in self.reporters:
            for key in self.keys:
                reporter.suspend(key, self.run)


class JobRuns:
    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, _Run]] = {}
        self._entered: dict[AttemptKey, set[str]] = {}
        """Runs whose ranks are in the engine's attempt."""
        self._declared: dict[Reporter, list[tuple[_Run, _Live]]] = {}
        self._orders = itertools.count()
        self._changed: list[Reporter] = []
        """Sessions whose runs were admitted since the last `take_changed`."""
        self.refused = 0
        """Rank processes refused since the start."""

    # -- what sessions report ------------------------------------------------------------------

    def declare(
        self, key: AttemptKey, run: str, info: RankInfo, reporter: Reporter, now: AlignedNs
    ) -> bool:
        """Add a rank process of `run`; returns whether its reports are used.

        May admit and suspend other runs of the job.
        """
        runs = self._jobs.setdefault(key.job, {})
        known = runs.get(run)
        if known is None:
            self._drop_ended(runs, now)
            if len(runs) >= MAX_RUNS:
                self.refused += 1
                return False
            known = runs[run] = _Run(run, next(self._orders))
        live = known.processes.get(info.rank)
        if live is None and sum(len(run.processes) for run in runs.values()) >= MAX_PROCESSES:
            self.refused += 1
            return False
        known.keys.add(key)
        known.reporters.add(reporter)
        is_new = live is None or live.info.process != info.process
        if live is None or is_new:
            live = known.processes[info.rank] = _Live(info)
        live.keys.add(key)
        live.reporters.add(reporter)
        self._declared.setdefault(reporter, []).append((known, live))
        self._decide(runs, known, info.rank, now)
        if is_new and not known.is_admitted:
            self.refused += 1
        return known.is_admitted

    def gone(self, key: AttemptKey, run: str, info: RankInfo) -> None:
        """The agent reports the end of a process, or that it has left the attempt."""
        known = self._jobs.get(key.job, {}).get(run)
        if known is None:
            return
        live = known.processes.get(info.rank)
        if live is not None and live.info.process == info.process:
            live.keys.discard(key)
            if not live.keys:
                del known.processes[info.rank]

    def closed(self, reporter: Reporter) -> None:
        """The session has ended."""
        for run, live in self._declared.pop(reporter, []):
            run.reporters.discard(reporter)
            live.reporters.discard(reporter)
            live.left_at = max(live.left_at, reporter.heard_at)

    def takes_over(self, key: AttemptKey, run: str) -> bool:
        """Whether the engine must start the attempt over, because all ranks in it are of runs that
        are refused now, or have ended. Call it once when an attempt of a run is admitted.
        """
        before = self._entered.get(key, set()) - {run}
        runs = self._jobs.get(key.job, {})
        stay = {other for other in before if other in runs and runs[other].is_admitted}
        self._entered[key] = {run, *stay}
        return bool(before) and not stay

    def settle(self, now: AlignedNs) -> bool:
        """Time has passed: runs that have ended or are silent are no longer watched. Call it often.

        True if there was a conflict.
        """
        contested = [
            runs
            for runs in self._jobs.values()
            if len(runs) > 1 and any(run.refused_at is not None for run in runs.values())
        ]
        for runs in contested:
            self._settle(runs, now)
        return bool(contested)

    def take_changed(self) -> list[int]:
        """Numbers of the streams on which runs were admitted since the last call."""
        changed, self._changed = self._changed, []
        return list(dict.fromkeys(reporter.stream for reporter in changed))

    def keep(self, attempts: Collection[AttemptKey]) -> None:
        """Forget all jobs except those of these attempts and those with an open session."""
        jobs = {key.job for key in attempts}
        self._entered = {key: runs for key, runs in self._entered.items() if key in attempts}
        self._jobs = {
            job: runs
            for job, runs in self._jobs.items()
            if job in jobs or any(run.reporters for run in runs.values())
        }

    # -- warnings -----------------------------------------------------------------------

    def conflicts(self) -> dict[str, int]:
        """Refused runs, by job."""
        refused = {
            job: sum(run.refused_at is not None for run in runs.values())
            for job, runs in self._jobs.items()
        }
        return {job: count for job, count in refused.items() if count}

    def warnings(self, now: AlignedNs) -> tuple[JobWarning, ...]:
        """A warning for each job that has had a conflict for some seconds."""
        contested = self._contested(now)
        return tuple(JobWarning(job, _text(job, runs, now)) for job, runs in contested)

    def refusals(self, now: AlignedNs) -> Iterator[Refusal]:
        """The ranks of the jobs that such a warning is about and that are not watched."""
        for job, runs in self._contested(now):
            refused = [run for run in runs.values() if run.refused_at is not None]
            ranks = sum(len(run.processes) for run in refused)
            yield Refusal(job, ranks, "another running job has the same name")

    def _contested(self, now: AlignedNs) -> Iterator[tuple[str, dict[str, _Run]]]:
        for job, runs in sorted(self._jobs.items()):
            if any(run.is_admitted and run.reporters for run in runs.values()) and any(
                run.refused_at is not None and now - run.refused_at >= _WARN_AFTER_NS
                for run in runs.values()
            ):
                yield job, runs

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self, runs: dict[str, _Run], known: _Run, rank: int, now: AlignedNs) -> None:
        """Decide after `known` has declared a process of `rank`. Cheap without a conflict."""
        others = [run for run in runs.values() if run is not known and run.is_admitted]
        if known.is_admitted:
            if any(_clash(known, other, rank, now) for other in others):
                known.refused_at = now
                self._settle(runs, now)
        elif known.refused_at is None:
            if any(_conflict(known, other, now) for other in others):
                known.refused_at = now
            else:
                known.is_admitted = True

    def _settle(self, runs: dict[str, _Run], now: AlignedNs) -> None:
        """Admit runs without conflict, in the order of arrival."""
        self._drop_ended(runs, now)
        live = [run for run in runs.values() if run.is_live(now)]
        for run in runs.values():
            if run not in live:
                run.refused_at = None
                if run.is_admitted and any(_overlap(run, other) for other in live):
                    run.order = next(self._orders)
                    run.suspend()
        chosen: list[_Run] = []
        for run in sorted(live, key=lambda run: run.order):
            if not any(_conflict(run, other, now) for other in chosen):
                chosen.append(run)
                run.refused_at = None
            elif run.refused_at is None:
                run.refused_at = now
        for run in live:
            if run.is_admitted and run not in chosen:
                run.suspend()
        for run in chosen:
            if not run.is_admitted:
                run.is_admitted = True
                for reporter in run.reporters:
                    for key in run.keys:
                        reporter.admit(key, run.run, now)
                    self._changed.append(reporter)

    @staticmethod
    def _drop_ended(runs: dict[str, _Run], now: AlignedNs) -> None:
        for name, run in list(runs.items()):
            if run.has_ended() and not run.is_live(now):
                run.suspend()
                del runs[name]


def _conflict(one: _Run, other: _Run, now: AlignedNs) -> bool:
    return any(_clash(one, other, rank, now) for rank in one.processes)


def _overlap(one: _Run, other: _Run) -> bool:
    """True if the runs have different processes for some rank, live or not."""
    return any(
        one.processes[rank].info.process != other.processes[rank].info.process
        for rank in one.processes.keys() & other.processes.keys()
    )


def _clash(one: _Run, other: _Run, rank: int, now: AlignedNs) -> bool:
    """True if both runs have a live process for the rank, and not the same one."""
    mine, theirs = one.processes.get(rank), other.processes.get(rank)
    if mine is None or theirs is None or mine.info.process == theirs.info.process:
        return False
    return mine.is_live(now) and theirs.is_live(now)


def _text(job: str, runs: dict[str, _Run], now: AlignedNs) -> str:
    """``two running jobs on vm are called train (pids 27, 41): ...``, the watched job first."""
    refused = sorted(
        (run for run in runs.values() if run.refused_at is not None), key=lambda run: run.order
    )
    admitted = [run for run in runs.values() if run.is_admitted]
    pairs = ((run, other, rank) for run in refused for other in admitted for rank in run.processes)
    clashes = sorted(
        (rank, other.order) for run, other, rank in pairs if _clash(run, other, rank, now)
    )
    rank = clashes[0][0] if clashes else 0
    watched = [run for run in admitted if not clashes or run.order == clashes[0][1]]
    named = [_first(run, rank) for run in (*watched[:1], *refused)]
    infos = [info for info in named if info is not None]
    count = {2: "two", 3: "three"}.get(len(infos), str(len(infos)))
    more = f" and {len(infos) - MAX_NAMED} more" if len(infos) > MAX_NAMED else ""
    if len({info.node for info in infos}) == 1:
        where = f" on {infos[0].node}"
        processes = "pids " + ", ".join(str(info.pid) for info in infos[:MAX_NAMED])
    else:
        where = ""
        processes = ", ".join(f"pid {info.pid} on {info.node}" for info in infos[:MAX_NAMED])
    first = f"; only the job of pid {infos[0].pid} is watched" if infos else ""
    return (
        f"{count} running jobs{where} are called {job} ({processes}{more}): "
        f"give each its own --job{first}"
    )


def _first(run: _Run, rank: int) -> RankInfo | None:
    """The process of the rank, or of any rank if it has none."""
    live = run.processes.get(rank) or next(iter(run.processes.values()), None)
    return live.info if live is not None else None
