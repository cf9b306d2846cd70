"""The record of accepted input, as a cell writes it; what it needs for a replay."""

from __future__ import annotations

from typing import Protocol

from frd.model import AlignedNs
from frd.store.journal import JournalLimits
from frd.store.records import RecordKind
from frd.wire.messages import AgentEvent


class Log(Protocol):
    """The methods are for the event loop. Without an implementation they do nothing."""

    def record(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        """Anything but a message or a tick; see `RecordKind`."""
        return

    def message(self, stream: int, at: AlignedNs, data: bytes, event: AgentEvent) -> None:
        """An accepted message."""
        return

    def tick(self, at: AlignedNs) -> None:
        """The engine advanced; what waits is written now."""
        return

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """The settings and limits of all later records."""
        return

    def end(self, at: AlignedNs) -> None:
        """The cell is no longer here: nothing is recorded any more."""
        return
