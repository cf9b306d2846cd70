"""Reads the files by which taps report a long initialization.

Training processes wrote them, so nothing in them is trusted, as in `tap_files`. A file of a process
that is no rank yet has a *claim*: the identity that follows from the environment of the process.
Whether the claim is true is not known here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from frd.model import NodeNs
from frd_agent import untrusted_files
from frd_agent.ranks.tap_files import ExitFrame, ExitRecord, TapIdentity

_NAME: Final = re.compile(r"(?P<token>[0-9a-f]{12})\.stage")
_MAX_BYTES: Final = 256 * 1024
_MAX_FILES: Final = 4_096
"""More than the processes of any node that can be ranks."""

_Time = Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a tap reports. Keys that a later tap adds are ignored."""

    schema: Literal[1]
    token: str
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    start_ticks: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The start of the process as /proc shows it; 0 unknown."""
    op: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-z_]*$")]
    """See `frd.model.Stage`."""
    since_ns: _Time
    as_of_ns: _Time
    frames: Annotated[tuple[ExitFrame, ...], msgspec.Meta(max_length=256)] = ()
    """Of the main thread at `as_of_ns`, innermost first."""
    claim: TapIdentity | None = None
    """None of a process that is a rank."""
    exit: ExitRecord | None = None
    """Of a program that has ended with a claim."""

    def __post_init__(self) -> None:
        if self.as_of_ns < self.since_ns:
            raise ValueError(f"as_of_ns: {self.as_of_ns}: before since_ns")
        if (claim := self.claim) is not None:
            if (claim.token, claim.pid) != (self.token, self.pid):
                raise ValueError("claim: of another process")
            if claim.groups or claim.socket or claim.shm or claim.exit:
                raise ValueError("claim: of a process that has been a rank")


_decoder = msgspec.json.Decoder(StageReport)


@dataclass(frozen=True, slots=True)
class StageFile:
    """One file: either a `report`, or a `problem` as text for users."""

    path: Path
    stamp: tuple[int, int, int]
    """Changes with every replacement of the file."""
    report: StageReport | None
    problem: str = ""


def scan(run_dir: Path, previous: Iterable[StageFile] = (), node: str = "") -> list[StageFile]:
    """All stage files, sorted by name. Unchanged files of `previous` are not read again.

    `node`: name of the node; empty: the name in each file.
    """
    known = {file.path: file for file in previous}
    try:
        with os.scandir(run_dir) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".stage"))
    except OSError:  # `tap_files.scan` reports it
        return []
    found = (_look(run_dir / name, known, node) for name in names[:_MAX_FILES])
    return [file for file in found if file is not None]


def _look(path: Path, known: dict[Path, StageFile], node: str) -> StageFile | None:
    """None if the file no longer exists."""
    stamp = (0, 0, 0)
    try:
        if (named := _NAME.fullmatch(path.name)) is None:
            raise ValueError("not a tap's file")
        with untrusted_files.opened(path) as fd:
            found = os.fstat(fd)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if (same := known.get(path)) is not None and same.stamp == stamp:
                return same
            if found.st_size > _MAX_BYTES:
                raise ValueError("too large")
            raw = untrusted_files.read_up_to(fd, _MAX_BYTES)
        report = _decoder.decode(raw)
        if report.token != named["token"]:
            raise ValueError(f"token: {report.token!r}: not the file's own")
        if node and report.claim is not None:
            claim = msgspec.structs.replace(report.claim, host=node)
            report = msgspec.structs.replace(report, claim=claim)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, *untrusted_files.NOT_THE_FORM) as error:
        why = getattr(error, "strerror", None) or error
        return StageFile(path, stamp, None, f"{path}: {why}: ignored")
    return StageFile(path, stamp, report)
