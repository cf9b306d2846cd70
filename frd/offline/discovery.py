"""Which files of a folder are the dumps of which ranks.

A dump does not say whose it is: its name does. Names are a prefix, the rank, and perhaps an ending
(``.json``, ``.gz``); the prefix is the one that most files share and whose files look like dumps.
Subfolders are hosts and mean nothing else. In a folder that `frd dump` made, what it tells beside
the dumps (job, identities, stacks, who did not answer) comes along.

Only names, sizes and a few first bytes are looked at here. Links to folders are not followed, and
the number of files is bounded, because somebody will name ``/``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from frd.errors import DumpError
from frd.flight.stacktext import user_frames
from frd.model import AlignedNs, AttemptKey, RankInfo

MAX_FILES = 200_000
MAX_META_BYTES = 4 * 1024 * 1024

_ENDING = r"(?:\.(?:json|pkl|pickle|bin|dump|gz))*"
_NAME = re.compile(rf"(?P<prefix>.*?)(?P<rank>\d{{1,9}}){_ENDING}", re.DOTALL)
_FIRST_BYTES = (b"\x80", b"{", b"[", b"\x1f\x8b")
_SAMPLES = 4
"""Files of one prefix of which one must look like a dump."""
_MAX_OLDER = 8
"""How many are named of what earlier attempts may have left in thousands."""
_SUMMARY = "summary.json"
_META = ".meta"


@dataclass(frozen=True, slots=True)
class Identity:
    """What `frd dump` tells of a rank beside its dump."""

    info: RankInfo | None = None
    clock_offset_ns: int | None = None
    clock_uncertainty_ns: int | None = None
    stack: tuple[str, ...] = ()
    """Where the main thread stood, innermost of the user's own frames first."""


@dataclass(frozen=True, slots=True)
class Found:
    """The dumps of one folder."""

    key: AttemptKey
    files: Mapping[int, Path]
    """By rank, in order of rank."""
    meta: Path | None = None
    """The folder of identities and stacks, where `frd dump` made the dumps."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Ranks that did not answer `frd dump`, and why."""
    taken_at: AlignedNs | None = None
    """When `frd dump` made them."""
    warnings: tuple[str, ...] = ()


def discover(
    path: Path, *, prefix: str | None = None, ranks: Collection[int] | None = None
) -> Found:
    """The dump files in `path`, a folder or a single file.

    Raises:
        DumpError: nothing there that could be a dump.
    """
    path = Path(os.path.abspath(path))
    if not path.exists():
        raise DumpError(f"{path}: no such folder: name the folder that holds the dumps")
    if not path.is_dir():
        return _single(path, prefix)
    warnings: list[str] = []
    made = _made_by_frd(path, warnings)
    folder = made.folder if made else path
    candidates = _candidates(folder, prefix, warnings)
    if prefix is None and len(candidates) > 1:
        _keep_one_prefix(candidates, warnings)
    found = [item for files in candidates.values() for item in files]
    files = dict(_one_a_rank(found, ranks, warnings))
    if not files:
        raise DumpError(_nothing(path, prefix, ranks, bool(found)))
    if made is None:
        return Found(AttemptKey(path.name, 0), files, warnings=tuple(warnings))
    return Found(made.key, files, made.meta, made.failed, made.taken_at, tuple(warnings))


def identity(found: Found, rank: int, warnings: list[str]) -> Identity:
    """What is told of a rank, empty where nothing is."""
    if found.meta is None:
        return Identity()
    info, clock = None, _Clock()
    path = found.meta / f"rank_{rank}.json"
    try:
        told = msgspec.json.decode(_text(path))
        info = msgspec.convert(told, RankInfo, strict=False)
        clock = msgspec.convert(told, _Clock)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError, OverflowError, RecursionError, ValueError) as error:
        warnings.append(f"{path}: no identity ({error}): left out")
    try:
        text = _text(found.meta / f"rank_{rank}.stack.txt").decode("utf-8", "replace")
    except OSError:
        text = ""
    return Identity(info, clock.offset_ns, clock.uncertainty_ns, user_frames(text) if text else ())


_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


class _Clock(msgspec.Struct):
    clock_offset_s: _Seconds | None = None
    clock_uncertainty_s: _Seconds | None = None

    @property
    def offset_ns(self) -> int | None:
        return None if self.clock_offset_s is None else round(self.clock_offset_s * 1e9)

    @property
    def uncertainty_ns(self) -> int | None:
        """Of an offset; without one it says nothing."""
        if self.clock_uncertainty_s is None or self.clock_offset_s is None:
            return None
        return round(abs(self.clock_uncertainty_s) * 1e9)


# -- folders that `frd dump` made --------------------------------------------------------------


class _Summary(msgspec.Struct):
    job: str
    attempt: int
    folder: str
    failed: dict[int, str] = {}
    taken_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    folder: Path
    meta: Path
    key: AttemptKey
    failed: dict[int, str]
    taken_at: AlignedNs | None


def _made_by_frd(path: Path, warnings: list[str]) -> _Made | None:
    """`path` is the whole folder, or the job's folder in it."""
    for root in (path, path.parent):
        summary = root / _SUMMARY
        try:
            told = msgspec.json.decode(_text(summary), type=_Summary, strict=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            if root == path:
                warnings.append(f"{summary}: not as `frd dump` writes it ({error}): left out")
            continue
        folder = root / told.folder
        if folder.parent != root or not folder.is_dir() or path not in (root, folder):
            continue
        meta = root / f"{told.folder}{_META}"
        taken_at = AlignedNs(int(told.taken_at.timestamp() * 1e9)) if told.taken_at else None
        return _Made(folder, meta, AttemptKey(told.job, told.attempt), told.failed, taken_at)
    return None


def _text(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_META_BYTES)


# -- any folder --------------------------------------------------------------------------------


def _single(path: Path, prefix: str | None) -> Found:
    name = _pattern(prefix).fullmatch(path.name)
    rank = int(name["rank"]) if name else 0
    warning = f"{path}: a single dump, taken as rank {rank}'s: name its folder to see all ranks"
    return Found(AttemptKey(path.parent.name, 0), {rank: path}, warnings=(warning,))


def _pattern(prefix: str | None) -> re.Pattern[str]:
    if prefix is None:
        return _NAME
    return re.compile(rf".*?(?P<prefix>{re.escape(prefix)})(?P<rank>\d{{1,9}}){_ENDING}", re.DOTALL)


def _candidates(
    folder: Path, prefix: str | None, warnings: list[str]
) -> dict[str, list[tuple[int, Path]]]:
    """(rank, file) by prefix."""
    pattern = _pattern(prefix)
    by_prefix: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for seen, (parent, name) in enumerate(_names(folder, warnings)):
        if seen >= MAX_FILES:
            warnings.append(f"{folder}: more than {MAX_FILES} files: the others are left out")
            break
        if (parts := pattern.fullmatch(name)) is not None:
            by_prefix[parts["prefix"]].append((int(parts["rank"]), Path(parent, name)))
    return by_prefix


def _names(folder: Path, warnings: list[str]) -> Iterator[tuple[str, str]]:
    def unreadable(error: OSError) -> None:
        warnings.append(f"{error.filename}: {error.strerror}: left out")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.endswith(_META))
        for name in names:
            yield parent, name


def _keep_one_prefix(candidates: dict[str, list[tuple[int, Path]]], warnings: list[str]) -> None:
    def order(item: tuple[str, list[tuple[int, Path]]]) -> tuple[bool, int, str]:
        prefix, files = item
        return (
            not any(_looks_like_a_dump(path) for _, path in files[:_SAMPLES]),
            -len(files),
            prefix,
        )

    (chosen, _), *others = sorted(candidates.items(), key=order)
    for prefix, files in others:
        del candidates[prefix]
        what = "file" if len(files) == 1 else "files"
        warnings.append(
            f"{files[0][1]}: {len(files)} {what} named {prefix!r} and a number beside {chosen!r}: "
            "left out, choose with --prefix"
        )


def _looks_like_a_dump(path: Path) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(16).lstrip().startswith(_FIRST_BYTES)
    except OSError:
        return False


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
    for rank, paths in sorted(by_rank.items()):
        last, *others = sorted(paths, key=lambda path: (-_written(path), str(path)))
        yield rank, last
        older += [f"{path}: rank {rank} again: left out, {last} is newer" for path in others]
    warnings += older[:_MAX_OLDER]
    if len(older) > _MAX_OLDER:
        warnings.append(f"{len(older) - _MAX_OLDER} more older dumps: left out likewise")


def _written(path: Path) -> int:
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
