"""Which files of a folder are the dumps of which ranks.

A dump does not contain its rank: its file name does. A number in a name is the rank only if the set
of files makes sense: the ranks differ, and they are ranks of the job. World sizes, dates, process
ids and numbers of hosts do not fulfil both. The files of one set may differ in other parts of the
name (the host), but two files of one set are not of the same rank; where they are, one set is taken
and the others are left out with a warning. Subfolders are hosts and have no other meaning. In a
folder that `frd dump` made, the files next to the dumps (job, identities, stacks, ranks without an
answer) are used, too.

Only names, sizes and the first bytes are read here, and a few dumps if names have several numbers.
Links to folders are not followed, and the number of files is bounded, because a user may name
``/``.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from frd.errors import DumpError
from frd.forms import counted, fold_ranks
from frd.model import MAX_WORLD_SIZE, AttemptKey
from frd.offline.load.frd_dump import META, DumpFolder, made_by_frd
from frd.readers.pool import is_archive, read_all

MAX_FILES = 200_000

_ENDINGS = frozenset({"json", "pkl", "pickle", "bin", "dump", "gz"})
_RANK = re.compile(r"(?<![a-z])(?<!local[_.-])r(?:ank)?[^a-z]*", re.IGNORECASE)
"""The text before a number that is a rank. `RANK` of `LOCAL_RANK` is not one."""
_MAX_NUMBERS = 16
"""Numbers of a name, from either end, that may be the rank."""
_GZIP = b"\x1f\x8b"
_FIRST_BYTES = (b"\x80", b"{", b"[", _GZIP)
_WORDS = (b"pg_config", b"pg_status", b"profiling_name", b"comm_lib_version", b"nccl_version")
"""At least one of them is in the first bytes of a dump."""
_HEAD_BYTES = 64 * 1024
_OF_THE_KERNEL = frozenset({"/dev", "/proc", "/sys"})
_SAMPLES = 4
"""Files of each shape that are checked for words of a dump, and dumps that are read for the groups
of the job."""
_MAX_LEFT = 8
"""Left-out files that are named in warnings; earlier attempts may have left thousands."""


class _Named(NamedTuple):
    """A file with numbers in its name."""

    path: Path
    texts: tuple[str, ...]
    """Around the numbers, so one more than these."""
    numbers: list[str]
    at: int = 0
    """Which of the numbers is the rank."""

    @property
    def rank(self) -> int:
        return int(self.numbers[self.at])

    @property
    def set_name(self) -> str:
        """The name without its rank."""
        numbers = [*self.numbers[: self.at], "*", *self.numbers[self.at + 1 :], ""]
        return "".join(map("".join, zip(self.texts, numbers, strict=True)))


@dataclass(frozen=True, slots=True)
class Found:
    """The dumps of one folder."""

    files: Mapping[int, Path]
    """By rank, in order of rank."""
    of: DumpFolder
    warnings: tuple[str, ...] = ()


def discover(
    path: Path, *, prefix: str | None = None, ranks: Collection[int] | None = None
) -> Found:
    """The dump files in `path`, a folder or a single file.

    Raises:
        DumpError: nothing there that could be a dump.
    """
    path = Path(os.path.abspath(path))
    try:
        if not path.exists():
            raise DumpError(f"{path}: no such folder: name the folder that holds the dumps")
        is_folder = path.is_dir()
    except OSError as error:
        message = f"{path}: {error.strerror}: name a folder that this user may read"
        raise DumpError(message) from None
    if not is_folder:
        return _single(path, prefix)
    warnings: list[str] = []
    made = made_by_frd(path, warnings)
    folder = made.folder if made else path
    left: list[str] = []
    archives: list[Path] = []
    found = _like_dumps(_named_files(folder, prefix, warnings, archives), left)
    if found:
        found = _together(folder, _with_ranks(found), left)
    files = _one_a_rank(found, ranks, left)
    if not files:
        asked = "" if ranks is None else " that was asked for (leave out --ranks to see all)"
        asked += "" if prefix is None else f" after {prefix!r} (leave out --prefix to find others)"
        packed = f"; or unpack or name an archive, like {min(archives)}" if archives else ""
        raise DumpError(
            f"{path}: no file with a rank in its name{asked}: "
            f"name the folder that holds the dumps, one file a rank{packed}"
        )
    warnings += left[:_MAX_LEFT]
    if len(left) > _MAX_LEFT:
        warnings.append(f"{len(left) - _MAX_LEFT} more files and folders: left out, too")
    if made is None:
        made = DumpFolder(_common(found), path, AttemptKey(path.name, 0))
    return Found(files, made, tuple(warnings))


def has_dumps(path: Path) -> bool:
    """True if `path` is a dump, or a folder with dumps."""
    if not path.is_dir():
        return _is_dump(path)
    return any(map(_are_dumps, _by_shape(_named_files(path, None, [], [])).values()))


# -- any folder --------------------------------------------------------------------------------


def _single(path: Path, prefix: str | None) -> Found:
    named = _named(path, _number_after(prefix))
    rank = _with_ranks([named])[0].rank if named.numbers else 0
    rank = rank if rank < MAX_WORLD_SIZE else 0
    warning = f"{path}: a single dump, taken as rank {rank}'s: name its folder to see all ranks"
    folder = DumpFolder(path.parent, path.parent, AttemptKey(path.parent.name, 0))
    return Found({rank: path}, folder, (warning,))


def _number_after(prefix: str | None) -> re.Pattern[str]:
    return re.compile(rf"(?<={re.escape(prefix or '')})(\d+)")


def _named(path: Path, number: re.Pattern[str]) -> _Named:
    name = path.name
    stem, _, ending = name.rpartition(".")
    while stem and ending in _ENDINGS:
        name = stem
        stem, _, ending = name.rpartition(".")
    parts = number.split(name)
    return _Named(path, tuple(parts[::2]), parts[1::2])


def _named_files(
    folder: Path, prefix: str | None, warnings: list[str], archives: list[Path]
) -> list[_Named]:
    """All files that may have a rank in their name. Archives are added to `archives`."""
    found: list[_Named] = []
    number = _number_after(prefix)
    seen = 0
    for parent, _, names in walk(folder, warnings):
        paths = [Path(parent, name) for name in names[: MAX_FILES - seen]]
        archives += filter(is_archive, paths)
        named = (_named(path, number) for path in paths if not is_archive(path))
        found += [one for one in named if one.numbers]
        seen += len(names)
        if seen > MAX_FILES:
            warnings.append(f"{folder}: more than {MAX_FILES} files: the others are left out")
            break
    return found


def walk(folder: Path, warnings: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, in order, without folders of the kernel and metadata of `frd dump`."""

    def unreadable(error: OSError) -> None:
        warnings.append(f"{error.filename}: {error.strerror}: left out")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(
            name
            for name in folders
            if not name.endswith(META) and os.path.join(parent, name) not in _OF_THE_KERNEL
        )
        yield parent, folders, names


def _by_shape(found: Iterable[_Named]) -> Mapping[str, list[_Named]]:
    """By the name without its numbers."""
    shapes: dict[str, list[_Named]] = defaultdict(list)
    for one in found:
        shapes["*".join(one.texts)].append(one)
    return shapes


def _like_dumps(found: Iterable[_Named], left: list[str]) -> list[_Named]:
    """Files of all shapes that are dumps; if none is, of the most frequent shape."""
    shapes = _by_shape(found)
    order = sorted(shapes, key=lambda shape: (-len(shapes[shape]), shape))
    best = [shape for shape in order if _are_dumps(shapes[shape])] or order[:1]
    left += [
        _left_out(shapes[shape], shape, best[0])
        for shape in order
        if shape.endswith("*") and shape not in best
    ]
    return [one for shape in best for one in shapes[shape]]


def _left_out(files: Sequence[_Named], name: str, chosen: str) -> str:
    return (
        f"{files[0].path}: {counted(len(files), 'file')} named {name!r} as well as {chosen!r}: "
        "left out, choose with --prefix"
    )


def _are_dumps(files: Sequence[_Named]) -> bool:
    return any(_is_dump(one.path) for one in files[:_SAMPLES])


def _is_dump(path: Path) -> bool:
    """True if the file begins as a dump and has words of the format."""
    try:
        if not path.is_file():
            return False  # opening a device may have an effect, a pipe blocks
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(_HEAD_BYTES) or b""
    except OSError:
        return False
    if not head.lstrip().startswith(_FIRST_BYTES):
        return False
    if head.startswith(_GZIP):
        with suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    return any(word in head for word in _WORDS)


# -- which number is the rank ------------------------------------------------------------------


def _with_ranks(found: list[_Named]) -> list[_Named]:
    """Of all ways to take one number of each name, the one that gives most ranks of the job. What
    the dumps and the words next to the numbers say decides between equals.

    Raises:
        DumpError: several ways are equally good, and give different ranks.
    """
    ways = [
        [one._replace(at=at % len(one.numbers)) for one in found]
        for k in range(min(_MAX_NUMBERS, *(len(one.numbers) for one in found)))
        for at in (k, -1 - k)
    ]
    words = [_after_word(one.texts) for one in found]
    if min(words) >= 0:
        ways.append([one._replace(at=at) for one, at in zip(found, words, strict=True)])
    by_ranks = {tuple(one.rank for one in way): way for way in ways}
    # What is the same in all names is a date, or the size of the world.
    varied = {ranks: way for ranks, way in by_ranks.items() if len(set(ranks)) > 1}
    by_ranks = varied or by_ranks
    if len(by_ranks) == 1:
        return next(iter(by_ranks.values()))
    world = _world_size(found)

    def score(taken: tuple[int, ...]) -> tuple[int, ...]:
        ranks = {rank for rank in taken if rank < MAX_WORLD_SIZE}
        in_world = sum(rank < (world or len(ranks)) for rank in ranks)
        after_word = sum(one.at == at for one, at in zip(by_ranks[taken], words, strict=True))
        return in_world, len(ranks), after_word

    first, second, *_ = sorted(by_ranks, key=score, reverse=True)
    if score(first) == score(second):
        at = next(at for at, rank in enumerate(first) if rank != second[at])
        raise DumpError(
            f"{found[at].path} ({len(found)} files): rank {first[at]} or {second[at]}: "
            "give the text before the rank with --prefix"
        )
    return by_ranks[first]


def _after_word(texts: Sequence[str]) -> int:
    """The number after the word `rank`, -1 if there is none."""
    return next((at for at, text in enumerate(texts[:-1]) if _RANK.search(text)), -1)


def _world_size(found: Sequence[_Named]) -> int:
    """By the groups in some of these dumps; 0 if unknown."""
    paths = {at: one.path for at, one in enumerate(found[:: -(-len(found) // _SAMPLES)])}
    gained = [reading.gained[0] for reading in read_all(paths) if reading.gained]
    return max((1 + max(info.ranks, default=-1) for infos in gained for info in infos), default=0)


# -- which files are of one set ----------------------------------------------------------------


def _one_a_rank(
    found: Iterable[_Named], ranks: Collection[int] | None, left: list[str]
) -> dict[int, Path]:
    """Of several files of one rank, the one that was written last."""
    files: dict[int, Path] = {}
    for one in sorted(found, key=lambda one: (one.rank, -written_ns(one.path), str(one.path))):
        if one.rank >= MAX_WORLD_SIZE:
            left.append(f"{one.path}: rank {one.rank}: not below {MAX_WORLD_SIZE}: left out")
        elif ranks is None or one.rank in ranks:
            last = files.setdefault(one.rank, one.path)
            if last != one.path:
                left.append(f"{one.path}: rank {one.rank} again: left out, {last} is newer")
    return files


def _together(folder: Path, found: Iterable[_Named], left: list[str]) -> list[_Named]:
    """The files of one job below a folder. Subfolders with different ranks are hosts; subfolders
    with the same ranks are several dumps, of which the newest is taken."""
    parts: dict[str, list[_Named]] = defaultdict(list)
    for one in found:
        inside = one.path.relative_to(folder).parts
        parts[inside[0] if len(inside) > 1 else ""].append(one)
    some = [
        _together(folder / name, files, left) if name else _one_set(files, left)
        for name, files in parts.items()
    ]
    # Where times are equal, the higher number is newer.
    some.sort(key=lambda files: (_newest_ns(files), _natural(files[0].path)), reverse=True)
    kept, others = _merged(some)
    _check_not_hosts(folder, some, others)
    for files in others:
        ranks = {one.rank for one in files}
        noun = "rank" if len(ranks) == 1 else "ranks"
        left.append(
            f"{_common(files)}: dumps of {noun} {fold_ranks(ranks)} again: left out, "
            f"those in {_common(kept)} are newer: name the folder that you mean"
        )
    return kept


def _one_set(found: list[_Named], left: list[str]) -> list[_Named]:
    """Of files in one folder that have the same ranks and differ in the rest of their names, those
    of the largest set.

    Raises:
        DumpError: most files are of other sets, or as many are of one that is not older.
    """
    sets: dict[str, list[_Named]] = defaultdict(list)
    for one in found:
        sets[one.set_name].append(one)
    order = sorted(sets, key=lambda name: (-len(sets[name]), -_newest_ns(sets[name]), name))
    kept, others = _merged(sets[name] for name in order)
    left += [_left_out(files, files[0].set_name, order[0]) for files in others]
    _check_not_hosts(found[0].path.parent, [*sets.values()], others)
    # Names that differ in numbers only are of attempts or times: the newest is the last.
    newest_ns = _newest_ns(kept)
    is_last = len(_by_shape(found)) == 1 and all(_newest_ns(of) < newest_ns for of in others)
    if len(found) - len(kept) >= len(kept) + is_last:
        raise DumpError(
            f"{found[0].path.parent}: {len(found)} files of the same ranks, with {len(order)} "
            f"names like {', '.join(map(repr, order[:_SAMPLES]))}: choose one with --prefix"
        )
    return kept


def _check_not_hosts(folder: Path, parts: Sequence[list[_Named]], again: object) -> None:
    """Parts with the same numbers, if any are there `again`, must each be a dump of the whole job.

    Raises:
        DumpError: only together they have a number for each rank: these count the ranks of a host.
    """
    found = [one for files in parts for one in files]
    a_host = 1 + max(one.rank for one in found)
    if again and len(parts) * a_host == (world := _world_size(found)):
        raise DumpError(
            f"{folder}: files like {parts[0][0].path} have ranks of a host, {len(parts)} times up "
            f"to {a_host - 1}, the job has {world}: rename all with global ranks; if each "
            "folder is a dump of the job, name one"
        )


def _merged(parts: Iterable[list[_Named]]) -> tuple[list[_Named], list[list[_Named]]]:
    """The parts with different ranks as one; and those that mostly have ranks of parts before."""
    kept: list[_Named] = []
    taken: set[int] = set()
    others = []
    for files in parts:
        mine = {one.rank for one in files}
        if 2 * len(mine & taken) >= min(len(mine), len(taken)) > 0:
            others.append(files)
        else:
            kept += files
            taken |= mine
    return kept, others


def _newest_ns(files: Iterable[_Named]) -> int:
    return max(written_ns(one.path) for one in files)


def _natural(path: Path) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _common(files: Iterable[_Named]) -> Path:
    """The innermost folder that holds all of them."""
    return Path(os.path.commonpath([one.path.parent for one in files]))


def written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
