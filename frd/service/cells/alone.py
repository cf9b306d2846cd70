"""The lease of a service without a cluster: one cell, which is its own for good.

That no other process uses the same data directory is ensured by a lock on it (`frd.service.app`).
"""

from __future__ import annotations

from frd.cluster.lease import ClusterView, Owner


class LocalLease:
    """A `Lease`."""

    view = ClusterView()

    async def start(self, owner: Owner) -> None:
        pass

    def ticked(self) -> None:
        pass

    def owned(self, cell: int) -> None:
        pass

    async def release(self, cell: int) -> None:
        pass

    def give_up(self, cell: int) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def stop(self) -> None:
        pass
