"""What the service uses of a cluster, whatever implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from frd.cluster.findings import FindingStore
from frd.cluster.lease import Lease
from frd.cluster.log import FencedLog
from frd.cluster.registry import Keys


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
