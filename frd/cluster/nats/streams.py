"""The streams of a cluster: their names, subjects and limits."""

from __future__ import annotations

from typing import Final

from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from frd.config import ClusterOptions

DUPLICATE_WINDOW_S: Final = 120.0
"""A message that is sent again within this time is recognized by the server, by its id."""
_FINDING_AGE_S: Final = 30 * 86_400.0
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


def log_stream(options: ClusterOptions, cell: int) -> StreamConfig:
    """The log of one cell. Its oldest bundles go when it is full."""
    return StreamConfig(
        name=f"{options.name}-J{cell:02}",
        subjects=[f"{options.name}.j.{cell:02}"],
        storage=StorageType.FILE,
        num_replicas=options.replicas,
        max_bytes=options.log_bytes,
        max_age=0,
        discard=DiscardPolicy.OLD,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_direct=False,  # a replica of the stream may answer late
    )


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


def finding_stream(options: ClusterOptions) -> StreamConfig:
    """The last version of every finding."""
    return StreamConfig(
        name=f"{options.name}-F",
        subjects=[f"{options.name}.f.>"],
        storage=StorageType.FILE,
        num_replicas=options.replicas,
        max_bytes=-1,
        max_age=_FINDING_AGE_S,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.OLD,
        duplicate_window=2,
        allow_direct=False,
    )
