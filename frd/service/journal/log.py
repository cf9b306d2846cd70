"""The log of accepted input, as the service writes it, whatever keeps it.

`JournalWriter` keeps it on the local disk, `ReplicatedLog` in the log of a cell, which other
replicas can read. Records have *positions*, numbers that rise by one. What an agent sent may be
acknowledged once its position is stored: the agent forgets it then. The local journal calls
everything stored that was put into it, because a restarted service begins with an empty engine
anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from frd.model import AlignedNs, Finding
from frd.store.journal import JournalLimits
from frd.store.records import RecordKind
from frd.wire.messages import AgentEvent


class Log(Protocol):
    """The methods are for the event loop; only those with `async` wait. Without an implementation
    they do nothing."""

    @property
    def position(self) -> int:
        """Of the last record that was put into the log; 0 before the first."""
        ...

    @property
    def stored(self) -> int:
        """All records up to this position are stored for good; -1 once `fenced`."""
        ...

    @property
    def fenced(self) -> bool:
        """Another replica owns the log: nothing is recorded, acknowledged or published any more."""
        ...

    @property
    def dropped(self) -> int:
        """Records that are not in the log."""
        ...

    @property
    def evicted(self) -> int:
        """How often the oldest part was deleted to stay within the limits."""
        ...

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        """Anything but a message or a tick; see `RecordKind`."""
        return

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> bool:
        """An accepted message. False: it is left out, so neither it nor any later message of the
        stream may be acknowledged; `take_cut` names the stream when it should end."""
        return True

    def take_cut(self) -> Collection[int]:
        """Streams that lack messages in the log, once it takes records again; each only once."""
        return ()

    def tick(self, at: AlignedNs) -> None:
        """The engine advanced; what waits is written now."""
        return

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """The settings and limits of all later records."""
        return

    def keep_dismissed(self, ids: Collection[str], at: AlignedNs) -> None:
        """These findings were closed by hand and their trouble lasts: the next owner must know
        them, and no others."""
        return

    async def save(self, findings: Sequence[Finding], at: AlignedNs) -> None:
        """Put versions of findings into the log, and return when they are stored.

        Raises:
            Fenced: another replica owns the log.
        """
        return

    def abandon(self) -> None:
        """Another replica owns the cell: write and acknowledge nothing more. `stop` is not needed
        then."""
        return

    async def stop(self) -> None:
        """Write what waits, as far as that is possible in a short time, and end."""
        return
