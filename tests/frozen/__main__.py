"""`python -m tests.frozen`: compares all verdicts with the frozen ones, or replaces those."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing import get_context

import click

from tests.frozen import data
from tests.frozen.sources import Source, sources
from tests.frozen.verdicts import Json

_CASES_A_PROCESS = 200


@click.command()
@click.option("--write", is_flag=True, help="Replace the frozen verdicts by the present ones.")
@click.option("--only", help="One source: lives, asked, corpus, incidents or stacks.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="cores")
def main(write: bool, only: str | None, jobs: int) -> None:
    """Compare the verdicts of all cases with the frozen ones; exit 1 if one differs."""
    changed = 0
    for source in sources():
        if not source.cases or only not in (None, source.name):
            continue
        now = dict(_computed(source, jobs))
        if write:
            data.write(source.name, now)
        else:
            frozen = data.read(source.name)
            told = [data.difference(source.name, name, frozen.get(name), now[name]) for name in now]
            differences = [one for one in told if one]
            changed += len(differences)
            click.echo("\n".join(differences), nl=bool(differences))
        click.echo(f"{source.name}: {len(now)} cases{' written' if write else ''}")
    if changed:
        click.echo(f"{changed} cases differ. {data.ADVICE}")
    sys.exit(1 if changed else 0)


def _computed(source: Source, jobs: int) -> Iterator[tuple[str, Json]]:
    # Not a ProcessPoolExecutor: that of Python 3.11 hangs once its workers have had their tasks.
    with get_context("spawn").Pool(jobs, maxtasksperchild=_CASES_A_PROCESS) as pool:
        asked = [(name, pool.apply_async(case)) for name, case in source.cases.items()]
        for name, result in asked:
            yield name, result.get()


if __name__ == "__main__":
    main()
