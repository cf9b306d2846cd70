"""What the service uses of a cluster, whatever implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from frd.cluster.lease import Lease
from frd.cluster.log import FencedLog
from frd.cluster.registry import Keys


class StoredFinding(NamedTuple):
    cell: int
    id: str
    data: bytes
    """JSON."""
    revision: int
    """Rises with every change of any finding."""


class FindingStore(Protocol):
    async def put(self, cell: int, id: str, data: bytes, revision: int) -> int:
        """Store the finding if its revision is `revision` (0: it is new); returns the new one.

        Again with the same arguments after `RegistryUnavailable`: it is stored once.

        Raises:
            Conflict: it has another revision.
            RegistryUnavailable: no answer in time.
        """
        ...

    async def of_cell(self, cell: int) -> Sequence[StoredFinding]:
        """All findings of the cell, by revision.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...

    def tail(self, revision: int = 0) -> AsyncIterator[StoredFinding]:
        """Findings with a revision above `revision`, by revision, and then each that is stored;
        it never ends. A finding that changes meanwhile may come once, with its last version."""
        ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """All parts are for the event loop in which the cluster was opened."""

    lease: Lease
    log: Callable[[int], FencedLog]
    """A new owner's, or reader's, access to the log of a cell."""
    findings: FindingStore
    keys: Keys
    """Of the registry; not those of replicas and cells."""
    close: Callable[[], Awaitable[None]]
    """Call it last, after `Lease.stop`."""
