"""The log of a cell, as its owner uses it: bundles of bytes, in order, replicated and fenced.

The fence is the only thing on which safety rests: after `take`, no earlier owner can append.
A bundle is stored for good when `append` returns, and only then may what it holds be acknowledged
to an agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

from frd.errors import FrdError

MAX_BUNDLE_BYTES: Final = 900_000
"""Largest bundle; a NATS server takes messages of up to 1 MB with its default settings."""


class Fenced(FrdError):
    """Another replica has taken the log: this owner must drop the cell, and never try again."""


class LogLost(FrdError):
    """The log lacks bundles that it had confirmed to this owner, and no other owner has taken it:
    the servers lost its end, or all of it. `retake` it, and append the whole state: numbers may be
    used a second time."""


class LogUnavailable(FrdError):
    """The log did not answer in time. Whether the bundle is stored is not known; the next `append`
    of the same bundle finds out."""


class Bundle(NamedTuple):
    number: int
    """Position in the log; numbers rise by one."""
    epoch: int
    """The fence of the owner that wrote it."""
    data: bytes


class Bounds(NamedTuple):
    first: int
    """The oldest bundle; above `last` when there is none."""
    last: int


class FencedLog(Protocol):
    """The log of one cell. The methods are for one event loop, and one call at a time."""

    async def take(self, owner: str) -> int:
        """Exclude all earlier owners; returns the epoch, which is the number of the fence.

        `owner` is for people who look at the log: printable ASCII.

        Raises:
            LogUnavailable: no answer in time.
        """
        ...

    async def retake(self, owner: str) -> int:
        """`take` after `LogLost`, for an owner that may have been replaced meanwhile: the log must
        still end with what this owner wrote, or be empty.

        Raises:
            Fenced: another owner has taken the log.
            LogUnavailable: no answer in time.
        """
        ...

    async def append(self, data: bytes) -> int:
        """Store one bundle of at most `MAX_BUNDLE_BYTES` bytes; returns its number.

        Call again with the same `data` after `LogUnavailable`; it is stored once.

        Raises:
            Fenced: another owner has taken the log.
            LogLost: bundles of this owner are lost; `retake` is needed.
            LogUnavailable: not stored in time, as far as known.
        """
        ...

    async def bounds(self) -> Bounds:
        """
        Raises:
            LogUnavailable: no answer in time.
        """
        ...

    def read(self, first: int, last: int) -> AsyncIterator[Bundle]:
        """Bundles `first` to `last`, in order. Numbers are left out where a fence is, where bundles
        were deleted or lost, where an earlier owner's bundle follows a fence, and above the end.

        Raises:
            LogUnavailable: no answer in time.
        """
        ...

    async def trim(self, before: int, *, max_bytes: int, max_age_s: float = 0.0) -> bool:
        """Forget the oldest bundles, those of earlier owners, too: as many as the log has above
        `max_bytes`, about, as the servers count; and those that were stored more than `max_age_s`
        ago, unless it is 0. But only numbers below `before`. Returns whether there were any.

        Raises:
            LogUnavailable: no answer in time.
        """
        ...
