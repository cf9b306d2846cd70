"""Which replica owns which cell, as the service sees it.

The cluster's implementation runs in a thread (`frd.cluster.heartbeats`), because the analysis of a
large job may block the service's event loop. What it decides arrives in that loop as calls on an
`Owner`. A service without a cluster has one cell and owns it for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that is alive, as its last heartbeat describes it."""

    name: str
    grpc: str
    """HOST:PORT for agents."""
    http: str
    """URL of its HTTP API, for the other replicas."""
    version: str
    cells: tuple[int, ...] = ()
    """Cells that it owns, sorted."""
    is_late: bool = False
    """Its last heartbeats are missing, so that it may be dead."""
    is_leaving: bool = False
    """It hands its cells over, and ends."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment, as one replica sees it."""

    me: str = ""
    replicas: Sequence[Replica] = ()
    """All living replicas, this one included, by name."""
    owners: Mapping[int, str] = field(default_factory=dict)
    """The replica that owns each cell; cells without an owner are absent."""
    connected: bool = False
    """The registry has answered recently."""
    durable: bool = True
    """The servers of the log sync every write to the disk before they confirm it."""

    def replica(self, name: str) -> Replica | None:
        return next((r for r in self.replicas if r.name == name), None)


class Owner(Protocol):
    """What the service does about its cells; called in the service's event loop."""

    def gained(self, cell: int, claim: int, why: str) -> None:
        """The claim on the cell succeeded, and has the revision `claim`, which every write of the
        cell names: begin to take it over. `why` is a word for a metric: `start` (no other replica
        had it), `dead` or `released`."""
        ...

    def lost(self, cell: int) -> None:
        """Another replica owns the cell: drop it, and write nothing more."""
        ...

    def drain(self, cell: int, successor: str) -> None:
        """Hand the cell over: write what is left, then call `Lease.release`."""
        ...


class Lease(Protocol):
    """Without an implementation nothing happens, as in a service without a cluster."""

    @property
    def view(self) -> ClusterView:
        """May be read in any thread."""
        ...

    @property
    def is_sure(self) -> bool:
        """No other replica can have taken a cell of this one. False after a pause of this process,
        and after some heartbeats without confirmation, until the claims have been read: nothing
        may be acknowledged, exported or sent to people. May be read in any thread."""
        return True

    async def start(self, owner: Owner) -> None:
        """Begin with heartbeats and claims.

        Raises:
            ClusterError: the servers cannot be used: naming the key and what to do.
        """
        return

    def ticked(self) -> None:
        """The service's event loop runs. Without such calls for 5 s, heartbeats stop."""
        return

    def owned(self, cell: int) -> None:
        """The takeover of a gained cell is complete."""
        return

    async def release(self, cell: int) -> None:
        """The service no longer has the cell: another replica may claim it now."""
        return

    def give_up(self, cell: int) -> None:
        """As `release`, without waiting: the log of the cell refused this replica, or its takeover
        failed or was cancelled. Another owner's claim stays."""
        return

    async def leave(self) -> None:
        """The service will end: claim nothing more, and report that to the other replicas. No call
        of `Owner.gained` follows."""
        return

    async def stop(self) -> None:
        """End heartbeats; other replicas take what is left immediately."""
        return
