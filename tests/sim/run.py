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
from typing import Final

from tests.sim.cluster.scenario import draw_cluster
from tests.sim.cluster.world import ClusterWorld
from tests.sim.oracle import Violation
from tests.sim.scenario import draw
from tests.sim.world import Summary, World

MEMORY_FOLDER: Final = Path("/dev/shm")
_SEEDS_A_PROCESS: Final = 200
"""Then another process takes its place: worlds must share nothing but the code."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A world in which a promise was broken, or an exception was raised."""

    seed: int
    what: str
    where: str
    """The traceback."""
    cluster: bool = False
    hooks: str = ""
    asks: bool = False
    mutate: bool = False

    def __str__(self) -> str:
        again = command(
            self.seed, cluster=self.cluster, hooks=self.hooks, asks=self.asks, mutate=self.mutate
        )
        return f"seed {self.seed}: {self.what}\nagain: {again}"


def command(
    seed: int,
    world: int | None = None,
    *,
    cluster: bool = False,
    hooks: str = "",
    asks: bool = False,
    mutate: bool = False,
) -> str:
    """The command that repeats a world and makes it smaller."""
    more = "" if world is None else f" --world {world}"
    more += " --cluster" if cluster else ""
    more += f" --hooks {hooks}" if hooks else ""
    more += " --asks" if asks else ""
    more += " --mutate" if mutate else ""
    return f".venv/bin/python -m tests.sim --seed {seed}{more} --shrink"


def live(
    seed: int,
    *,
    only: Collection[int] | None = None,
    world: int | None = None,
    cluster: bool = False,
    ends: bool = True,
    hooks: str = "",
    asks: bool = False,
    mutate: bool = False,
) -> Summary:
    """
    `ends`: the job may end in another way than cleanly. `hooks`: as `JobPlan.hooks`, not in a
    cluster. `asks`, `mutate`: as in `Scenario`.

    Raises:
        Violation: a promise was broken. Any other exception is a fault of frd, or of the
            simulation.
    """
    folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with calm(), tempfile.TemporaryDirectory(prefix="frd-sim-", dir=folder) as name:
        if cluster:
            drawn = replace(draw_cluster(seed, world, asks=asks), mutates=mutate)
            return ClusterWorld(drawn, Path(name), only).live()
        scenario = replace(draw(seed, world, hooks, asks=asks), ends=ends, mutates=mutate)
        return World(scenario, Path(name), only).live()


@contextmanager
def calm() -> Iterator[None]:
    """Log nothing: worlds are full of faults. Collect garbage seldom, of the world only: what was
    there before is not looked at."""
    level, often = logging.root.manager.disable, gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        gc.set_threshold(*often)
        logging.disable(level)


def attempt(
    seed: int, cluster: bool = False, hooks: str = "", asks: bool = False, mutate: bool = False
) -> Summary | Failure:
    try:
        return live(seed, cluster=cluster, hooks=hooks, asks=asks, mutate=mutate)
    except Exception as error:
        what = str(error) if isinstance(error, Violation) else repr(error)
        return Failure(seed, what, traceback.format_exc(), cluster, hooks, asks, mutate)


def attempt_all(
    seeds: Iterable[int],
    jobs: int,
    *,
    cluster: bool = False,
    hooks: str = "",
    asks: bool = False,
    mutate: bool = False,
) -> Iterator[Summary | Failure]:
    """As they come, in any order."""
    seeds, one = (
        list(seeds),
        partial(attempt, cluster=cluster, hooks=hooks, asks=asks, mutate=mutate),
    )
    if jobs <= 1:
        yield from map(one, seeds)
        return
    # Not a ProcessPoolExecutor: that of Python 3.11 hangs once its workers have had their tasks.
    with get_context("spawn").Pool(jobs, maxtasksperchild=_SEEDS_A_PROCESS) as pool:
        yield from pool.imap_unordered(one, seeds)


def shrink(
    seed: int,
    world: int | None = None,
    *,
    cluster: bool = False,
    hooks: str = "",
    asks: bool = False,
    mutate: bool = False,
) -> list[int]:
    """The fewest events, by number, with which the same promise is broken."""
    drawn = draw_cluster(seed, world, asks=asks) if cluster else draw(seed, world, asks=asks)
    numbers = [event.number for event in drawn.events]
    again = partial(live, seed, world=world, cluster=cluster, hooks=hooks, asks=asks, mutate=mutate)
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
        ):
            totals = ", ".join(f"{what} {n:,}" for what, n in counts.most_common())
            yield f"{name:<16} {sum(counts.values()):,}: {totals or 'none'}"
