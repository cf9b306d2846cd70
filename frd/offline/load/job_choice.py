"""Selects the dumps to analyze from the given folders: those of one job, oldest first.

A folder may be one dump, or hold several of `frd dump`, of one job or of many. Dumps of one attempt
of one job belong together: the last one is judged, and earlier ones show which ops waited already.
Jobs are never mixed: of several jobs the one that was dumped last is used, and the output lists
what was left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from frd.errors import ConfigError
from frd.flight.trace import Trace
from frd.offline.analysis.durations import last_dump_ns
from frd.offline.load.discovery import MAX_FILES, walk
from frd.offline.load.folder import Progress, load_trace
from frd.offline.load.frd_dump import SUMMARY, DumpFolder, made_by_frd
from frd.readers.archives import is_archive, unpacked

MAX_DUMPS = 8
"""The newest dumps of one job, which are read."""
_MAX_NAMED = 4
"""Folders that a warning names."""


def load_dumps(
    paths: Sequence[str | os.PathLike[str]],
    *,
    prefix: str | None = None,
    ranks: Collection[int] | None = None,
    progress: Progress | None = None,
    transform_ft: int | None = None,
) -> list[Trace]:
    """All dumps of one job in these folders and archives, oldest first; the arguments are those of
    `load_trace`, and `progress` is of one folder after the other.

    Raises:
        ConfigError: the folders are not of one job.
        DumpError: as `load_trace`.
    """
    warnings: list[str] = []
    folders: list[Path] = []
    with ExitStack() as stack:
        for path in map(Path, map(os.path.abspath, paths)):
            folder = stack.enter_context(unpacked(path)) if is_archive(path) else path
            folders += [folder] if prefix is not None else _dumps_in(folder, warnings)
        folders = list(dict.fromkeys(folders))
        if len(paths) > 1:
            _check_one_job(folders)
        load = partial(
            load_trace, prefix=prefix, ranks=ranks, progress=progress, transform_ft=transform_ft
        )
        traces = [*map(load, folders)]
    traces.sort(key=last_dump_ns)
    _check_common_ranks(traces)
    known = dict.fromkeys(warning for trace in traces for warning in trace.warnings)
    return [*traces[:-1], replace(traces[-1], warnings=(*warnings, *known))]


# -- folders that hold several dumps -----------------------------------------------------------


def _dumps_in(path: Path, warnings: list[str]) -> list[Path]:
    """The folder itself, or the dumps of `frd dump` in it, of one attempt of one job."""
    if made_by_frd(path, []) is not None or not path.is_dir():
        return [path]
    found = _made_below(path)
    if not found:
        return [path]
    found.sort(key=lambda made: made.taken_at or 0)
    key = found[-1].key
    mine = [made for made in found if made.key == key]
    others = [made for made in found if made.key != key]
    if others:
        names = ", ".join(str(made.root) for made in others[-_MAX_NAMED:])
        warnings.append(
            f"{path}: holds dumps of several jobs: took {key.job} attempt {key.attempt}, which was "
            f"dumped last; left out {len(others)}, such as {names}: name the folder that you mean"
        )
    if len(mine) > MAX_DUMPS:
        warnings.append(
            f"{path}: {len(mine)} dumps of {key.job}: left out all but the last {MAX_DUMPS}"
        )
    return [made.root for made in mine[-MAX_DUMPS:]]


def _made_below(path: Path) -> list[DumpFolder]:
    found: list[DumpFolder] = []
    seen = 0
    for parent, folders, names in walk(path, []):
        seen += len(names)
        if seen > MAX_FILES:
            break
        if SUMMARY in names and (made := made_by_frd(Path(parent), [])) is not None:
            found.append(made)
            folders.clear()
    return found


def _check_one_job(folders: Sequence[Path]) -> None:
    made = [one for path in folders if (one := made_by_frd(path, [])) is not None]
    for one in made[1:]:
        first = made[0].key
        if one.key != first:
            raise ConfigError(
                f"folders: {one.root}: is of {one.key.job} attempt {one.key.attempt}, "
                f"{made[0].root} of {first.job} attempt {first.attempt}: name dumps of one job"
            )


def _check_common_ranks(traces: Sequence[Trace]) -> None:
    for trace in traces[:-1]:
        if traces[-1].ranks.keys().isdisjoint(trace.ranks):
            raise ConfigError(
                f"folders: {trace.folder}: has no rank in common with {traces[-1].folder}: for one "
                "dump of several hosts name the folder that holds all of them"
            )
