"""Values by subject in a JetStream stream that keeps one message for each, and compare-and-set.

The sequence of a subject's message is its revision. Reads go to the leader of the stream: other
servers may answer with an outdated value. The registry of a cluster is a key-value bucket of
JetStream, used by its plain messages. The library's key-value interface is not used: its watchers
may stay silent for good after the death of a leader, and its reads may be outdated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from frd.cluster.nats.connection import Absent, Connection, Refused, Unanswered
from frd.cluster.registry import Conflict, Entry, RegistryUnavailable

_NO_MESSAGE: Final = (10043, 10057)
"""Error codes of the server: the stream has no message of this sequence."""


async def get_value(connection: Connection, stream: str, subject: str) -> Entry | None:
    """
    Raises:
        RegistryUnavailable: no answer in time.
    """
    try:
        message = await connection.ask(lambda js: js.get_msg(stream, subject=subject))
    except Absent:
        return None
    except Unanswered as error:
        raise unavailable(stream, error) from None
    return Entry(message.data or b"", message.seq or 0)


async def put_value(
    connection: Connection, stream: str, subject: str, data: bytes, revision: int
) -> int:
    """Store `data` if the subject has this revision (0: none); returns the new one.

    A refused write of what is stored already has succeeded before, without an answer.

    Raises:
        Conflict, RegistryUnavailable
    """
    headers = {
        "Nats-Expected-Stream": stream,
        "Nats-Expected-Last-Subject-Sequence": str(revision),
    }
    try:
        return (await connection.publish(subject, data, headers)).number
    except Refused:
        stored = await get_value(connection, stream, subject)
    except (Unanswered, Absent) as error:
        raise unavailable(stream, error) from None
    if (0 if stored is None else stored.revision) == revision:
        raise RegistryUnavailable(f"{stream}: an earlier write is in flight: try again")
    if stored is not None and stored.value == data:
        return stored.revision
    raise Conflict(
        f"{subject}: revision {stored and stored.revision}, not {revision}: read it again"
    )


async def delete_value(connection: Connection, stream: str, revision: int) -> None:
    """Delete what has this revision, if it is there: nothing else ever has it. A marker of the
    deletion would be one more key.

    Raises:
        RegistryUnavailable: no answer in time.
    """
    try:
        await connection.ask(lambda js: js.delete_msg(stream, revision))
    except Absent:
        pass
    except Unanswered as error:
        if error.code not in _NO_MESSAGE:
            raise unavailable(stream, error) from None


def unavailable(stream: str, error: Exception) -> RegistryUnavailable:
    return RegistryUnavailable(f"{stream}: {error}: check the NATS servers")


class JetStreamRegistry:
    """Implements `frd.cluster.registry.Registry`, for the event loop of `connection`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        return await get_value(self._connection, self._stream, self._prefix + key)

    async def find(self, prefix: str) -> Mapping[str, Entry]:
        try:
            info = await self._connection.ask(
                lambda js: js.stream_info(self._stream, f"{self._prefix}{prefix}>")
            )
        except (Unanswered, Absent) as error:
            raise unavailable(self._stream, error) from None
        keys = [subject.removeprefix(self._prefix) for subject in info.state.subjects or ()]
        entries = await asyncio.gather(*map(self.get, keys))
        return {key: entry for key, entry in zip(keys, entries, strict=True) if entry is not None}

    async def put(self, key: str, value: bytes, revision: int) -> int:
        subject = self._prefix + key
        return await put_value(self._connection, self._stream, subject, value, revision)

    async def delete(self, key: str, revision: int) -> None:
        await delete_value(self._connection, self._stream, revision)
