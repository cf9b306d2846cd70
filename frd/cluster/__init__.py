"""Several replicas of the service as one: which replica owns which jobs, and their common log.

Jobs are hashed into a fixed number of *cells* (`cells`). A cell is owned by one replica at a time:
`lease` says by which one, from heartbeats and compare-and-set claims in a `registry`. Safety does
not depend on it: only the `log` of a cell decides who may write, because a new owner fences it.
`nats` implements registry and log on NATS JetStream. Without the section ``[cluster]`` of the
configuration nothing here is used, and NATS need not be installed.
"""

from typing import Final

INSTALL: Final = "pip install httpx nats-py nkeys"
"""The packages of the extra ``cluster``."""


def missing(package: str | None) -> str:
    """For a configuration that needs `package`, which is not installed."""
    return f"cluster.servers: set, and {package} is missing: {INSTALL}"
