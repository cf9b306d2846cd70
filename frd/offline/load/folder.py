"""The dumps to analyze as one `Trace`.

A given folder may be one dump, or hold several of `frd dump`, of one job or of many. Dumps of one
attempt of one job belong together: the last one is judged, and earlier ones show which ops waited
already. Jobs are never mixed: of several jobs the one that was dumped last is used, and the output
lists what was left out.

Files are read by all cores, each into columns over dictionaries of its reader; this module joins
the dictionaries and translates the indexes. Group members that are missing in one dump are
completed from others. Nothing is matched or judged here. A file that cannot be read is a warning
that names it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from frd.engine.findings import text
from frd.errors import ConfigError, DumpError
from frd.flight.trace import NARROW, Dictionaries, RankTrace, Trace
from frd.forms import fold_ranks
from frd.model import MAX_WORLD_SIZE, Activity, GroupInfo, Int32s
from frd.offline.analysis.durations import last_dump_ns
from frd.offline.load.discovery import MAX_FILES, Found, discover, walk, written_ns
from frd.offline.load.frd_dump import SUMMARY, DumpFolder, made_by_frd, rank_metadata
from frd.offline.load.numbering import numbered
from frd.readers.pool import Reading, is_archive, read_all, unpacked

Progress = Callable[[int, int], None]
"""Called with the number of files that are done, and of all."""

MAX_WARNINGS_A_FILE = 8
_ACROSS = re.compile(r"(?:torchft_quorum_\d+_rank_(\d{1,7}))?", re.ASCII)
"""Groups across replicas of torchft."""
MAX_DUMPS = 8
"""The newest dumps of one job, which are read."""
_MAX_NAMED = 4
"""Folders that a warning names."""


def load_trace(
    path: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    ranks: Collection[int] | None = None,
    progress: Progress | None = None,
    transform_ft: int | None = None,
) -> Trace:
    """All dumps in a folder.

    Args:
        path: a folder (its subfolders are hosts), one that `frd dump` made, or a single dump.
        prefix: what file names start with, before the rank; inferred when absent.
        ranks: load only these.
        progress: called after every file.
        transform_ft: ranks in a torchft replica group; each replica's groups, numbered from 0 by
            torchft, get global ranks.

    Raises:
        DumpError: no folder, nothing in it that could be a dump, or no readable one.
    """
    found = discover(Path(path), prefix=prefix, ranks=ranks)
    warnings = list(found.warnings)
    warnings += [f"rank {rank}: no dump: {why}" for rank, why in sorted(found.of.failed.items())]
    joined = _Join(found, transform_ft, warnings)
    total = len(found.files)
    for done, reading in enumerate(read_all(found.files), 1):
        joined.add(reading)
        if progress is not None:
            progress(done, total)
    return joined.trace()


class _Join:
    """Columns of many files, over one set of dictionaries."""

    def __init__(self, found: Found, replica_size: int | None, warnings: list[str]) -> None:
        self._found = found
        self._replica_size = replica_size
        self._warnings = warnings
        self._ranks: dict[int, RankTrace] = {}
        self._standing: dict[int, Activity] = {}
        self._into = Dictionaries()
        self._lookups: dict[int, _Lookup] = defaultdict(lambda: _Lookup(self._into))
        self._failures: list[str] = []

    def add(self, reading: Reading) -> None:
        lookup = self._lookups[reading.reader]
        lookup.learn(reading.gained)
        rank, source = reading.rank, str(self._found.files[reading.rank])
        columns = reading.columns
        if columns is None:
            self._failures.append(reading.error)
            self._warnings.append(reading.error)
            return
        self._warn(source, columns.warnings)
        if columns.holes:
            self._warnings.append(
                f"{source}: entries of rank {rank} cannot be read: from then on it is unknown what "
                "the rank did, unless later entries or counters show it"
            )
        metadata = rank_metadata(self._found.of.meta, rank, self._warnings)
        if metadata.activity != Activity():
            self._standing[rank] = metadata.activity
        times = metadata.times
        narrow = lookup.translate(columns.narrow)
        (described,) = lookup.translate([np.array(columns.groups, np.int32)])
        self._ranks[rank] = RankTrace(
            rank=rank,
            source=source,
            version=columns.version,
            info=metadata.info,
            clock_offset_ns=times.clock_offset_ns,
            clock_uncertainty_ns=times.clock_uncertainty_ns,
            status=columns.status,
            holes=columns.holes,
            member_of=tuple(described.tolist()),
            dumped_from_ns=times.dumped_from_ns,
            dumped_until_ns=times.dumped_until_ns or written_ns(self._found.files[rank]),
            **columns.rows(narrow),
        )

    def trace(self) -> Trace:
        """The trace of all readings.

        Raises:
            DumpError: none of the files could be read.
        """
        if not self._ranks:
            raise DumpError(_all_failed(self._failures, self._found.of.root))
        ranks = dict(sorted(self._ranks.items()))
        if self._replica_size is not None:
            self._with_global_ranks(ranks, self._replica_size)
        self._complete_groups(ranks)
        groups = self._into.groups.items
        numbered(ranks, groups, self._into.names.items, self._warnings)
        outside = self._check_members(ranks)
        return Trace(
            key=self._found.of.key,
            ranks=ranks,
            groups=groups,
            names=self._into.names.items,
            signatures=self._into.signatures.items,
            stacks=self._into.stacks.items,
            threads=self._into.threads.items,
            world_size=_world_size(ranks.values(), groups),
            warnings=tuple(self._warnings),
            standing=dict(sorted(self._standing.items())),
            taken_at=self._found.of.taken_at,
            stall_after_s=self._found.of.stall_after_s,
            folder=str(self._found.of.root),
            outside=outside,
        )

    def _check_members(self, ranks: Mapping[int, RankTrace]) -> dict[int, list[int]]:
        """The groups that each rank recorded in although they exclude it.

        Raises:
            DumpError: no rank is in any group.
        """
        groups = self._into.groups.items
        members = [frozenset(info.ranks) for info in groups]
        outside = {}
        for rank, trace in ranks.items():
            used = np.flatnonzero(np.bincount(trace.group)).tolist()
            if foreign := [at for at in used if members[at] and rank not in members[at]]:
                outside[rank] = foreign
        if outside:
            hint = _outside_text({r: [groups[at] for at in of] for r, of in outside.items()})
            self._warnings.append(f"{self._found.of.root}: {hint}")
        everyone = frozenset[int]().union(*members)
        # Hosts are often counted from 1.
        if everyone and (everyone.isdisjoint(ranks) or ranks.keys() == {r + 1 for r in everyone}):
            raise DumpError(
                f"{next(iter(ranks.values())).source} ({len(ranks)} files): the names say "
                f"{text.ranks([*ranks])}, the groups are of {text.ranks([*everyone])}: give the "
                f"text before the rank with --prefix, or rename{f'; {hint}' if outside else ''}"
            )
        return outside

    def _warn(self, source: str, warnings: tuple[str, ...]) -> None:
        shown = [f"{source}: {warning}" for warning in warnings[:MAX_WARNINGS_A_FILE]]
        if (more := len(warnings) - len(shown)) > 0:
            shown.append(f"{source}: {more} more warnings like these")
        self._warnings += shown

    def _with_global_ranks(self, ranks: dict[int, RankTrace], size: int) -> None:
        """Groups of torchft replicas of so many ranks, which number theirs from 0."""
        local, table = self._into.groups.items, Dictionaries().groups
        shifted: dict[int, Int32s] = {}
        for rank, trace in ranks.items():
            first = rank // size * size
            if first not in shifted:
                groups = (replace(of, ranks=_global_ranks(of, first, size)) for of in local)
                shifted[first] = np.array([table.index(of) for of in groups], np.int32)
            to = shifted[first]
            member_of = tuple(to[[*trace.member_of]].tolist())
            ranks[rank] = replace(trace, group=to[trace.group], member_of=member_of)
        self._into = replace(self._into, groups=table)

    def _complete_groups(self, ranks: dict[int, RankTrace]) -> None:
        """Members that are missing in a rank's own dump, if exactly one other group fits.

        NCCL records a group's members once its communicator exists, so the dump of a rank that
        never got so far lacks them.
        """
        groups = self._into.groups.items
        by_name: dict[str, list[int]] = defaultdict(list)
        for at, info in enumerate(groups):
            if info.ranks:
                by_name[info.name].append(at)
        unknown = [at for at, info in enumerate(groups) if not info.ranks and by_name[info.name]]
        for rank, trace in ranks.items() if unknown else ():
            lookup = np.arange(len(groups), dtype=np.int32)
            for at in unknown:
                fitting = [to for to in by_name[groups[at].name] if rank in groups[to].ranks]
                if len(fitting) == 1:
                    lookup[at] = fitting[0]
            ranks[rank] = replace(trace, group=lookup[trace.group])


class _Lookup:
    """Translates indexes of one reader to those of the trace."""

    def __init__(self, into: Dictionaries) -> None:
        self._into = into
        # -1 (no stack, no thread) finds the last place, which holds -1.
        self._to = [np.array([-1], np.int32) for _ in NARROW]

    def learn(self, gained: Sequence[list[Any]]) -> None:
        """Add what the reader's tables have gained."""
        for at, (table, values) in enumerate(zip(self._into.tables, gained, strict=False)):
            if values:
                added = np.array([*map(table.index, values), -1], np.int32)
                self._to[at] = np.concatenate((self._to[at][:-1], added))

    def translate(self, narrow: Iterable[Int32s]) -> list[Int32s]:
        """The first rows of `narrow`, or all, with indexes of the trace."""
        return [to[row] for to, row in zip(self._to, narrow, strict=False)]


def _world_size(ranks: Iterable[RankTrace], groups: Iterable[GroupInfo]) -> int:
    sizes = [trace.info.world_size for trace in ranks if trace.info is not None]
    return max([0, *sizes, *(info.ranks[-1] + 1 for info in groups if info.ranks)])


def _all_failed(failures: list[str], folder: Path) -> str:
    if len(failures) == 1:
        return failures[0]
    return (
        f"{failures[0]} (and {len(failures) - 1} more files, none of which can be read): name the "
        f"folder that holds the dumps, {folder} does not seem to"
    )


# -- torchft ---------------------------------------------------------------------------------------


def _global_ranks(info: GroupInfo, first: int, size: int) -> tuple[int, ...]:
    """Of a group in a dump of the replica of `size` ranks that begins with global rank `first`.

    A replica numbers its ranks from 0. The groups across replicas are called
    ``torchft_quorum_<id>_rank_<k>``, or have no name for k = 0; their members are rank k of each
    replica. Older versions number these by replica, newer ones by global rank.
    """
    ranks = info.ranks
    if across := _ACROSS.fullmatch(info.name):
        within = int(across[1] or 0)
        if within < size and any(rank % size != within for rank in ranks):
            ranks = tuple(replica * size + within for replica in ranks)
    elif ranks and ranks[-1] < size:
        ranks = tuple(rank + first for rank in ranks)
    return ranks if not ranks or ranks[-1] < MAX_WORLD_SIZE else info.ranks


def _outside_text(outside: Mapping[int, Sequence[GroupInfo]]) -> str:
    """What to do about ranks that recorded in groups, not empty, that exclude them."""
    info = next(iter(outside.values()))[0]
    return (
        f"{text.ranks([*outside])} recorded in groups that exclude them, as in "
        f"{text.clean(info.label)!r} of ranks {fold_ranks(info.ranks)}: these ops are not judged: "
        "for replicas of N ranks of torchft use --transform-ft --group-world-size N, "
        "move files of other jobs away"
    )


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
