"""The last version of every finding, in one stream: a subject for each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from nats.aio.msg import Msg

from frd.cluster.cluster import StoredFinding
from frd.cluster.nats.connection import Absent, Connection, Unanswered
from frd.cluster.nats.reading import ForwardReader
from frd.cluster.nats.registry import get_value, put_value, unavailable
from frd.cluster.thread import LoopThread

_PATIENCE_S: Final = 10.0
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAME: Final = re.compile(rf"([0-9]{{2}})\.({_ID.pattern})")
"""Of a finding, in its subject. Messages with others are not from frd: they are left out."""


class JetStreamFindings:
    """Implements `frd.cluster.cluster.FindingStore`; its work is done in `thread`."""

    def __init__(self, thread: LoopThread, connection: Connection, name: str) -> None:
        self._thread = thread
        self._connection = connection
        self._stream = f"{name}-F"
        self._prefix = f"{name}.f."

    async def put(self, cell: int, id: str, data: bytes, revision: int) -> int:
        if not _ID.fullmatch(id):
            raise ValueError(f"finding: {id!r}: an id has letters, digits, - and _ only")
        subject = f"{self._prefix}{cell:02}.{id}"
        return await self._thread.call(
            put_value(self._connection, self._stream, subject, data, revision)
        )

    async def of_cell(self, cell: int) -> Sequence[StoredFinding]:
        return await self._thread.call(self._of_cell(f"{self._prefix}{cell:02}.*"))

    async def tail(self, revision: int = 0) -> AsyncIterator[StoredFinding]:
        reader = ForwardReader(self._connection, self._stream, self._prefix + ">")
        try:
            while True:
                try:
                    piece = await self._thread.call(reader.piece(revision + 1))
                except (Unanswered, Absent):
                    await asyncio.sleep(0.2)
                    continue
                for number, message in piece:
                    revision = number
                    for finding in self._findings([(number, message)]):
                        yield finding
        finally:
            await self._thread.call(reader.close())

    async def _of_cell(self, subject: str) -> Sequence[StoredFinding]:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        last = await get_value(self._connection, self._stream, subject)
        found: list[StoredFinding] = []
        reader = ForwardReader(self._connection, self._stream, subject)
        try:
            # The newest finding may get a newer revision meanwhile, so that `last` never comes.
            while last is not None and (not found or found[-1].revision < last.revision):
                error: Exception = TimeoutError("no messages")
                try:
                    piece = await reader.piece(found[-1].revision + 1 if found else 1)
                except (Unanswered, Absent) as problem:
                    piece, error = (), problem
                if not piece and asyncio.get_running_loop().time() > deadline:
                    raise unavailable(self._stream, error)
                found += self._findings(piece)
        finally:
            await reader.close()
        return found

    def _findings(self, piece: Sequence[tuple[int, Msg]]) -> Iterator[StoredFinding]:
        for revision, message in piece:
            if name := _NAME.fullmatch(message.subject.removeprefix(self._prefix)):
                yield StoredFinding(int(name[1]), name[2], message.data, revision)
