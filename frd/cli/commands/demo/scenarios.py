"""The demo's scenarios: which script runs, which fault is injected, what the truth is.

Pure data and the comparison of findings with the truth; `frd.cli.commands.demo.stage` has the
processes. A scenario's script is an ordinary torch program that has never heard of frd.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_RANKS = 4


@dataclass(frozen=True, slots=True)
class Truth:
    """What was injected, and so what a finding has to say."""

    kind: str
    reason: str
    suspects: tuple[int, ...]
    victims: tuple[int, ...]
    says: str = ""
    """Words that the summary must contain."""
    besides: tuple[str, ...] = ()
    """Kinds of other findings with the same cause, and so the same suspects."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way for a job to hang (or not to)."""

    name: str
    title: str
    script: str
    truth: Callable[[int], Truth | None]
    """World size to truth; None: nothing may be found at all."""
    min_ranks: int = 2
    signal: signal.Signals | None = None
    """Sent to the first suspect once the job runs."""
    recovers: bool = False
    """The job goes on by itself, so the finding has to close."""
    policy: Mapping[str, float] = field(default_factory=dict)
    """Keys of the service's policy that fit a small job of a minute."""

    @property
    def of_memory(self) -> bool:
        truth = self.truth(DEFAULT_RANKS)
        return truth is not None and truth.reason == "memory"


def _others(world: int, *suspects: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(world) if rank not in suspects)


def _one(kind: str, reason: str, pick: Callable[[int], int]) -> Callable[[int], Truth]:
    def truth(world: int) -> Truth:
        return Truth(kind, reason, (pick(world),), _others(world, pick(world)))

    return truth


def _rank(rank: int) -> Callable[[int], int]:
    return lambda world: min(rank, world - 1)


def _last(world: int) -> int:
    return world - 1


def _memory(kind: str, *besides: str) -> Callable[[int], Truth]:
    """For memory, a rank whose own memory does not rise is no victim."""

    def truth(world: int) -> Truth:
        return Truth(kind, "memory", (_rank(2)(world),), (), "host memory", besides)

    return truth


_GROWS_BYTES_PER_S = 100e6
"""About as fast as the examples' rank does."""


def _soon_s() -> float:
    """Some times longer than that rank would take to use up the machine."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 86_400.0
    return max(600.0, 8 * pages * size / _GROWS_BYTES_PER_S)


SMALL_MEMORY: Mapping[str, float] = {
    "memory_warmup_s": 2,
    "memory_min_rise_share": 0.0001,
    "memory_horizon_s": round(_soon_s()),
}
"""By default a rise is one when it threatens the machine, which no demo should."""


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "missing_rank",
            "the data loader of one rank gets stuck",
            "missing_rank.py",
            _one("stall", "cpu_stuck", _rank(2)),
        ),
        Scenario(
            "cascade",
            "two layers of groups; most ranks wait in groups without the first cause",
            "cascade.py",
            _one("stall", "cpu_stuck", _last),
            min_ranks=4,
        ),
        Scenario(
            "wrong_order",
            "two ranks enter two groups in opposite order",
            "wrong_order.py",
            lambda world: Truth("order", "order", (0, 1), _others(world, 0, 1)),
        ),
        Scenario(
            "mismatch",
            "one rank calls another collective than its peers",
            "mismatch.py",
            _one("mismatch", "mismatch", _rank(1)),
            min_ranks=3,
        ),
        Scenario(
            "killed",
            "one rank is killed (SIGKILL)",
            "train.py",
            _one("rank_lost", "exited", _rank(2)),
            signal=signal.SIGKILL,
        ),
        Scenario(
            "frozen",
            "one rank is stopped (SIGSTOP)",
            "train.py",
            _one("stall", "unreachable", _rank(2)),
            signal=signal.SIGSTOP,
        ),
        Scenario(
            "gil",
            "one rank is inside C code that holds the interpreter lock",
            "gil.py",
            _one("stall", "cpu_stuck", _rank(2)),
        ),
        Scenario(
            "slow",
            "one rank is late by seconds, then joins",
            "slow.py",
            _one("stall", "cpu_stuck", _rank(1)),
            recovers=True,
        ),
        Scenario(
            "straggler",
            "nothing hangs, but one rank comes late to every step",
            "straggler.py",
            _one("straggler", "late", _rank(2)),
            policy={"straggler_window_s": 9, "straggler_min_lost_s": 0.5},
        ),
        Scenario(
            "memory",
            "one rank's host memory grows; no harm has been done yet",
            "grow.py",
            _memory("memory_spike"),
            policy=SMALL_MEMORY,
        ),
        Scenario(
            "oom",
            "one rank exceeds its memory limit",
            "oom.py",
            _memory("oom", "memory_spike", "rank_lost"),
            policy=SMALL_MEMORY,
        ),
        Scenario("healthy", "nothing is wrong", "train.py", lambda world: None),
    )
}

# Scripts that take the faulty rank on their command line.
_RANK_ARGUMENT = frozenset(
    {"missing_rank", "mismatch", "gil", "slow", "straggler", "memory", "oom"}
)


def arguments(scenario: Scenario, world: int) -> list[str]:
    """Command line of the scenario's script for a job of `world` ranks."""
    truth = scenario.truth(world)
    if truth is not None and scenario.name in _RANK_ARGUMENT:
        return ["--rank", str(truth.suspects[0])]
    if scenario.script == "train.py":
        return ["--steps", "1000000"]
    return []


def disagreements(truth: Truth | None, findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each way in which `findings` (JSON objects) differ from the truth; empty when they agree."""
    if truth is None:
        return [f"unexpected finding: {f['summary']}" for f in findings]
    besides = [f for f in findings if f["kind"] in truth.besides]
    findings = [f for f in findings if f not in besides]
    if len(findings) != 1:
        return [f"{len(findings)} findings instead of one"]
    (finding,) = findings
    said = [
        ("kind", finding["kind"], truth.kind),
        ("reason", "/".join(sorted({s["reason"] for s in finding["suspects"]})), truth.reason),
        ("victims", sorted(finding["victims"]), sorted(truth.victims)),
    ]
    said += [("suspects", _suspects(f), sorted(truth.suspects)) for f in (finding, *besides)]
    wrong = [f"{what}: {mine} instead of {true}" for what, mine, true in said if mine != true]
    if truth.says not in finding["summary"]:
        wrong.append(f"summary: {finding['summary']!r} does not say {truth.says!r}")
    return wrong


def _suspects(finding: Mapping[str, Any]) -> list[int]:
    return sorted(suspect["rank"] for suspect in finding["suspects"])
