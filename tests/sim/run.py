"""Worlds by their seeds: one, many in parallel, and a failing one made smaller."""

from __future__ import annotations

import gc
import logging
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypedDict, Unpack
from unittest.mock import patch

from frd.engine.memory.walk import trend
from tests.sim.cluster.scenario import draw_cluster
from tests.sim.cluster.world import ClusterWorld
from tests.sim.oracle import Violation
from tests.sim.scenario import HIDDEN_POLICY, LEAK_WINDOW, Scenario, draw
from tests.sim.world import Summary, World

MEMORY_FOLDER: Final = Path("/dev/shm")
_SEEDS_A_PROCESS: Final = 200
"""Then another process takes its place: worlds must share nothing but the code."""


class How(TypedDict, total=False):
    """How worlds are lived: the options of `python -m tests.sim` with these names."""

    cluster: bool
    hooks: str
    """As `JobPlan.hooks`, not in a cluster."""
    asks: bool
    hidden: bool
    mutate: bool
    strict: bool
    """As in `Scenario`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A world in which a promise was broken, or an exception was raised."""

    seed: int
    what: str
    where: str
    """The traceback."""
    how: How = field(default_factory=How)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what}\nagain: {command(self.seed, **self.how)}"


def command(seed: int, world: int | None = None, **how: Unpack[How]) -> str:
    """The command that repeats a world and makes it smaller."""
    flags = {"world": world, **how}
    texts = [
        f" --{name}" if value is True else f" --{name} {value}"
        for name, value in flags.items()
        if value
    ]
    return f".venv/bin/python -m tests.sim --seed {seed}{''.join(texts)} --shrink"


def drawn(
    seed: int, world: int | None = None, *, ends: bool = True, **how: Unpack[How]
) -> Scenario:
    """The world of a seed."""
    hidden = how.get("hidden", False)
    asks = hidden or how.get("asks", False)
    if how.get("cluster"):
        scenario = draw_cluster(seed, world, asks=asks)
    else:
        scenario = replace(draw(seed, world, how.get("hooks", ""), asks=asks), ends=ends)
    mutates, strict = how.get("mutate", False), how.get("strict", False)
    scenario = replace(scenario, hidden=hidden, mutates=mutates, strict=strict)
    return replace(scenario, policy=HIDDEN_POLICY) if hidden else scenario


def live(
    seed: int,
    *,
    only: Collection[int] | None = None,
    world: int | None = None,
    ends: bool = True,
    **how: Unpack[How],
) -> Summary:
    """
    `ends`: the job may end in another way than cleanly.

    Raises:
        Violation: a promise was broken. Any other exception is a fault of frd, or of the
            simulation.
    """
    folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    kind = ClusterWorld if how.get("cluster") else World
    with calm(), tempfile.TemporaryDirectory(prefix="frd-sim-", dir=folder) as name:
        try:
            return kind(drawn(seed, world, ends=ends, **how), Path(name), only).live()
        except Exception as error:
            error.add_note(f"again: {command(seed, world, **how)}")
            raise


@contextmanager
def calm() -> Iterator[None]:
    """Log nothing: worlds are full of faults. Collect garbage seldom, of the world only: what was
    there before is not looked at. Leaks show in seconds."""
    level, often = logging.root.manager.disable, gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        with patch.object(trend, "LEAK_WINDOW_NS", LEAK_WINDOW):
            yield
    finally:
        gc.collect()
        gc.unfreeze()
        gc.set_threshold(*often)
        logging.disable(level)


def attempt(seed: int, how: How) -> Summary | Failure:
    try:
        return live(seed, **how)
    except Exception as error:
        what = str(error) if isinstance(error, Violation) else repr(error)
        return Failure(seed, what, traceback.format_exc(), how)


def attempt_all(seeds: Iterable[int], jobs: int, **how: Unpack[How]) -> Iterator[Summary | Failure]:
    """As they come, in any order."""
    seeds, one = list(seeds), partial(attempt, how=how)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    # Not a ProcessPoolExecutor: that of Python 3.11 hangs once its workers have had their tasks.
    with get_context("spawn").Pool(jobs, maxtasksperchild=_SEEDS_A_PROCESS) as pool:
        yield from pool.imap_unordered(one, seeds)


def shrink(seed: int, world: int | None = None, **how: Unpack[How]) -> list[int]:
    """The fewest events, by number, with which the same promise is broken."""
    numbers = [event.number for event in drawn(seed, world, **how).events]
    again = partial(live, seed, world=world, **how)
    broken = _broken(again, numbers)
    for number in list(numbers):
        fewer = [other for other in numbers if other != number]
        if broken and _broken(again, fewer) == broken:
            numbers = fewer
    return numbers


def _broken(again: Callable[..., Summary], only: Collection[int]) -> str:
    """The broken promise; empty if none is broken."""
    try:
        again(only=only)
    except Violation as violation:
        return violation.promise
    except Exception as error:
        return repr(error)
    return ""


@dataclass(slots=True)
class Sum:
    """The sum of many worlds."""

    seeds: int = 0
    steps: int = 0
    rows: int = 0
    ranks: int = 0
    simulated_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    with_lines: Counter[str] = field(default_factory=Counter)
    with_waits: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, result: Summary | Failure) -> None:
        self.seeds += 1
        if isinstance(result, Failure):
            self.failures.append(result)
            return
        self.steps += result.steps
        self.rows += result.rows
        self.ranks += result.ranks
        self.simulated_s += result.simulated_s
        self.faults += result.faults
        self.troubles += result.troubles
        self.ends += result.ends
        self.findings += result.findings
        self.requests += result.requests
        self.opened += result.opened
        self.with_lines += result.with_lines
        self.with_waits += result.with_waits
        self.heard += result.heard

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"seeds            {self.seeds:,}, {len(self.failures):,} failed"
        yield f"ranks            {self.ranks:,}"
        yield f"simulated time   {self.simulated_s / 3600:,.1f} h in {self.steps:,} steps"
        yield f"rows             {self.rows:,}"
        for name, counts in (
            ("faults", self.faults),
            ("troubles", self.troubles),
            ("ends", self.ends),
            ("findings", self.findings),
            ("asked for", self.requests),
            ("heard", self.heard),
        ):
            totals = ", ".join(f"{what} {n:,}" for what, n in counts.most_common())
            yield f"{name:<16} {sum(counts.values()):,}: {totals or 'none'}"
        for mood, many in self.opened.items():
            lines, waits = self.with_lines[mood], self.with_waits[mood]
            says = f"with lines {lines:,} ({lines / many:.1%}), with waits {waits:,}"
            yield f"{f'agents {mood}':<16} {many:,} hangs opened, {says}"
