"""Reads the files that `frd dump` writes with the dumps: job, time, identities, stacks.

`rank_<rank>.json` and `summary.json` may have been edited, so they are
parsed strictly and bounded in size; an unexpected value is a warning.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from frd.flight.stacks.places import activity_of
from frd.model import Activity, AlignedNs, AttemptKey, RankInfo

MAX_META_BYTES = 4 * 1024 * 1024
SUMMARY = "summary.json"
META = ".meta"


@dataclass(frozen=True, slots=True)
class Identity:
    """Metadata of a rank that `frd dump` stored with its dump."""

    info: RankInfo | None = None
    clock_offset_ns: int | None = None
    clock_uncertainty_ns: int | None = None
    activity: Activity = field(default_factory=Activity)
    """What its program was doing, by its stack."""
    dumped_from_ns: int = 0
    """As `RankTrace` has it, and the next one too."""
    dumped_until_ns: int = 0


def identity(meta: Path | None, rank: int, warnings: list[str]) -> Identity:
    """Metadata of a rank in the folder `meta`; empty if there is none."""
    if meta is None:
        return Identity()
    info, clock, moment = None, _Clock(), _Moment()
    path = meta / f"rank_{rank}.json"
    try:
        document = msgspec.json.decode(_text(path))
        info = msgspec.convert(document, RankInfo, strict=False)
        clock = msgspec.convert(document, _Clock)
        moment = msgspec.convert(document, _Moment)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError, OverflowError, RecursionError, ValueError) as error:
        warnings.append(f"{path}: no identity ({error}): left out")
    try:
        text = _text(meta / f"rank_{rank}.stack.txt").decode("utf-8", "replace")
    except OSError:
        text = ""
    return Identity(
        info,
        clock.offset_ns,
        clock.uncertainty_ns,
        activity_of(text),
        moment.from_ns,
        moment.until_ns,
    )


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


_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]


class _Moment(msgspec.Struct):
    """When the dump was taken, on the node's clock."""

    source: str = ""
    taken_at_ns: _Time | None = None
    """When the rank was asked for it; of a file that the rank had left, when that was written."""
    node_time_ns: _Time | None = None
    """When the answer was sent."""

    @property
    def _is_file(self) -> bool:
        return self.source.startswith("file ")

    @property
    def from_ns(self) -> int:
        return 0 if self._is_file else self.taken_at_ns or 0

    @property
    def until_ns(self) -> int:
        return (self.taken_at_ns if self._is_file else self.node_time_ns) or 0


class _Summary(msgspec.Struct):
    job: str
    attempt: int
    folder: str
    failed: dict[int, str] = {}
    taken_at: datetime | None = None
    stall_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """The `summary.json` of a folder of `frd dump`."""

    root: Path
    """What its ``-o`` named."""
    folder: Path
    meta: Path
    key: AttemptKey
    failed: dict[int, str]
    taken_at: AlignedNs | None
    stall_after_s: float | None


def made_by_frd(path: Path, warnings: list[str]) -> Made | None:
    """`path` is the whole folder, or the job's folder in it."""
    for root in (path, path.parent):
        summary = root / SUMMARY
        try:
            document = msgspec.json.decode(_text(summary), type=_Summary, strict=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            if root == path:
                warnings.append(f"{summary}: not as `frd dump` writes it ({error}): left out")
            continue
        folder = root / document.folder
        if folder.parent != root or not folder.is_dir() or path not in (root, folder):
            continue
        meta = root / f"{document.folder}{META}"
        taken_at = (
            AlignedNs(int(document.taken_at.timestamp() * 1e9)) if document.taken_at else None
        )
        key = AttemptKey(document.job, document.attempt)
        return Made(root, folder, meta, key, document.failed, taken_at, document.stall_after_s)
    return None


def _text(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_META_BYTES)
