"""Acknowledgements of one stream, which wait until the log has stored what they acknowledge.

Each says that the rows up to a revision were in messages of this stream which are in the log. They
go out in the order of the log, and merge if the log is slow.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from frd.service.ingest.session import Session
from frd.service.journal.log import Log

_MAX_WAITING: Final = 4
"""Steps in which the acknowledgements of a stream can go out, if the log is slow: beyond this
number a new one waits together with the last one."""


class PendingAcks:
    def __init__(self, session: Session, log: Log) -> None:
        self._session = session
        self._log = log
        self._waiting: deque[tuple[int, dict[int, int]]] = deque()
        """Positions, rising, and the revisions by stream index that may go out from there on."""
        self._cut = False

    def draw(self) -> None:
        """Take what the session has applied, which is in the log up to its position of now."""
        acks = self._session.take_acks()
        if not acks or self._cut:
            return
        if len(self._waiting) == _MAX_WAITING:
            _, earlier = self._waiting.pop()
            acks = earlier | acks
        self._waiting.append((self._log.position, acks))

    def cut(self) -> None:
        """The log has left out a message: what was applied since the last `draw`, and later, is
        never acknowledged."""
        self._session.take_acks()
        self._cut = True

    def drop(self) -> None:
        """The stream is to end, and the log may lack any part of it: nothing is acknowledged."""
        self.cut()
        self._waiting.clear()

    def close(self) -> None:
        """The stream is over: what is not stored now is not acknowledged."""
        ready = self.take()
        self.drop()
        if ready:
            self._waiting.append((0, ready))

    @property
    def ready(self) -> bool:
        """Some may go out."""
        return bool(self._waiting) and self._waiting[0][0] <= self._log.stored

    @property
    def waiting(self) -> bool:
        """Some may not go out yet."""
        return bool(self._waiting) and self._waiting[-1][0] > self._log.stored

    def take(self) -> dict[int, int]:
        """Revisions by stream index that may go out."""
        self.draw()
        acks: dict[int, int] = {}
        while self.ready:
            acks |= self._waiting.popleft()[1]
        return acks
