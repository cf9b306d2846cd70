"""The last version of every finding of the cluster, as replicas store and copy it.

The owner of a cell writes; every replica reads along, so that each can answer for the past of all
jobs. The log of the cell remains the truth: this is a projection of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


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
