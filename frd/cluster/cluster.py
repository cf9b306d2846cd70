"""What the service uses of a cluster, whatever implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from frd.cluster.lease import Lease
from frd.cluster.registry import Keys
from frd.errors import FrdError


class Superseded(FrdError):
    """Another replica has claimed the cell: its former owner must drop it, and write nothing."""


class CellValue(NamedTuple):
    """A value of a cell, which its next owner reads."""

    cell: int
    key: str
    """`STATE`, or the id of a finding."""
    data: bytes
    """JSON."""
    revision: int
    """Rises with every change of any value."""


STATE: Final = ""
"""The key of what is kept of a cell besides its findings."""


class CellStore(Protocol):
    """What owners keep for the next ones. The claim of an owner is the fence: after another claim
    of the cell is stored, no `put` that names an earlier one is."""

    async def put(self, cell: int, claim: int, key: str, data: bytes) -> int:
        """Store a value for the owner whose claim has the revision `claim`; returns the value's
        revision. One call at a time for each cell. Again with the same arguments after
        `RegistryUnavailable`: it is stored.

        Raises:
            Superseded: the cell has another claim.
            RegistryUnavailable: no answer in time; whether it is stored is not known.
            StoreError: this value can never be stored: it is too large.
        """
        ...

    async def delete(self, value: CellValue) -> None:
        """Delete a value if it has this revision still; otherwise nothing happens.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...

    async def of_cell(self, cell: int) -> Sequence[CellValue]:
        """All values of the cell, by revision. Called after a claim is stored, it has everything
        that earlier owners have stored.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...

    def tail(self, revision: int = 0) -> AsyncIterator[CellValue]:
        """Findings of all cells with a revision above `revision`, by revision, and then each that
        is stored; it never ends. A finding that changes meanwhile may come once, with its last
        version. Deletions are not reported."""
        ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """All parts are for the event loop in which the cluster was opened."""

    lease: Lease
    values: CellStore
    keys: Keys
    """Of the registry; not those of replicas and cells."""
    close: Callable[[], Awaitable[None]]
    """Call it last, after `Lease.stop`."""
