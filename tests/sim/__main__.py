"""`python -m tests.sim`: many worlds with a progress bar and a summary, or one of them again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Unpack

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.sim.hooks import FORMS
from tests.sim.oracle import Violation
from tests.sim.run import Failure, How, Sum, attempt_all, drawn, live, shrink

_SHOWN = 20
"""Failures that are printed in full."""


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="First seed.")
@click.option("--seed", type=click.IntRange(0), help="Only this one, with what happens in it.")
@click.option("--only", help="With --seed: numbers of the events that happen, as 1,3.")
@click.option("--world", type=click.IntRange(2), help="With --seed: so many ranks.")
@click.option("--shrink", "smaller", is_flag=True, help="With --seed: leave out what can be.")
@click.option("--cluster", is_flag=True, help="Several replicas in place of one service.")
@click.option(
    "--hooks", type=click.Choice(("", *FORMS)), default="", help="Record NCCL jobs by hooks."
)
@click.option("--asks", is_flag=True, help="Agents are asked for stacks, dumps and waits.")
@click.option("--hidden", is_flag=True, help="The same; more ranks wait in what no recorder shows.")
@click.option("--mutate", is_flag=True, help="With --asks: some answers are false.")
@click.option("--strict", is_flag=True, help="With --asks: none that waits is named for sure.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="cores")
def main(
    seeds: int,
    first: int,
    seed: int | None,
    only: str | None,
    world: int | None,
    smaller: bool,
    jobs: int,
    **how: Unpack[How],
) -> None:
    """Simulate clusters by their seeds; exit 1 when one breaks a promise."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no worker is left
    if seed is None:
        sys.exit(_many(range(first, first + seeds), jobs, how))
    numbers = None if only is None else [int(number) for number in only.split(",") if number]
    if smaller:
        numbers = shrink(seed, world, **how)
        fewest = ",".join(map(str, numbers))
        click.echo(f"as little as fails: --seed {seed} --only {fewest or ','}")
    scenario = drawn(seed, world, **how)
    click.echo(f"{scenario.plan}\n{scenario.limits}")
    for event in scenario.events:
        if numbers is None or event.number in numbers:
            click.echo(f"  {event}, share {event.share}, for {event.length / 1e9:.1f} s")
    try:
        click.echo(live(seed, only=numbers, world=world, **how))
    except Violation as violation:
        click.echo(violation)
        sys.exit(1)


def _many(seeds: range, jobs: int, how: How) -> int:
    total, began = Sum(), time.monotonic()
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    show = Progress(*columns, console=console, disable=not console.is_terminal)
    with contextlib.suppress(KeyboardInterrupt), show as progress:  # then the sum of what there is
        task = progress.add_task("worlds", total=len(seeds))
        for result in attempt_all(seeds, jobs, **how):
            total.add(result)
            if isinstance(result, Failure) and len(total.failures) <= _SHOWN:
                console.print(str(result), markup=False, highlight=False, soft_wrap=True)
            failed = f", {len(total.failures)} failed" if total.failures else ""
            progress.update(task, advance=1, description=f"worlds{failed}")
            if not console.is_terminal and total.seeds % max(len(seeds) // 20, 1) == 0:
                console.print(f"{total.seeds} of {len(seeds)} worlds{failed}", highlight=False)
    for line in total.lines():
        click.echo(line)
    click.echo(f"took             {time.monotonic() - began:,.0f} s with {jobs} at a time")
    if total.failures:
        failed = " ".join(str(failure.seed) for failure in total.failures)
        click.echo(f"failed seeds     {failed}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    main()
