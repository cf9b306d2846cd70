"""Reports waits that no recorder shows to the engine, and writes them into the journal.

What an agent sends in answer to a request is not journaled, so a replay learns of such waits only
from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frd.engine.engine import Engine
from frd.model import AlignedNs, AttemptKey, NodeRawNs, UnrecordedWait
from frd.service.journal.log import Log
from frd.service.journal.payloads import Waited, encode_payload
from frd.store.records import RecordKind


class Unrecorded:
    def __init__(self, engine: Engine, journal: Log, now: Callable[[], AlignedNs]) -> None:
        self._engine = engine
        self._journal = journal
        self._now = now

    def observe(self, key: AttemptKey, wait: UnrecordedWait) -> None:
        """A wait in node time, or its end; nothing happens if the attempt or rank is unknown."""
        attempt = self._engine.known(key)
        if attempt is not None and wait.rank in attempt.tables.ranks.infos:
            payload = encode_payload(Waited(key.job, key.attempt, wait))
            self._journal.record(RecordKind.WAITED, self._now(), payload=payload)
            attempt.observe_unrecorded(wait)

    def observe_aligned(self, key: AttemptKey, wait: UnrecordedWait) -> None:
        """The same for times of the service's clock."""
        attempt = self._engine.known(key)
        if attempt is not None and wait.rank in (ranks := attempt.tables.ranks).infos:
            since, as_of = (
                NodeRawNs(int(ranks.to_node(wait.rank, AlignedNs(at))))
                for at in (wait.since_ns, wait.as_of_ns)
            )
            self.observe(key, replace(wait, since_ns=since, as_of_ns=as_of))
