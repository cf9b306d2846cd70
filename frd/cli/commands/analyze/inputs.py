"""What `frd analyze` reads, whatever it is analyzed for, and which options do not fit it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from frd.cli.options import progress

if TYPE_CHECKING:
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.io.analysis import IoAnalysis
    from frd.offline.memory.analysis import MemoryAnalysis


MAX_SECONDS: Final = 1e9
"""30 years; more does not fit a time in ns."""

_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]iB)?", re.IGNORECASE | re.ASCII)


def check_seconds(
    _context: click.Context, _option: click.Parameter, value: float | None
) -> float | None:
    """A range of click accepts NaN and infinity."""
    if value is not None and not value <= MAX_SECONDS:
        raise click.BadParameter(f"{value:g}: out of range: write a number of seconds, as in 2.5")
    return value


def parse_size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """A number of bytes, with KiB, MiB or GiB after it or not."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text}: not a number of bytes: write 67108864 or 64MiB")
    size = round(float(match[1]) * _UNITS[(match[2] or "").upper()])
    if not 0 < size < 1 << 50:
        raise click.BadParameter(f"{text}: out of range: write 64MiB, for example")
    return size


def refuse(names: Collection[str], why: str) -> None:
    """Options of these names, as click has them, if the user gave one."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[-1]}: {why}")


def analyze_dumps(
    paths: Sequence[Path],
    prefix: str | None,
    group_world_size: int | None,
    stall_after: float | None,
) -> Analysis:
    from frd.offline.analysis.analyze import analyze
    from frd.offline.load.folder import load_dumps

    with progress("reading dumps") as step:
        *earlier, last = load_dumps(
            paths, prefix=prefix, progress=step, transform_ft=group_world_size
        )
    return analyze(last, stall_after_s=stall_after, earlier=earlier)


def analyze_traces(
    analysis: Analysis | None, traces: Sequence[Path], scheduler: str | None
) -> tuple[Analysis | None, IoAnalysis]:
    """Both; what starved a first cause is in both."""
    from frd.offline.io.analysis import load_traces
    from frd.offline.io.starved import with_starved

    known = {}
    if analysis is not None:
        ranks = analysis.trace.ranks.items()
        known = {rank: one.info for rank, one in ranks if one.info is not None}
    with progress("reading traces") as step:
        io = load_traces(
            traces,
            known=known,
            offsets_ns=analysis.clock_offsets_ns if analysis is not None else None,
            scheduler=scheduler,
            progress=step,
        )
    return (None, io) if analysis is None else with_starved(analysis, io)


def analyze_memory(
    files: Sequence[Path],
    dumps: Analysis | None,
    io: IoAnalysis | None,
    clock_uncertainty_s: float | None,
    min_rise_bytes: int | None,
    warmup_s: float | None,
) -> MemoryAnalysis:
    from frd.offline.memory.analyze import DEFAULT, MemoryOptions, load_memory, other_times

    options = MemoryOptions(
        DEFAULT.clock_uncertainty_s if clock_uncertainty_s is None else clock_uncertainty_s,
        DEFAULT.min_rise_bytes if min_rise_bytes is None else min_rise_bytes,
        warmup_s,
        io,
    )
    with progress("reading telemetry (MiB)", unit=1 << 20) as step:
        found = load_memory(files, options, step)
    return replace(found, warnings=(*found.warnings, *other_times(found, dumps, io)))
