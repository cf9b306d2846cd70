"""The demo's scenarios: which script runs, which fault is injected, what frd has to find.

Data, and the comparison of findings with it; `frd.cli.commands.demo.stage` has the processes. A
scenario's script is an ordinary torch program that knows nothing of frd.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_RANKS = 4
_LAST: Final = 1_000
"""Stands for the last rank, whatever the size of the job."""
_RANK: Final = "--rank {}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the finding of a scenario has to report."""

    kind: str
    reason: str
    ranks: tuple[int, ...]
    """The suspects; a number above the last rank is the last rank."""
    summary: str = ""
    """Words that the summary must contain."""
    other_kinds: tuple[str, ...] = ()
    """Kinds of other findings with the same cause, and therefore the same suspects."""
    waits_for: str = ""
    """What the suspects wait for; empty: not compared."""
    object: str = ""
    """The end of the path, or of the name, of what they wait for."""

    def suspects(self, world: int) -> list[int]:
        return [min(rank, world - 1) for rank in self.ranks]

    def victims(self, world: int) -> list[int]:
        """For memory, a rank whose own memory does not rise is no victim."""
        others = set(range(world)).difference(self.suspects(world))
        return [] if self.reason == "memory" else sorted(others)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way for a job to hang (or not to)."""

    name: str
    title: str
    script: str
    options: str = ""
    """Of the script; ``{}`` is the first suspect."""
    expected: Expected | None = None
    """None: there must be no finding."""
    min_ranks: int = 2
    signal: signal.Signals | None = None
    """Sent to the first suspect once the job runs."""
    recovers: bool = False
    """The job goes on by itself, so the finding has to close."""
    is_replicated: bool = False
    """Several replicas of the service; the one that watches the job is killed."""
    policy: Mapping[str, float] = field(default_factory=dict)
    """Keys of the service's policy that fit a small job of a minute."""
    machine_bytes: int = 0
    """The agent takes the memory of this machine for so small; 0: it knows the truth."""

    def suspects(self, world: int) -> list[int]:
        return self.expected.suspects(world) if self.expected is not None else []

    def arguments(self, world: int) -> list[str]:
        """Command line of the script for a job of `world` ranks."""
        return self.options.format(*self.suspects(world)).split()


_WARM_SOON: Final = {"memory_warmup_s": 2}
_SMALL_MACHINE: Final = 4 << 30
"""Only a rise that threatens the machine is reported, and a demo must not cause one. Of so much,
320 MiB within seconds do."""

_SCENARIOS: Final = (
    Scenario(
        "missing_rank",
        "the data loader of one rank gets stuck",
        "missing_rank.py",
        _RANK,
        Expected("stall", "cpu_stuck", (2,)),
    ),
    Scenario(
        "cascade",
        "two layers of groups; most ranks wait in groups without the first cause",
        "cascade.py",
        expected=Expected("stall", "cpu_stuck", (_LAST,)),
        min_ranks=4,
    ),
    Scenario(
        "wrong_order",
        "two ranks enter two groups in opposite order",
        "wrong_order.py",
        expected=Expected("order", "order", (0, 1)),
    ),
    Scenario(
        "mismatch",
        "one rank calls another collective than its peers",
        "mismatch.py",
        _RANK,
        Expected("mismatch", "mismatch", (1,)),
        min_ranks=3,
    ),
    Scenario(
        "killed",
        "one rank is killed (SIGKILL)",
        "train.py",
        "--steps 1000000",
        Expected("rank_lost", "exited", (2,)),
        signal=signal.SIGKILL,
    ),
    Scenario(
        "frozen",
        "one rank is stopped (SIGSTOP)",
        "train.py",
        "--steps 1000000",
        Expected("stall", "unreachable", (2,)),
        signal=signal.SIGSTOP,
    ),
    Scenario(
        "gil",
        "one rank is inside C code that holds the interpreter lock",
        "gil.py",
        _RANK,
        Expected("stall", "cpu_stuck", (2,)),
    ),
    Scenario(
        "starved",
        "a data loader's worker of one rank reads a file that never comes",
        "starved.py",
        _RANK,
        Expected("stall", "cpu_stuck", (2,), waits_for="file_read", object="shard-17.tar"),
    ),
    Scenario(
        "lock",
        "one rank keeps the lock of a file, and two others wait for that lock",
        "lock.py",
        _RANK,
        Expected("stall", "cpu_stuck", (_LAST,), waits_for="sleep"),
        min_ranks=3,
    ),
    Scenario(
        "slow",
        "one rank is late by seconds, then joins",
        "slow.py",
        _RANK,
        Expected("stall", "cpu_stuck", (1,)),
        recovers=True,
    ),
    Scenario(
        "straggler",
        "nothing hangs, but one rank comes late to every step",
        "straggler.py",
        _RANK,
        Expected("straggler", "late", (2,)),
        policy={"straggler_window_s": 9, "straggler_min_lost_s": 0.5},
    ),
    Scenario(
        "memory",
        "one rank's host memory grows; no harm has been done yet",
        "grow.py",
        _RANK,
        Expected("memory_spike", "memory", (2,), summary="host memory"),
        policy=_WARM_SOON,
        machine_bytes=_SMALL_MACHINE,
    ),
    Scenario(
        "oom",
        "one rank exceeds its memory limit",
        "oom.py",
        _RANK,
        Expected(
            "oom", "memory", (2,), summary="host memory", other_kinds=("memory_spike", "rank_lost")
        ),
        policy=_WARM_SOON,
        machine_bytes=_SMALL_MACHINE,
    ),
    Scenario(
        "failover",
        "a rank gets stuck, and then the replica of the service that watches its job dies",
        "missing_rank.py",
        _RANK,
        Expected("stall", "cpu_stuck", (2,)),
        is_replicated=True,
    ),
    Scenario("healthy", "nothing is wrong", "train.py", "--steps 1000000"),
)
SCENARIOS: Final = {scenario.name: scenario for scenario in _SCENARIOS}


def disagreements(
    scenario: Scenario, world: int, findings: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Each way in which `findings` (JSON objects) differ from the scenario; empty if they agree."""
    expected = scenario.expected
    if expected is None:
        return [f"unexpected finding: {f['summary']}" for f in findings]
    others = [f for f in findings if f["kind"] in expected.other_kinds]
    main = [f for f in findings if f not in others]
    if len(main) != 1:
        return [f"{len(main)} findings instead of one"]
    (finding,) = main
    compared = [
        ("kind", finding["kind"], expected.kind),
        ("reason", "/".join(sorted({s["reason"] for s in finding["suspects"]})), expected.reason),
        ("victims", sorted(finding["victims"]), expected.victims(world)),
    ]
    for one in (finding, *others):
        suspects = sorted(suspect["rank"] for suspect in one["suspects"])
        compared.append(("suspects", suspects, expected.suspects(world)))
        compared += [
            (f"rank {suspect['rank']} waits for", *pair)
            for suspect in one["suspects"]
            for pair in _waits(suspect, expected)
        ]
    wrong = [
        f"{what}: {found} instead of {true}" for what, found, true in compared if found != true
    ]
    if expected.summary not in finding["summary"]:
        wrong.append(f"summary: {finding['summary']!r} does not contain {expected.summary!r}")
    return wrong


def _waits(suspect: Mapping[str, Any], expected: Expected) -> list[tuple[str, str]]:
    """What a suspect waits for, each part with what is expected."""
    if not expected.waits_for:
        return []
    found = suspect.get("waits_for", {})
    what = found.get("what", "")
    return [
        (found.get("kind", "nothing"), expected.waits_for),
        (expected.object if what.endswith(expected.object) else what, expected.object),
    ]
