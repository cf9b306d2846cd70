"""Cluster on NATS JetStream: the only package that imports the NATS library.

`connect` is the entry point. Streams of a cluster ``frd``: ``KV_frd`` (registry), ``frd-J00`` to
``frd-J63`` (the logs of the cells) and ``frd-F`` (findings).
"""

from frd.cluster.nats.opening import connect

__all__ = ["connect"]
