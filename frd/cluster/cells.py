"""Cells: the fixed parts of a cluster into which jobs are hashed, and who should own which.

Both hashes are part of the cluster's format. They never change, because replicas of different
releases must agree on them.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

CELLS: Final = 64
"""Number of cells of every cluster, for its whole life."""


def cell_of(job: str) -> int:
    """The cell of a job, 0 to `CELLS` - 1."""
    return _hash(job.encode("utf-8", "surrogatepass")) % CELLS


def preferred(cell: int, replicas: Collection[str]) -> str:
    """The replica that should own `cell`: the one with the highest hash of cell and replica.

    A replica that comes or goes changes only the cells that are or were its own (rendezvous
    hashing: Thaler and Ravishankar, 1996). `replicas` must not be empty.
    """
    return max(replicas, key=lambda name: (_hash(f"{cell}/{name}".encode()), name))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
