"""Reads the files that `frd dump` writes with the dumps: job, time, identities, stacks.

`rank_<rank>.json` and `summary.json` may have been edited, so they are parsed strictly and bounded
in size; an unexpected value is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from frd.decodable import decodable
from frd.flight.stacks.places import activity_of
from frd.model import MAX_WORLD_SIZE, YEAR_2200_NS, Activity, AlignedNs, AttemptKey, RankInfo

MAX_META_BYTES = 4 * 1024 * 1024
SUMMARY = "summary.json"
META = ".meta"


decodable(RankInfo)

_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]


@decodable
class Times(msgspec.Struct, frozen=True):
    """Of ``rank_<rank>.json``: when the dump was taken, and how far off the node's clock was.

    The properties are fields of `RankTrace`.
    """

    clock_offset_s: _Seconds | None = None
    clock_uncertainty_s: _Seconds | None = None
    source: str = ""
    taken_at_ns: _Time | None = None
    """When the rank was asked for it; of a file that the rank had left, when that was written."""
    node_time_ns: _Time | None = None
    """When the answer was sent."""

    @property
    def clock_offset_ns(self) -> int | None:
        return None if self.clock_offset_s is None else round(self.clock_offset_s * 1e9)

    @property
    def clock_uncertainty_ns(self) -> int | None:
        """Of an offset; without one it says nothing."""
        if self.clock_uncertainty_s is None or self.clock_offset_s is None:
            return None
        return round(abs(self.clock_uncertainty_s) * 1e9)

    @property
    def _is_file(self) -> bool:
        return self.source.startswith("file ")

    @property
    def dumped_from_ns(self) -> int:
        return 0 if self._is_file else self.taken_at_ns or 0

    @property
    def dumped_until_ns(self) -> int:
        return (self.taken_at_ns if self._is_file else self.node_time_ns) or 0


@dataclass(frozen=True, slots=True)
class RankMetadata:
    """What `frd dump` stored of a rank with its dump."""

    info: RankInfo | None = None
    times: Times = field(default_factory=Times)
    activity: Activity = field(default_factory=Activity)
    """What its program was doing, by its stack."""


def rank_metadata(meta: Path | None, rank: int, warnings: list[str]) -> RankMetadata:
    """Of a rank in the folder `meta`; empty if there is none."""
    if meta is None:
        return RankMetadata()
    info, times, stack = None, Times(), b""
    path = meta / f"rank_{rank}.json"
    try:
        document = msgspec.json.decode(_text(path))
        found = msgspec.convert(document, RankInfo, strict=False)
        if found.rank != rank or not 0 <= found.world_size <= MAX_WORLD_SIZE:
            raise ValueError(f"rank {found.rank} of {found.world_size}")
        info = found
        times = msgspec.convert(document, Times)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError, OverflowError, RecursionError, ValueError) as error:
        warnings.append(f"{path}: no identity ({error}): left out")
    with suppress(OSError):
        stack = _text(meta / f"rank_{rank}.stack.txt")
    return RankMetadata(info, times, activity_of(stack.decode("utf-8", "replace")))


@decodable
class _Summary(msgspec.Struct):
    job: str
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    folder: str
    failed: dict[Annotated[int, msgspec.Meta(ge=0, lt=MAX_WORLD_SIZE)], str] = {}
    taken_at: datetime | None = None
    stall_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """A folder of dumps; all that has a default is in the `summary.json` of `frd dump`."""

    root: Path
    """What the ``-o`` of `frd dump` named; else the innermost folder that holds all dumps."""
    folder: Path
    key: AttemptKey
    meta: Path | None = None
    """The folder of identities and stacks."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Ranks that did not answer `frd dump`, and why."""
    taken_at: AlignedNs | None = None
    """When `frd dump` took the dumps."""
    stall_after_s: float | None = None
    """The stall threshold of the service that took them."""


def made_by_frd(path: Path, warnings: list[str]) -> DumpFolder | None:
    """`path` is the whole folder, or the job's folder in it."""
    for root in (path, path.parent):
        summary = root / SUMMARY
        try:
            document = msgspec.json.decode(_text(summary), type=_Summary, strict=False)
            at = document.taken_at
            at_ns = int(at.timestamp() * 1e9) if at else None
            if not 0 <= (at_ns or 0) < YEAR_2200_NS:
                raise ValueError(f"taken_at: {at}: no time of a dump")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, OverflowError, RecursionError, ValueError) as error:
            if root == path:
                warnings.append(f"{summary}: not as `frd dump` writes it ({error}): left out")
            continue
        folder = root / document.folder
        if folder.parent != root or not os.path.isdir(folder) or path not in (root, folder):
            continue
        return DumpFolder(
            root,
            folder,
            AttemptKey(document.job, document.attempt),
            root / f"{document.folder}{META}",
            document.failed,
            None if at_ns is None else AlignedNs(at_ns),
            document.stall_after_s,
        )
    return None


def _text(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_META_BYTES)
