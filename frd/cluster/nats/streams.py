"""The stream of a cluster: its name, subjects and limits."""

from __future__ import annotations

from typing import Final

from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from frd.config import ClusterOptions

DUPLICATE_WINDOW_S: Final = 120.0
"""A message that is sent again within this time is recognized by the server, by its id."""
MAX_PAYLOAD: Final = 901_000
"""Bytes of the largest value of a cell, with headers; the default of a server is 1 MiB."""
COMPARED: Final = {
    "subjects": "subjects",
    "num_replicas": "replicas",
    "max_bytes": "max_bytes",
    "max_age": "max_age",
    "max_msgs_per_subject": "max_msgs_per_subject",
    "storage": "storage",
    "discard": "discard",
    "duplicate_window": "duplicate_window",
    "allow_direct": "allow_direct",
}
"""Properties of an existing stream that must be as frd would create them, and their names in
messages."""


def registry_stream(options: ClusterOptions) -> StreamConfig:
    """The keys of the registry and the values of cells; also readable as the key-value bucket of
    that name. No age limit: it would delete claims, which are fences."""
    return StreamConfig(
        name=f"KV_{options.name}",
        subjects=[f"$KV.{options.name}.>"],
        storage=StorageType.FILE,
        num_replicas=options.replicas,
        max_bytes=-1,
        max_age=0,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_rollup_hdrs=True,
        allow_direct=False,
    )
