"""Reading a stream forward, in pieces, whatever fails meanwhile.

A consumer lives in the memory of one server and dies with it; the library's ordered consumers may
stay silent for good after that. So a consumer here is cheap and short-lived: it is made again, from
the next wanted message, after any error and after any silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import FetchTimeoutError

from frd.cluster.nats.connection import Connection

_BATCH: Final = 16
"""Messages of a piece: at most 16 MB."""
_SILENCE_S: Final = 1.0
"""A consumer that delivers nothing for so long is made again."""
_CHEAP: Final[dict[str, Any]] = {
    "ack_policy": AckPolicy.NONE,
    "mem_storage": True,
    "num_replicas": 1,
    "inactive_threshold": 10,
}
"""Properties of consumers: kept by one server, which deletes them after ten seconds without use."""


class ForwardReader:
    """Messages of a stream from a sequence on; `subject` selects (NATS wildcards)."""

    def __init__(self, connection: Connection, stream: str, subject: str) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._consumer: JetStreamContext.PullSubscription | None = None
        self._next = 0

    async def piece(self, first: int) -> Sequence[tuple[int, Msg]]:
        """The next messages with sequence `first` or above, in order; empty: there was none within
        a second. The numbers may begin above `first`.

        Raises:
            Unanswered, Absent: the consumer cannot be used; the next call makes another one.
        """
        if self._consumer is None or self._next != first:
            await self._open(first)
        consumer = self._consumer
        assert consumer is not None

        async def fetch(_: JetStreamContext) -> list[Msg] | None:
            try:
                return await consumer.fetch(_BATCH, _SILENCE_S, heartbeat=_SILENCE_S / 4)
            except FetchTimeoutError:  # only heartbeats of the consumer: it lives
                return []
            except TimeoutError:
                return None

        try:
            messages = await self._connection.ask(fetch, _SILENCE_S)
        except BaseException:
            await self.close()
            raise
        if messages is None:
            await self.close()
            return ()
        found = [(message.metadata.sequence.stream, message) for message in messages]
        if found:
            self._next = found[-1][0] + 1
        return found

    async def close(self) -> None:
        """Forget the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(consumer.unsubscribe(), 1)

    async def _open(self, first: int) -> None:
        await self.close()
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(first, 1),
            **_CHEAP,
        )
        consumer = await self._connection.ask(
            lambda js: js.pull_subscribe(self._subject, stream=self._stream, config=config)
        )
        self._consumer, self._next = consumer, first
