"""The registry of a cluster as a key-value bucket of JetStream, used by its plain messages.

The library's key-value interface is not used: its watchers may stay silent for good after the death
of a leader, and its reads may be outdated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from frd.cluster.nats import compare_and_set
from frd.cluster.nats.connection import Absent, Connection, Unanswered
from frd.cluster.registry import Entry

_NO_MESSAGE: Final = (10043, 10057)
"""Error codes of the server: the stream has no message of this sequence."""


class JetStreamRegistry:
    """Implements `frd.cluster.registry.Registry`, for the event loop of `connection`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        return await compare_and_set.get(self._connection, self._stream, self._prefix + key)

    async def find(self, prefix: str) -> Mapping[str, Entry]:
        try:
            info = await self._connection.ask(
                lambda js: js.stream_info(self._stream, f"{self._prefix}{prefix}>")
            )
        except (Unanswered, Absent) as error:
            raise compare_and_set.unavailable(self._stream, error) from None
        keys = [subject.removeprefix(self._prefix) for subject in info.state.subjects or ()]
        entries = await asyncio.gather(*map(self.get, keys))
        return {key: entry for key, entry in zip(keys, entries, strict=True) if entry is not None}

    async def put(self, key: str, value: bytes, revision: int) -> int:
        subject = self._prefix + key
        return await compare_and_set.put(self._connection, self._stream, subject, value, revision)

    async def delete(self, key: str, revision: int) -> None:
        # Nothing else ever has this sequence. A marker of the deletion would be one more key.
        try:
            await self._connection.ask(lambda js: js.delete_msg(self._stream, revision))
        except Absent:
            pass
        except Unanswered as error:
            if error.code not in _NO_MESSAGE:
                raise compare_and_set.unavailable(self._stream, error) from None
