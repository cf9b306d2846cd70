"""Cluster on NATS JetStream: the only package that imports the NATS library.

Entry point: `connect`. A cluster ``frd`` has one stream, ``KV_frd``, with its registry and the
values of its cells.
"""

from frd.cluster.nats.opening import connect

__all__ = ["connect"]
