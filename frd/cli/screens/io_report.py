"""What `frd analyze --traces` prints: times of each rank, slow files, open files, what is missing.

Draws an `IoAnalysis` and concludes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from frd.cli.screens.finding_panel import facts_table
from frd.cli.screens.verdict import period_text, warning_facts
from frd.forms import bytes_text, clock_text, counted, duration_text, span_text
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.identity import GUESS
from frd.offline.io.rank_report import Step
from frd.usage import plain

MAX_RANKS: Final = 16
MAX_ROWS: Final = 8
_LONG_NS: Final = 10_000_000_000
_RANKS: Final = ("rank", "fetch wait", "I/O", "compute", "unoverlapped I/O", "read", "written")
_FILES: Final = ("slowest files", "rank", "I/O", "bytes", "calls")
_STEPS: Final = (
    "slowest steps",
    "rank",
    "took",
    "fetch wait",
    "I/O",
    "compute",
    "unoverlapped",
    "bytes",
)
_UNCLOSED: Final = ("opened, never closed", "rank", "since (UTC)")


def io_report(io: IoAnalysis, *, with_starved: bool = True) -> Iterator[RenderableType]:
    """`with_starved` unless a verdict above has said what starved the first cause."""
    yield Text()
    for one in io.starved if with_starved else ():
        yield Text(plain(f"rank {one.rank}: {one.text}"), style="bold red")
    ranks = sorted(io.ranks, key=lambda one: -one.usage.unoverlapped_ns)[:MAX_RANKS]
    yield _table(_RANKS, [_rank_row(one) for one in io.ranks if one in ranks])
    if (more := len(io.ranks) - len(ranks)) > 0:
        yield Text(f"… {more} more with less unoverlapped I/O: --json has all of them", style="dim")
    files = [
        (plain(io.path(f)), _rank(r), _s(f.io_ns), bytes_text(f.nbytes), f"{f.ops:,}")
        for r, f in io.files()[:MAX_ROWS]
    ]
    if files:
        yield _table(_FILES, files)
    if steps := _slow_steps(io):
        yield _table(_STEPS, steps)
    unclosed = sorted(io.unclosed(), key=lambda pair: -pair[1].opened_ns)
    rows = [
        (plain(io.path(f)), _rank(r), clock_text(f.opened_ns) if f.opened_ns else "")
        for r, f in unclosed[:MAX_ROWS]
    ]
    if rows:
        yield _table(_UNCLOSED, rows)
    yield facts_table(_facts(io))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Text to the left, what follows it to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(header):
        table.add_column(
            name, justify="left" if number == 0 else "right", overflow="fold", no_wrap=number > 0
        )
    for row in rows:
        table.add_row(*row)
    return table


def _rank_row(one: RankIo) -> tuple[str, ...]:
    use = one.usage
    return (
        _name(one),
        *(_s(ns) for ns in (use.fetch_ns, use.io_ns, use.compute_ns, use.unoverlapped_ns)),
        bytes_text(use.bytes_read),
        bytes_text(use.bytes_written),
    )


def _name(one: RankIo) -> str:
    if one.rank is None:
        return plain(next(iter(one.processes)).label)
    guess = all(GUESS in evidence for evidence in one.processes.values())
    return f"{one.rank}, {GUESS}" if guess else str(one.rank)


def _slow_steps(io: IoAnalysis) -> list[tuple[str, ...]]:
    """The steps with the most unoverlapped I/O, if any have some."""
    steps: list[tuple[int | None, Step]] = [(r.rank, s) for r in io.ranks for s in r.usage.steps]
    steps = sorted(steps, key=lambda pair: -pair[1].unoverlapped_ns)[:MAX_ROWS]
    return [
        (
            f"epoch {s.epoch}, step {s.step}" if s.epoch >= 0 else f"step {s.step}",
            _rank(rank),
            _s(s.end_ns - s.begin_ns),
            *(_s(ns) for ns in (s.fetch_ns, s.io_ns, s.compute_ns, s.unoverlapped_ns)),
            bytes_text(s.bytes_read + s.bytes_written),
        )
        for rank, s in steps
        if s.unoverlapped_ns
    ]


def _rank(rank: int | None) -> str:
    return "?" if rank is None else str(rank)


def _s(ns: int) -> str:
    return span_text(ns) if ns < _LONG_NS else duration_text(ns / 1e9)


def _facts(io: IoAnalysis) -> Iterator[tuple[str, Text]]:
    yield "read", Text(f"{io.events:,} events of {counted(len(io.traces), 'trace')}")
    if known := [one.usage for one in io.ranks if one.usage.events]:
        first, last = min(u.first_ns for u in known), max(u.last_ns for u in known)
        yield "recorded", Text(period_text(first, last))
    unknown = sum(one.rank is None for one in io.ranks)
    if unknown:
        what = f"the rank of {unknown} traced process{'es' * (unknown > 1)}: see docs/io.md"
        yield "not known", Text(what, style="yellow")
    for text in io.not_listed():
        yield "not listed", Text(text, style="dim")
    if io.broken_lines:
        yield "broken", Text(f"{io.broken_lines:,} lines, left out", style="yellow")
    yield from warning_facts(io.warnings, "")
