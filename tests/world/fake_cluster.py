"""Log, registry and findings of a cluster in memory, with faults of the servers.

They follow the contract that `tests/contract` checks against real NATS servers. Every request may
be delayed, have no leader, or lose its answer after it was done. Time is the event loop's, which a
simulation may bend.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from frd.cluster.cluster import STATE, CellValue, StoredFinding, Superseded
from frd.cluster.log import MAX_BUNDLE_BYTES, Bounds, Bundle, Fenced, LogLost, LogUnavailable
from frd.cluster.registry import Conflict, Entry, RegistryUnavailable

Loss: TypeAlias = Literal["request", "answer"]


class NoAnswer(Exception):
    """Whether the request was carried out is not known."""


@dataclass(slots=True)
class Faults:
    """What happens to requests; shared by all clients, or one for each (a cut client)."""

    random: random.Random = field(default_factory=lambda: random.Random(0))
    lost_requests: float = 0.0
    """Probability that a request is not carried out."""
    lost_answers: float = 0.0
    """Probability that a request is carried out and the answer lost."""
    delay_s: float = 0.0
    """Longest delay of a request."""
    late_writes: float = 0.0
    """Probability that a write has no answer and is carried out later, in `late_s`."""
    late_s: float = 5.0
    no_leader_until: float = 0.0
    """Time of the event loop until which nothing is answered."""
    paused_until: float = 0.0
    """Time of the event loop until which the client is stopped: it sends and hears nothing."""
    timeout_s: float = 2.0
    """So long a client waits for an answer that is lost."""
    losses: list[Loss] = field(default_factory=list)
    """What happens to the next requests, one by one, before chance decides."""

    async def before(self) -> None:
        await self._resumed()
        if self.delay_s:
            await asyncio.sleep(self.random.uniform(0, self.delay_s))
        if asyncio.get_running_loop().time() < self.no_leader_until:
            await asyncio.sleep(0.01)
            raise NoAnswer
        if self.losses[:1] == ["request"]:
            self.losses.pop(0)
            raise NoAnswer
        await self._lose(self.lost_requests)

    async def late(self, write: Callable[[], object]) -> None:
        if self.late_writes and self.random.random() < self.late_writes:
            loop = asyncio.get_running_loop()
            loop.call_later(self.random.uniform(0, self.late_s), write)
            await asyncio.sleep(self.timeout_s)
            raise NoAnswer

    async def after(self) -> None:
        await self._resumed()
        if self.losses[:1] == ["answer"]:
            self.losses.pop(0)
            raise NoAnswer
        await self._lose(self.lost_answers)

    async def _resumed(self) -> None:
        while (pause := self.paused_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(pause)

    async def _lose(self, probability: float) -> None:
        if probability and self.random.random() < probability:
            await asyncio.sleep(self.timeout_s)
            raise NoAnswer


class Stored(NamedTuple):
    epoch: int
    """0: a fence."""
    writer: object
    data: bytes
    at: float
    """Time of the event loop."""


class FakeStream:
    """The log of one cell, as the servers hold it."""

    def __init__(self) -> None:
        self.first = 1
        self.messages: list[Stored] = []

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def get(self, number: int) -> Stored | None:
        if self.first <= number <= self.last:
            return self.messages[number - self.first]
        return None

    def lose_after(self, last: int) -> None:
        """The servers lose all messages above `last`."""
        del self.messages[max(0, last + 1 - self.first) :]


class FakeLog:
    """Implements `frd.cluster.log.FencedLog`: one owner's view of the stream."""

    def __init__(self, stream: FakeStream, faults: Faults, patience_s: float = 10.0) -> None:
        self._stream = stream
        self._faults = faults
        self._patience_s = patience_s
        self._epoch = 0
        self._last = 0
        self._taker: object = None
        self._takers: list[object] = []

    async def take(self, owner: str) -> int:
        deadline = self._deadline()
        self._epoch = 0
        self._takers.clear()
        while True:
            await self._ask(deadline)
            try:
                return await self._fence(owner, deadline)
            except (Fenced, LogLost):
                await self._pause(deadline)

    async def retake(self, owner: str) -> int:
        deadline = self._deadline()
        self._epoch = 0
        while True:
            await self._ask(deadline)
            end = self._stream.get(self._stream.last)
            if end is not None and end.writer not in self._takers:
                raise Fenced("taken by another owner after a loss")
            try:
                return await self._fence(owner, deadline)
            except LogLost:
                await self._pause(deadline)

    async def _fence(self, owner: str, deadline: float) -> int:
        self._taker = object()
        self._takers.append(self._taker)
        self._last = self._stream.last
        self._epoch = await self._store(owner.encode(), deadline)
        return self._epoch

    async def append(self, data: bytes) -> int:
        if len(data) > MAX_BUNDLE_BYTES:
            raise ValueError(f"bundle: {len(data)} bytes: at most {MAX_BUNDLE_BYTES}")
        if not self._epoch:
            raise Fenced("not taken")
        try:
            return await self._store(data, self._deadline())
        except (Fenced, LogLost):
            self._epoch = 0
            raise

    async def _store(self, data: bytes, deadline: float) -> int:
        message = Stored(self._epoch, self._taker, data, asyncio.get_running_loop().time())
        while True:
            try:
                await self._faults.before()
                number = self._publish(message)
                await self._faults.after()
                self._last = number
                return number
            except NoAnswer:
                await self._pause(deadline)

    async def bounds(self) -> Bounds:
        await self._ask()
        return Bounds(self._stream.first, self._stream.last)

    async def read(self, first: int, last: int) -> AsyncIterator[Bundle]:
        writer: object = None
        for number in range(first, last + 1):
            if number % 16 == first % 16:
                await self._ask()
            if (stored := self._stream.get(number)) is None:
                continue
            if not stored.epoch:
                writer = stored.writer
            elif writer in (None, stored.writer):
                yield Bundle(number, stored.epoch, stored.data)

    async def trim(self, before: int, *, max_bytes: int, max_age_s: float = 0.0) -> bool:
        await self._ask()
        stream, gone = self._stream, 0
        since = asyncio.get_running_loop().time() - max_age_s if max_age_s else -1.0
        size = sum(len(message.data) for message in stream.messages)
        for message in stream.messages[: max(0, before - stream.first)]:
            if size <= max_bytes and message.at >= since:
                break
            size -= len(message.data)
            gone += 1
        del stream.messages[:gone]
        stream.first += gone
        return gone > 0

    def _publish(self, message: Stored) -> int:
        """What the server does, and how `JetStreamLog` understands a refusal."""
        stream = self._stream
        if stream.last == self._last:
            stream.messages.append(message)
            return stream.last
        after = stream.get(self._last + 1)
        if after is not None and after.writer is self._taker:
            if (after.epoch, after.data) == (message.epoch, message.data):
                return self._last + 1  # an earlier attempt was stored
            self._last += 1
            return self._publish(message)
        if stream.last > self._last:
            raise Fenced("taken by another owner")
        end = stream.get(stream.last)
        if end is None or end.writer in self._takers:
            raise LogLost("ends too early")
        raise Fenced("taken by another owner after a loss")

    async def _ask(self, deadline: float | None = None) -> None:
        deadline = self._deadline() if deadline is None else deadline
        while True:
            try:
                return await self._faults.before()
            except NoAnswer:
                await self._pause(deadline)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience_s

    async def _pause(self, deadline: float) -> None:
        if asyncio.get_running_loop().time() >= deadline:
            raise LogUnavailable("no answer")
        await asyncio.sleep(0.1)


class FakeKeys:
    """Values by key with revisions, as the servers hold them."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.last = 0

    async def put(self, faults: Faults, key: str, value: bytes, revision: int) -> int:
        try:
            await faults.before()
            await faults.late(lambda: self._write(key, value, revision))
            number = self._write(key, value, revision)
            await faults.after()
        except NoAnswer:
            raise RegistryUnavailable("no answer") from None
        if not number:
            raise Conflict(f"{key}: another revision than {revision}")
        return number

    def _write(self, key: str, value: bytes, revision: int) -> int:
        """Its new revision; 0: refused."""
        entry = self.entries.get(key)
        if (entry.revision if entry else 0) != revision:
            return entry.revision if entry is not None and entry.value == value else 0
        self.last += 1
        self.entries[key] = Entry(value, self.last)
        return self.last

    async def delete(self, faults: Faults, key: str, revision: int) -> None:
        try:
            await faults.before()
            if (entry := self.entries.get(key)) is not None and entry.revision == revision:
                del self.entries[key]
            await faults.after()
        except NoAnswer:
            raise RegistryUnavailable("no answer") from None


async def _answered(faults: Faults) -> None:
    try:
        await faults.before()
        await faults.after()
    except NoAnswer:
        raise RegistryUnavailable("no answer") from None


class FakeRegistry:
    """Implements `frd.cluster.registry.Registry`: one client of the keys."""

    def __init__(self, keys: FakeKeys, faults: Faults) -> None:
        self._keys = keys
        self._faults = faults

    async def get(self, key: str) -> Entry | None:
        await _answered(self._faults)
        return self._keys.entries.get(key)

    async def find(self, prefix: str) -> Mapping[str, Entry]:
        await _answered(self._faults)
        return {k: entry for k, entry in self._keys.entries.items() if k.startswith(prefix)}

    async def put(self, key: str, value: bytes, revision: int) -> int:
        return await self._keys.put(self._faults, key, value, revision)

    async def delete(self, key: str, revision: int) -> None:
        await self._keys.delete(self._faults, key, revision)


class FakeFindings:
    """Implements `frd.cluster.cluster.FindingStore`; keys are ``<nn>.<id>``."""

    def __init__(self, keys: FakeKeys, faults: Faults) -> None:
        self._keys = keys
        self._faults = faults

    async def put(self, cell: int, id: str, data: bytes, revision: int) -> int:
        return await self._keys.put(self._faults, f"{cell:02}.{id}", data, revision)

    async def of_cell(self, cell: int) -> Sequence[StoredFinding]:
        await _answered(self._faults)
        return [finding for finding in self._since(0) if finding.cell == cell]

    async def tail(self, revision: int = 0) -> AsyncIterator[StoredFinding]:
        while True:
            for finding in self._since(revision):
                revision = finding.revision
                yield finding
            await asyncio.sleep(0.05)

    def _since(self, revision: int) -> Sequence[StoredFinding]:
        found = [
            StoredFinding(int(key[:2]), key[3:], entry.value, entry.revision)
            for key, entry in self._keys.entries.items()
            if entry.revision > revision
        ]
        return sorted(found, key=lambda finding: finding.revision)


class FakeCells:
    """Implements `frd.cluster.cluster.CellStore` on the keys of a registry, whose claims fence it;
    keys are ``v.<nn>.<key>``."""

    def __init__(self, keys: FakeKeys, faults: Faults) -> None:
        self._keys = keys
        self._faults = faults

    async def put(self, cell: int, claim: int, key: str, data: bytes) -> int:
        keys = self._keys
        try:
            await self._faults.before()
            current = keys.entries.get(f"c.{cell:02}")
            if current is None or current.revision != claim:
                raise Superseded(f"cell {cell}: another claim than {claim}")
            keys.last += 1
            keys.entries[f"v.{cell:02}.{key}"] = Entry(data, keys.last)
            number = keys.last
            await self._faults.after()
        except NoAnswer:
            raise RegistryUnavailable("no answer") from None
        return number

    async def delete(self, value: CellValue) -> None:
        await self._keys.delete(self._faults, f"v.{value.cell:02}.{value.key}", value.revision)

    async def of_cell(self, cell: int) -> Sequence[CellValue]:
        await _answered(self._faults)
        return [value for value in self._since(0) if value.cell == cell]

    async def tail(self, revision: int = 0) -> AsyncIterator[CellValue]:
        while True:
            for value in self._since(revision):
                revision = value.revision
                if value.key != STATE:
                    yield value
            await asyncio.sleep(0.05)

    def _since(self, revision: int) -> Sequence[CellValue]:
        found = [
            CellValue(int(key[2:4]), key[5:], entry.value, entry.revision)
            for key, entry in self._keys.entries.items()
            if key.startswith("v.") and entry.revision > revision
        ]
        return sorted(found, key=lambda value: value.revision)
