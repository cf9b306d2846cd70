"""Values of cells, in the stream of the registry: ``v.<nn>.state`` and ``v.<nn>.f.<finding>``.

A write names the sequence of its owner's claim, ``c.<nn>``, as the last one of that subject. The
leader of the stream refuses it once another claim is stored, or on its way. Nothing else orders the
writes of one owner, so that a write without an answer, which may arrive late, could replace a newer
value. It is therefore sent again, with the same id, before the next one of its cell: the servers
know an id for `DUPLICATE_WINDOW_S`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple
from uuid import uuid4

from nats.aio.msg import Msg

from frd.cluster.cluster import STATE, CellValue, Superseded
from frd.cluster.nats.connection import Absent, Connection, Refused, Unanswered
from frd.cluster.nats.reading import ForwardReader
from frd.cluster.nats.registry import delete_value, get_value, unavailable
from frd.cluster.nats.streams import MAX_PAYLOAD
from frd.cluster.registry import RegistryUnavailable
from frd.cluster.thread import LoopThread
from frd.errors import StoreError

_PATIENCE_S: Final = 10.0
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAME: Final = re.compile(rf"v\.([0-9]{{2}})\.(?:state|f\.({_ID.pattern}))")
"""Of a value, in its subject. Messages with others are not from frd: they are left out."""


class _Write(NamedTuple):
    claim: int
    subject: str
    data: bytes
    id: str


class JetStreamCells:
    """Implements `frd.cluster.cluster.CellStore`; its work is done in `thread`."""

    def __init__(self, thread: LoopThread, connection: Connection, name: str) -> None:
        self._thread = thread
        self._connection = connection
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."
        self._unknown: dict[int, _Write] = {}
        """The last write of a cell, if it had no answer."""
        self._ids = (f"{prefix}-{n}" for prefix in (uuid4().hex[:16],) for n in count())

    async def put(self, cell: int, claim: int, key: str, data: bytes) -> int:
        if key != STATE and not _ID.fullmatch(key):
            raise StoreError(f"finding: {key!r}: an id has letters, digits, - and _ only")
        if len(data) > MAX_PAYLOAD:
            raise StoreError(f"{key or 'state'}: {len(data)} bytes: NATS takes {MAX_PAYLOAD}")
        subject = f"{self._prefix}v.{cell:02}." + ("state" if key == STATE else f"f.{key}")
        return await self._thread.call(self._put(cell, claim, subject, data))

    async def delete(self, value: CellValue) -> None:
        await self._thread.call(delete_value(self._connection, self._stream, value.revision))

    async def of_cell(self, cell: int) -> Sequence[CellValue]:
        return await self._thread.call(self._of_cell(f"{self._prefix}v.{cell:02}.>"))

    async def tail(self, revision: int = 0) -> AsyncIterator[CellValue]:
        reader = ForwardReader(self._connection, self._stream, f"{self._prefix}v.*.f.*")
        try:
            while True:
                try:
                    piece = await self._thread.call(reader.piece(revision + 1))
                except (Unanswered, Absent):
                    await asyncio.sleep(0.2)
                    continue
                for number, message in piece:
                    revision = number
                    for value in self._values([(number, message)]):
                        yield value
        finally:
            await self._thread.call(reader.close())

    # -- in the thread ---------------------------------------------------------------------------

    async def _put(self, cell: int, claim: int, subject: str, data: bytes) -> int:
        write = _Write(claim, subject, data, next(self._ids))
        earlier = self._unknown.get(cell, write)
        if earlier[:3] == write[:3]:
            write = earlier
        elif earlier.claim == claim:  # those of other claims are refused when they arrive
            await self._store(cell, earlier)
        return await self._store(cell, write)

    async def _store(self, cell: int, write: _Write) -> int:
        self._unknown[cell] = write
        claims = f"{self._prefix}c.{cell:02}"
        headers = {
            "Nats-Msg-Id": write.id,
            "Nats-Expected-Stream": self._stream,
            "Nats-Expected-Last-Subject-Sequence": str(write.claim),
            "Nats-Expected-Last-Subject-Sequence-Subject": claims,
        }
        ack = None
        try:
            ack = await self._connection.publish(write.subject, write.data, headers)
        except Refused:
            pass
        except (Unanswered, Absent) as error:
            raise unavailable(self._stream, error) from None
        if ack is None or ack.duplicate:
            claim = await get_value(self._connection, self._stream, claims)
            if claim is None or claim.revision != write.claim:
                del self._unknown[cell]
                raise Superseded(f"{claims}: not revision {write.claim}: drop the cell")
        if ack is None:
            raise RegistryUnavailable(f"{self._stream}: an earlier write is in flight: try again")
        del self._unknown[cell]
        return ack.number

    async def _of_cell(self, subject: str) -> Sequence[CellValue]:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        last = await get_value(self._connection, self._stream, subject)
        found: dict[str, CellValue] = {}
        reader = ForwardReader(self._connection, self._stream, subject)
        seen = 0
        try:
            # The newest value may get a newer revision meanwhile, so that `last` never comes.
            while last is not None and seen < last.revision:
                error: Exception = TimeoutError("no messages")
                try:
                    piece = await reader.piece(seen + 1)
                except (Unanswered, Absent) as problem:
                    piece, error = (), problem
                if not piece and asyncio.get_running_loop().time() > deadline:
                    raise unavailable(self._stream, error)
                seen = piece[-1][0] if piece else seen
                # A server that is behind has former versions, too.
                found |= {value.key: value for value in self._values(piece)}
        finally:
            await reader.close()
        return sorted(found.values(), key=lambda value: value.revision)

    def _values(self, piece: Sequence[tuple[int, Msg]]) -> Iterator[CellValue]:
        for revision, message in piece:
            if name := _NAME.fullmatch(message.subject.removeprefix(self._prefix)):
                yield CellValue(int(name[1]), name[2] or STATE, message.data, revision)
