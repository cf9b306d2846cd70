"""What the keys of the registry hold, as JSON. Replicas of several releases read them: new
fields need defaults."""

from __future__ import annotations

import msgspec

from frd.cluster.ownership import Claim
from frd.cluster.registry import Entry
from frd.decodable import decodable


@decodable
class HeartbeatValue(msgspec.Struct):
    """Value of ``r.<replica>``."""

    grpc: str
    http: str
    version: str
    generation: int
    cells: dict[int, int] = {}
    leaving: bool = False


@decodable
class ClaimValue(msgspec.Struct):
    """Value of ``c.<nn>``."""

    owner: str
    generation: int


def heartbeat_of(entry: Entry) -> HeartbeatValue | None:
    """None: not readable; such a replica is not known to live."""
    try:
        return msgspec.json.decode(entry.value, type=HeartbeatValue)
    except msgspec.MsgspecError:
        return None


def generation_of(entry: Entry | None) -> int:
    value = heartbeat_of(entry) if entry is not None else None
    return value.generation if value else 0


def claim_of(entry: Entry | None) -> Claim | None:
    """None: there is no claim, or it is not readable."""
    if entry is None:
        return None
    try:
        value = msgspec.json.decode(entry.value, type=ClaimValue)
    except msgspec.MsgspecError:
        return None
    return Claim(value.owner, value.generation, entry.revision)
