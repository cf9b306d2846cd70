"""`frd analyze --memory`: files of memory telemetry, with dumps and traces if there are some."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Group

from frd.cli import FINDINGS_PRESENT
from frd.cli.commands.analyze.inputs import analyze_dumps, analyze_traces, refuse
from frd.cli.options import console, print_json, progress

if TYPE_CHECKING:
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.io.analysis import IoAnalysis
    from frd.offline.memory.analysis import MemoryAnalysis

_ONLY_DUMPS: Final = (
    "entries", "collectives", "ranks", "groups", "stacks", "html", "transform_ft",
    "group_world_size",
)  # fmt: skip
_DUMPS: Final = (*_ONLY_DUMPS, "prefix", "stall_after")
_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]iB)?", re.IGNORECASE | re.ASCII)


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


@dataclass(frozen=True, slots=True)
class MemoryCommand:
    """The options of `frd analyze --memory`; None was not given."""

    paths: Sequence[Path]
    """Files of telemetry, and folders of dumps of the same job."""
    traces: Sequence[Path]
    scheduler: str | None
    clock_uncertainty_s: float | None
    min_rise_bytes: int | None
    warmup_s: float | None
    prefix: str | None
    stall_after_s: float | None
    output: Path | None
    timeline: Path | None
    plot: Path | None

    def run(self, *, as_json: bool) -> int:
        from frd.readers.archives import is_archive

        folders = [path for path in self.paths if path.is_dir() or is_archive(path)]
        files = [path for path in self.paths if path not in folders]
        refuse(_ONLY_DUMPS if folders else _DUMPS, "applies to dumps: leave it out with --memory")
        if not files:
            raise click.UsageError(
                f"--memory: {folders[0]}: is a folder: name the files of telemetry, too; a folder "
                "has dumps of the same job"
            )
        self._check_outputs()
        dumps = analyze_dumps(folders, self.prefix, None, self.stall_after_s) if folders else None
        io = None
        if self.traces:
            dumps, io = analyze_traces(dumps, self.traces, self.scheduler)
        memory = self._load(files, dumps, io)
        if as_json:
            _print_json(memory, dumps, io)
        else:
            _print(memory, files, dumps, folders, io)
        self._write(memory, dumps, io)
        has_findings = bool(memory.findings) or (dumps is not None and bool(dumps.findings))
        return FINDINGS_PRESENT if has_findings else 0

    def _check_outputs(self) -> None:
        """Refuse before any work is done what cannot be written."""
        from frd.offline.output.memory.export import check_memory_export
        from frd.offline.output.memory.plot import check_plot
        from frd.store.new_path import check_new

        if self.output is not None:
            check_memory_export(self.output)
        if self.timeline is not None:
            check_new(self.timeline)
        if self.plot is not None:
            check_plot(self.plot)

    def _load(
        self, files: Sequence[Path], dumps: Analysis | None, io: IoAnalysis | None
    ) -> MemoryAnalysis:
        from frd.offline.memory.analyze import DEFAULT, MemoryOptions, load_memory
        from frd.offline.memory.same_run import other_times

        uncertainty_s, min_rise = self.clock_uncertainty_s, self.min_rise_bytes
        options = MemoryOptions(
            DEFAULT.clock_uncertainty_s if uncertainty_s is None else uncertainty_s,
            DEFAULT.min_rise_bytes if min_rise is None else min_rise,
            self.warmup_s,
            io,
        )
        with progress("reading telemetry (MiB)") as step:
            found = load_memory(files, options, lambda done, total: step(done >> 20, total >> 20))
        return replace(found, warnings=(*found.warnings, *other_times(found, dumps, io)))

    def _write(self, memory: MemoryAnalysis, dumps: Analysis | None, io: IoAnalysis | None) -> None:
        from frd.offline.output import io_tracks
        from frd.offline.output.export import export_timeline
        from frd.offline.output.memory.alignment import offsets_of
        from frd.offline.output.memory.export import export_memory, not_in
        from frd.offline.output.memory.plot import write_plot
        from frd.offline.output.memory.tracks import not_drawn

        if self.output is not None:
            with progress("writing samples") as step:
                offsets = offsets_of(dumps) if dumps is not None else None
                export_memory(memory, self.output, offsets, step)
            _say("written", str(self.output))
            _say("not in it", not_in(self.output))
        if self.timeline is not None:
            with progress("writing the timeline") as step:
                export_timeline(dumps, self.timeline, step, io, memory)
            _say("written", f"{self.timeline}: open it in https://ui.perfetto.dev")
            _say("not drawn", not_drawn(memory))
            _say("not drawn", io_tracks.not_drawn(io) if io is not None else "")
        if self.plot is not None:
            write_plot(memory, self.plot)
            _say("written", str(self.plot))


def _say(what: str, text: str) -> None:
    if text:
        click.echo(f"{what}: {text}", err=True)


def _print_json(memory: MemoryAnalysis, dumps: Analysis | None, io: IoAnalysis | None) -> None:
    out = memory.to_json()
    if dumps is not None:
        fault = dumps.fault or memory.fault
        out = dumps.to_json() | {"rises": out["rises"], "fault": fault, "memory": out}
    if io is not None:
        out["io"] = io.to_json()
    print_json(out)


def _print(
    memory: MemoryAnalysis,
    files: Sequence[Path],
    dumps: Analysis | None,
    folders: Sequence[Path],
    io: IoAnalysis | None,
) -> None:
    """The verdict on dumps, if there are any, and then that on memory."""
    from frd.cli.screens.memory_verdict import memory_verdict

    screen = console()
    if dumps is not None:
        from frd.cli.screens.verdict import verdict

        screen.print(Group(*verdict(dumps, folders)))
    screen.print(Group(*memory_verdict(memory, files)))
    if io is not None:
        from frd.cli.screens.io_report import io_report

        screen.print(Group(*io_report(io, with_starved=dumps is None)))
