"""The log of a cell as a JetStream stream: one append in flight, each at an expected position.

The server refuses an append when the stream's last sequence is not the expected one. That fences
earlier owners, but only with one append in flight: of several, a later one can find its expected
sequence taken by the fence itself. ``Nats-Expected-Last-Msg-Id`` would be stricter, but a wrong
id halts a replicated stream (servers 2.14 and 2.15). An append without an answer is sent again with
the same id, which the server recognizes for two minutes; after that, and after a refusal, what is
stored at the expected position decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, TypeVar
from uuid import uuid4

from nats.js.api import RawStreamMsg, StreamConfig, StreamState

from frd.cluster.log import (
    MAX_BUNDLE_BYTES,
    Bounds,
    Bundle,
    Fenced,
    LogLost,
    LogUnavailable,
)
from frd.cluster.nats.connection import Absent, Connection, Refused, Unanswered
from frd.cluster.nats.reading import ForwardReader, first_since
from frd.cluster.thread import LoopThread

T = TypeVar("T")

EPOCH: Final = "Frd-Epoch"
"""Header of a bundle: the number of its owner's fence."""
FENCE: Final = "Frd-Fence"
"""Header of a fence: the name of the owner."""
_ID: Final = "Nats-Msg-Id"


class JetStreamLog:
    """Implements `frd.cluster.log.FencedLog`; its work is done in `thread`."""

    def __init__(
        self,
        thread: LoopThread,
        connection: Connection,
        stream: StreamConfig,
        patience_s: float = 10.0,
    ) -> None:
        """After `patience_s` without success, calls raise `LogUnavailable`."""
        assert stream.name
        assert stream.subjects
        self._thread = thread
        self._connection = connection
        self._config = stream
        self._stream = stream.name
        self._subject = stream.subjects[0]
        self._patience_s = patience_s
        self._taker = ""
        """Random, new with every fence: two processes of one name are two owners, and after a loss
        two fences may have one number. All our message ids begin with it."""
        self._takers: set[str] = set()
        """This one, and those of the fences since the last `take`."""
        self._epoch = 0
        """Number of our fence; 0: we do not own the log."""
        self._last = 0
        """The last number that is known to be stored."""
        self._unknown: set[str] = set()
        """Ids that were sent for the position after `_last`, with unknown outcome."""
        self._lock = asyncio.Lock()
        """For `take` and `append`: one message in flight."""

    # -- frd.cluster.log.FencedLog ---------------------------------------------------------------

    async def take(self, owner: str) -> int:
        return await self._thread.call(self._take(owner))

    async def retake(self, owner: str) -> int:
        return await self._thread.call(self._retake(owner))

    async def append(self, data: bytes) -> int:
        if len(data) > MAX_BUNDLE_BYTES:
            raise ValueError(f"bundle: {len(data)} bytes: at most {MAX_BUNDLE_BYTES}")
        return await self._thread.call(self._append(data))

    async def bounds(self) -> Bounds:
        return await self._thread.call(self._bounds())

    async def read(self, first: int, last: int) -> AsyncIterator[Bundle]:
        reader = ForwardReader(self._connection, self._stream, self._subject)
        taker = ""
        try:
            while first <= last:
                piece = partial(self._piece, reader, first, last, taker)
                bundles, taker, first = await self._thread.call(self._answered(piece))
                for bundle in bundles:
                    yield bundle
        finally:
            await self._thread.call(reader.close())

    async def trim(self, before: int, *, max_bytes: int, max_age_s: float = 0.0) -> bool:
        return await self._thread.call(self._trim(before, max_bytes, max_age_s))

    # -- in the thread ---------------------------------------------------------------------------

    async def _take(self, owner: str) -> int:
        async with self._lock:
            self._epoch = 0
            self._takers.clear()
            deadline = self._deadline()
            while True:
                try:
                    return await self._fence(owner, await self._end(deadline), deadline)
                except (Fenced, LogLost):
                    self._check(deadline, "other owners take the log, too")

    async def _retake(self, owner: str) -> int:
        async with self._lock:
            self._epoch = 0
            deadline = self._deadline()
            while True:
                end = await self._end(deadline)
                try:
                    last = await self._get(end) if end else None
                    if last is not None and _taker(last.headers) not in self._takers:
                        raise Fenced(_taken(self._stream, last, " after a loss"))
                    return await self._fence(owner, end, deadline)
                except (LogLost, Unanswered) as error:
                    await self._pause(deadline, str(error))

    async def _fence(self, owner: str, end: int, deadline: float) -> int:
        """Store a fence right after `end`; returns its number.

        Raises:
            Fenced, LogLost, LogUnavailable
        """
        self._last = end
        self._taker = uuid4().hex[:16]
        self._takers.add(self._taker)
        self._unknown.clear()
        # The message is not empty, because some tools do not show empty ones.
        self._epoch = await self._store(b"fence", {FENCE: owner}, deadline)
        return self._epoch

    async def _append(self, data: bytes) -> int:
        async with self._lock:
            if not self._epoch:
                raise Fenced(f"{self._stream}: not taken: take it first")
            try:
                return await self._store(data, {EPOCH: str(self._epoch)}, self._deadline())
            except (Fenced, LogLost):
                self._epoch = 0
                raise

    async def _store(self, data: bytes, headers: Mapping[str, str], deadline: float) -> int:
        """Store one message right after `_last`, whatever happened to earlier attempts."""
        while True:
            identity = self._identity(data)
            self._unknown.add(identity)
            try:
                ack = await self._connection.publish(
                    self._subject,
                    data,
                    {
                        **headers,
                        _ID: identity,
                        "Nats-Expected-Stream": self._stream,
                        "Nats-Expected-Last-Sequence": str(self._last),
                    },
                )
            except Refused:
                stored = await self._answered(self._stored_after_last, deadline)
                if stored is not None:
                    self._advance()
                    if stored == identity:
                        return self._last
                    continue
                why = "refused, but nothing else is stored"
            except (Unanswered, Absent) as error:
                why = str(error)
            else:
                if ack.number != self._last + 1:  # a duplicate from before a loss
                    raise LogLost(f"{self._stream}: {ack.number}: not after {self._last}")
                self._advance()
                return self._last
            if self._epoch and self._is_over(deadline) and await self._is_absent():
                raise LogLost(f"{self._stream}: the stream is gone: take it again")
            await self._pause(deadline, why)

    def _advance(self) -> None:
        self._last += 1
        self._unknown.clear()

    def _identity(self, data: bytes) -> str:
        """Of a message at a position: the same for the same `take` and data."""
        digest = blake2b(data, digest_size=12).hexdigest()
        return f"{self._taker}-{self._epoch}-{self._last + 1}-{digest}"

    async def _stored_after_last(self) -> str | None:
        """The id of our own message after `_last`; None if the refusal has passed.

        Raises:
            Fenced, LogLost, Unanswered
        """
        message = await self._get(self._last + 1)
        if message is not None:
            for identity in self._unknown:
                if (message.headers or {}).get(_ID) == identity:
                    return identity
            raise Fenced(_taken(self._stream, message))
        state = await self._state()
        if state is None or state.last_seq < self._last:
            await self._lost(state)
        if state is not None and state.last_seq > self._last:
            raise Fenced(f"{self._stream}: taken by another owner: drop the cell")
        return None

    async def _lost(self, state: StreamState | None) -> None:
        """The stream ends below `_last`. Lost, or taken by another owner after that?"""
        last = await self._get(state.last_seq) if state is not None and state.last_seq else None
        if last is None or _taker(last.headers) in self._takers:
            end = 0 if last is None else last.seq
            raise LogLost(f"{self._stream}: ends at {end}, not {self._last}: take it again")
        raise Fenced(_taken(self._stream, last, " after a loss"))

    async def _piece(
        self, reader: ForwardReader, first: int, last: int, taker: str
    ) -> tuple[Sequence[Bundle], str, int]:
        """Bundles from `first` on, the taker of the last fence seen, and the next number to read.

        A bundle of an earlier taker after a fence can only be there when the servers lost the end
        of the log, so that its expected position was reached a second time.
        """
        found = await reader.piece(first)
        if not found or found[0][0] > first:
            # Nothing, or a hole. The leader knows whether there is one.
            after = min(found[0][0] if found else last + 1, last + 1)
            if not await self._is_hole(first, after):
                await reader.close()
                raise Unanswered("a consumer left messages out")
            first = after
        bundles = []
        for number, message in found:
            if number > last:
                first = last + 1
                break
            headers = message.headers or {}
            if FENCE in headers:
                taker = _taker(headers)
            elif taker in ("", _taker(headers)):
                epoch = _number(headers.get(EPOCH))
                bundles.append(Bundle(number, epoch, message.data))
            first = number + 1
        return bundles, taker, first

    async def _is_hole(self, first: int, after: int) -> bool:
        """No message from `first` up to, not including `after` exists, as the leader knows."""
        state = await self._state()
        if state is None:
            raise Absent("the stream does not exist")
        if after <= max(state.first_seq, 1) or first > state.last_seq:
            return True
        try:
            message = await self._connection.ask(
                lambda js: js.get_msg(self._stream, first, self._subject, next=True)
            )
        except Absent:
            return True
        return message.seq is None or message.seq >= after

    async def _bounds(self) -> Bounds:
        state = await self._answered(self._state)
        return Bounds(1, 0) if state is None else Bounds(max(state.first_seq, 1), state.last_seq)

    async def _trim(self, before: int, max_bytes: int, max_age_s: float) -> bool:
        """Tried once: the owner waits for it, and will call again."""
        try:
            return await self._trimmed(before, max_bytes, max_age_s)
        except (Unanswered, Absent) as error:
            raise LogUnavailable(f"{self._stream}: {error}: nothing is deleted") from None

    async def _trimmed(self, before: int, max_bytes: int, max_age_s: float) -> bool:
        state = await self._state()
        if state is None or state.first_seq >= before:
            return False
        first = state.first_seq
        if state.bytes > max_bytes:
            # The sizes of single messages are not known.
            first += -(-state.messages * (state.bytes - max_bytes) // state.bytes)
        if max_age_s:
            first = max(first, await first_since(self._connection, self._stream, max_age_s))
        first = min(first, before)
        if first <= state.first_seq:
            return False
        await self._connection.ask(lambda js: js.purge_stream(self._stream, seq=first))
        return True

    async def _end(self, deadline: float) -> int:
        """The last sequence; creates the stream if it does not exist, as after a loss."""
        create = partial(self._connection.ask, lambda js: js.add_stream(self._config))
        while (state := await self._answered(self._state, deadline)) is None:
            await self._answered(create, deadline)
        return state.last_seq

    async def _state(self) -> StreamState | None:
        try:
            return (await self._connection.ask(lambda js: js.stream_info(self._stream))).state
        except Absent:
            return None

    async def _is_absent(self) -> bool:
        try:
            return await self._state() is None
        except Unanswered:
            return False

    async def _get(self, number: int) -> RawStreamMsg | None:
        try:
            return await self._connection.ask(lambda js: js.get_msg(self._stream, number))
        except Absent:
            return None

    # -- patience --------------------------------------------------------------------------------

    async def _answered(self, ask: Callable[[], Awaitable[T]], deadline: float | None = None) -> T:
        """What `ask` returns, which is called until the servers answer."""
        deadline = self._deadline() if deadline is None else deadline
        while True:
            try:
                return await ask()
            except (Unanswered, Absent) as error:
                await self._pause(deadline, str(error))

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience_s

    def _is_over(self, deadline: float) -> bool:
        return asyncio.get_running_loop().time() > deadline

    def _check(self, deadline: float, why: str) -> None:
        if self._is_over(deadline):
            raise LogUnavailable(f"{self._stream}: {why}: check the NATS servers")

    async def _pause(self, deadline: float, why: str) -> None:
        self._check(deadline, why)
        await asyncio.sleep(0.1)


def _taker(headers: Mapping[str, str] | None) -> str:
    return (headers or {}).get(_ID, "").partition("-")[0]


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _taken(stream: str, message: RawStreamMsg, when: str = "") -> str:
    """Text of an error: the message is of another owner."""
    headers = message.headers or {}
    writer = headers.get(FENCE) or f"epoch {headers.get(EPOCH, 'unknown')}"
    return f"{stream}: taken by {writer}{when}: drop the cell"
