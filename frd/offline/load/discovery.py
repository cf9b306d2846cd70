"""Which files of a folder are the dumps of which ranks.

A dump does not contain its rank: its file name does. Names are a prefix, the rank, and perhaps an
ending (``.json``, ``.gz``); the prefix is the one whose files look like dumps and that most files
share. Subfolders are hosts and have no other meaning. In a folder that `frd dump` made, the files
next to the dumps (job, identities, stacks, ranks without an answer) are used, too.

Only names, sizes and the first bytes are read here. Links to folders are not followed, and
the number of files is bounded, because a user may name ``/``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frd.errors import DumpError
from frd.forms import fold_ranks
from frd.model import MAX_WORLD_SIZE, AttemptKey
from frd.offline.load.frd_dump import META, DumpFolder, made_by_frd

MAX_FILES = 200_000

_ENDING = r"(?:\.(?:json|pkl|pickle|bin|dump|gz))*"
_NAME = re.compile(rf"(?P<prefix>.*?)(?<!\d)(?P<rank>\d+){_ENDING}", re.DOTALL)
_FIRST_BYTES = (b"\x80", b"{", b"[", b"\x1f\x8b")
_WORDS = (b"pg_config", b"pg_status", b"profiling_name", b"comm_lib_version", b"nccl_version")
"""At least one of them is in the first bytes of a dump that is not compressed."""
_HEAD_BYTES = 64 * 1024
_OF_THE_KERNEL = frozenset({"/dev", "/proc", "/sys"})
_SAMPLES = 4
"""Files of each prefix that are checked for words of a dump."""
_MAX_OLDER = 8
"""Left-out files that are named in warnings; earlier attempts may have left thousands."""


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
    candidates = _candidates(folder, prefix, warnings)
    names: list[str] = []
    if prefix is None and len(candidates) > 1:
        _keep_one_prefix(candidates, names)
    found = [item for files in candidates.values() for item in files]
    older: list[str] = []
    found = _together(folder, found, older) if found else found
    _warn_of_some(older, "folders of older dumps", warnings)
    warnings += names
    files = dict(_one_a_rank(found, ranks, warnings))
    if not files:
        raise DumpError(_nothing(path, prefix, ranks, bool(found)))
    if made is None:
        made = DumpFolder(common_folder(files.items()), path, AttemptKey(path.name, 0))
    return Found(files, made, tuple(warnings))


def has_dumps(path: Path) -> bool:
    """True if `path` is a dump, or a folder with dumps; compressed ones only if frd made it."""
    if not path.is_dir():
        return _likeness(path) > 1
    if made_by_frd(path, []) is not None:
        return True
    numbered = _candidates(path, None, []).values()
    return any(_likeness(one) > 1 for files in numbered for _, one in files[:_SAMPLES])


# -- any folder --------------------------------------------------------------------------------


def _single(path: Path, prefix: str | None) -> Found:
    name = _pattern(prefix).fullmatch(path.name)
    rank = int(name["rank"]) if name else 0
    rank = rank if rank < MAX_WORLD_SIZE else 0
    warning = f"{path}: a single dump, taken as rank {rank}'s: name its folder to see all ranks"
    folder = DumpFolder(path.parent, path.parent, AttemptKey(path.parent.name, 0))
    return Found({rank: path}, folder, (warning,))


def _pattern(prefix: str | None) -> re.Pattern[str]:
    if prefix is None:
        return _NAME
    return re.compile(rf".*?(?P<prefix>{re.escape(prefix)})(?P<rank>\d+){_ENDING}", re.DOTALL)


def _candidates(
    folder: Path, prefix: str | None, warnings: list[str]
) -> dict[str, list[tuple[int, Path]]]:
    """(rank, file) by prefix."""

    def unreadable(error: OSError) -> None:
        warnings.append(f"{error.filename}: {error.strerror}: left out")

    pattern = _pattern(prefix)
    by_prefix: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    seen = 0
    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = searched(parent, folders)
        for name in names[: MAX_FILES - seen]:
            if (parts := pattern.fullmatch(name)) is not None:
                by_prefix[parts["prefix"]].append((int(parts["rank"]), Path(parent, name)))
        seen += len(names)
        if seen > MAX_FILES:
            warnings.append(f"{folder}: more than {MAX_FILES} files: the others are left out")
            break
    return by_prefix


def searched(parent: str, folders: Iterable[str]) -> list[str]:
    """Folders of `parent` that may hold dumps, in order; none of the kernel's."""
    return sorted(
        name
        for name in folders
        if not name.endswith(META) and os.path.join(parent, name) not in _OF_THE_KERNEL
    )


def _keep_one_prefix(candidates: dict[str, list[tuple[int, Path]]], warnings: list[str]) -> None:
    def order(item: tuple[str, list[tuple[int, Path]]]) -> tuple[int, int, str]:
        prefix, files = item
        return -max(_likeness(path) for _, path in files[:_SAMPLES]), -len(files), prefix

    (chosen, _), *others = sorted(candidates.items(), key=order)
    notes: list[str] = []
    for prefix, files in others:
        del candidates[prefix]
        what = "file" if len(files) == 1 else "files"
        notes.append(
            f"{files[0][1]}: {len(files)} {what} named {prefix!r} and a number "
            f"as well as {chosen!r}: left out, choose with --prefix"
        )
    _warn_of_some(notes, "names of numbered files", warnings)


def _likeness(path: Path) -> int:
    """2 if the file has words of the format, 1 if only its first byte is that of a dump, else 0."""
    try:
        if not path.is_file():
            return 0  # opening a device may have an effect, a pipe blocks
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(_HEAD_BYTES) or b""
    except OSError:
        return 0
    if not head.lstrip().startswith(_FIRST_BYTES):
        return 0
    return 2 if any(word in head for word in _WORDS) else 1


def _one_a_rank(
    found: list[tuple[int, Path]], ranks: Collection[int] | None, warnings: list[str]
) -> Iterator[tuple[int, Path]]:
    """Of several files of one rank, the one that was written last."""
    by_rank: dict[int, list[Path]] = defaultdict(list)
    wanted = None if ranks is None else frozenset(ranks)
    for rank, path in found:
        if wanted is None or rank in wanted:
            by_rank[rank].append(path)
    older: list[str] = []
    no_ranks: list[str] = []
    for rank, paths in sorted(by_rank.items()):
        if rank >= MAX_WORLD_SIZE:
            no_ranks += [f"{path}: rank {rank}: not below {MAX_WORLD_SIZE}" for path in paths]
            continue
        last, *others = sorted(paths, key=lambda path: (-written_ns(path), str(path)))
        yield rank, last
        older += [f"{path}: rank {rank} again: left out, {last} is newer" for path in others]
    _warn_of_some(older, "older dumps", warnings)
    _warn_of_some([f"{why}: left out" for why in no_ranks], "files of such ranks", warnings)


def _warn_of_some(texts: list[str], what: str, warnings: list[str]) -> None:
    warnings += texts[:_MAX_OLDER]
    if len(texts) > _MAX_OLDER:
        warnings.append(f"{len(texts) - _MAX_OLDER} more {what}: left out, too")


def _together(
    folder: Path, found: Sequence[tuple[int, Path]], older: list[str]
) -> list[tuple[int, Path]]:
    """The files of one job below a folder. Subfolders with different ranks are hosts; subfolders
    with the same ranks are several dumps, of which the newest is taken."""
    parts: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for rank, path in found:
        inside = path.relative_to(folder).parts
        parts[inside[0] if len(inside) > 1 else ""].append((rank, path))
    some = [
        _together(folder / name, files, older) if name else files
        for name, files in sorted(parts.items())
    ]
    some.sort(key=lambda files: -max(written_ns(path) for _, path in files))
    kept: list[tuple[int, Path]] = []
    for files in some:
        mine, taken = {rank for rank, _ in files}, {rank for rank, _ in kept}
        if 2 * len(mine & taken) >= min(len(mine), len(taken)) > 0:
            noun = "rank" if len(mine) == 1 else "ranks"
            older.append(
                f"{common_folder(files)}: dumps of {noun} {fold_ranks(mine)} again: left out, "
                f"those in {common_folder(kept)} are newer: name the folder that you mean"
            )
        else:
            kept += files
    return kept


def common_folder(files: Iterable[tuple[int, Path]]) -> Path:
    """The innermost folder that holds all of them."""
    return Path(os.path.commonpath([path.parent for _, path in files]))


def written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _nothing(path: Path, prefix: str | None, ranks: Collection[int] | None, found: bool) -> str:
    if found and ranks is not None:
        return f"{path}: no dump of the ranks asked for: leave out --ranks to see which there are"
    if prefix is not None:
        return (
            f"{path}: no file named {prefix!r} and a rank: leave out --prefix to have it inferred"
        )
    return (
        f"{path}: no file whose name ends in a rank: "
        "name the folder that holds the dumps, one file a rank"
    )
