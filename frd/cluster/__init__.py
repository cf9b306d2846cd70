"""Several replicas of the service as one: which replica owns which jobs, and what it leaves to the
next owner.

Jobs are hashed into a fixed number of *cells* (`cells`). A cell is owned by one replica at a time:
`lease` says by which one, from heartbeats and compare-and-set claims in a `registry`. The claim is
the fence: every value that an owner keeps for the next one (`cluster.CellStore`) names it. `nats`
implements both on NATS JetStream. Without the section ``[cluster]`` of the
configuration nothing here is used, and NATS need not be installed.
"""

from typing import Final

INSTALL: Final = "pip install httpx nats-py nkeys"
"""The packages of the extra ``cluster``."""


def missing(package: str | None) -> str:
    """For a configuration that needs `package`, which is not installed."""
    return f"cluster.servers: set, and {package} is missing: {INSTALL}"
