"""Reads the files by which taps report a long initialization, and where a rank is at rest.

Nothing in them is trusted (`token_files`). A file of a process that is no rank yet has a *claim*:
the identity that follows from the environment of the process. Whether the claim is true is not
known here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from frd.model import NodeNs
from frd_agent.ranks.tap_files import ExitFrame, ExitRecord, TapIdentity
from frd_agent.ranks.token_files import Published, TokenFile

_Time = Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]


class StageReport(Published, frozen=True, kw_only=True):
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    start_ticks: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The start of the process as /proc shows it; 0 unknown."""
    pid_namespace: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """Its inode; 0 unknown."""
    op: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[a-z_]*$")]
    """One of `frd.model.INITIALIZATION`, or empty. What else a rank waits in, its frames show."""
    since_ns: _Time
    as_of_ns: _Time
    frames: Annotated[tuple[ExitFrame, ...], msgspec.Meta(max_length=256)] = ()
    """Of the main thread at `as_of_ns`, innermost first, or of the one that runs the program."""
    ran_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    """How long that thread had run; None unknown, as with taps that report no rank at rest."""
    claim: TapIdentity | None = None
    """None of a process that is a rank."""
    has_groups: bool = False
    """The program has process groups that it made without init_process_group."""
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


class StageFile(TokenFile[StageReport]):
    """The stage file of a process."""

    SUFFIX = ".stage"
    MAX_BYTES = 256 * 1024
    DECODER = msgspec.json.Decoder(StageReport)

    @staticmethod
    def on(content: StageReport, node: str) -> StageReport:
        if content.claim is None:
            return content
        return replace(content, claim=replace(content.claim, host=node))
