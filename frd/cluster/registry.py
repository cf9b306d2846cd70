"""The registry of a cluster: few small values by key, each changed by compare-and-set.

Keys: ``meta`` (format and number of cells), ``r.<replica>`` (heartbeat of a replica), ``c.<nn>``
(owner of a cell), ``v.<nn>.`` (values of a cell: `CellStore`), ``silences`` (all silences that
people have set). Values are JSON. Replicas of several releases read them: new fields need defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from frd.cluster.ownership import Claim
from frd.decodable import decodable
from frd.errors import FrdError


class Conflict(FrdError):
    """The key has another revision: another replica has changed it."""


class RegistryUnavailable(FrdError):
    """The registry did not answer in time. Whether a write happened is not known."""


class Entry(NamedTuple):
    value: bytes
    revision: int
    """Rises with every change of any key."""


class Keys(Protocol):
    """What is used of a registry where every key is known."""

    async def get(self, key: str) -> Entry | None:
        """None if there is no such key. Never an outdated value.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """Change the key if its revision is `revision` (0: it does not exist); returns the new one.

        Raises:
            Conflict: it has another revision.
            RegistryUnavailable: no answer in time.
        """
        ...


class Registry(Keys, Protocol):
    async def find(self, prefix: str) -> Mapping[str, Entry]:
        """All keys that begin with `prefix`, which ends with a dot.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Delete the key if its revision is `revision`; otherwise nothing happens.

        Raises:
            RegistryUnavailable: no answer in time.
        """
        ...


@decodable
class HeartbeatValue(msgspec.Struct):
    """Value of ``r.<replica>``."""

    grpc: str
    http: str
    version: str
    generation: int
    cells: dict[int, int] = {}
    leaving: bool = False
    number: int = 0
    """Another one with each attempt to write it: a confirmed heartbeat is this one, and not an
    earlier one that was stored without an answer."""


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
