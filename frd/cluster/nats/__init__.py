"""Cluster on NATS JetStream: the only package that imports the NATS library.

Entry points: `connect` for a replica, and `reading` for a program that only reads a log. Streams of
a cluster ``frd``: ``KV_frd`` (registry), ``frd-J00`` to ``frd-J63`` (the logs of the cells) and
``frd-F`` (findings).
"""

from frd.cluster.nats.opening import connect, reading

__all__ = ["connect", "reading"]
