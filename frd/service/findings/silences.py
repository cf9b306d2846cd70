"""Silences: until when messages and alerts about a finding, a job or a node rest.

People set them, also before anything opens. All of them together are one small value under one key,
of the findings database or of the cluster's registry, where every replica reads it again and again.
It is changed by compare-and-set, so that of two people, on two replicas, each gets what they asked
for. There is one silence of each finding, job and node: the later request replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from frd.cluster.registry import Conflict, Entry, Keys, RegistryUnavailable
from frd.engine.findings.text import clean
from frd.errors import FrdError, ServiceUnavailable
from frd.forms import encodable
from frd.model import AlignedNs, Finding
from frd.store.findings import FindingStore

MAX_SILENCES: Final = 256
READ_EVERY_S: Final = 1.0
_KEY: Final = "silences"
_TRIES: Final = 10

log = logging.getLogger(__name__)


class Refused(FrdError):
    """What people may not say of a finding, because of what others have said, or of a limit."""


class Scope(StrEnum):
    FINDING = "finding"
    JOB = "job"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Silence:
    of: Scope
    name: str
    """Id of the finding, or name of the job or node, without lone surrogates."""
    until_at: AlignedNs
    """UTC."""
    by: str
    because: str = ""

    @property
    def id(self) -> str:
        return sha256(f"{self.of}:{self.name}".encode()).hexdigest()[:12]


Known: TypeAlias = dict[tuple[Scope, str], Silence]
_FORM: Final = msgspec.json.Decoder(list[Silence])


class Silences:
    """For one event loop. Empty until `keep_in`, or `read`."""

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys
        self._entry = Entry(b"[]", 0)
        """Of which `_known` is."""
        self._known: Known = {}
        self._changing = asyncio.Lock()

    async def keep_in(self, keys: Keys) -> None:
        """Use what `keys` has, and change it there."""
        self._keys = keys
        try:
            await self.read()
        except FrdError as error:
            log.error("%s: the service begins without silences", error)

    async def read(self) -> None:
        """See what other replicas have changed. Without an answer, what is known stays."""
        if self._keys is not None:
            with contextlib.suppress(RegistryUnavailable):
                async with self._changing:  # what is read is not older than what is known
                    self._see(await self._keys.get(_KEY))

    def all(self, now: AlignedNs) -> list[Silence]:
        """Those in force at `now` (UTC)."""
        return list(_in_force(self._known, now).values())

    def of(self, finding: Finding, now: AlignedNs) -> tuple[AlignedNs | None, str]:
        """Until when the finding is silenced, and the person who did it.

        The silence of a node is for findings whose suspects are all on silenced nodes: a node in
        repair must not hide what is wrong with others.
        """
        if not (known := self._known):
            return None, ""
        of_job = known.get((Scope.JOB, encodable(finding.job)))
        found = [known.get((Scope.FINDING, finding.id)), of_job]
        nodes = [known.get((Scope.NODE, encodable(s.node))) for s in finding.suspects]
        ends = [silence for silence in nodes if silence is not None]
        if ends and len(ends) == len(nodes):
            found.append(min(ends, key=lambda one: one.until_at))
        active = [one for one in found if one is not None and one.until_at > now]
        if not active:
            return None, ""
        last = max(active, key=lambda one: one.until_at)
        whole = "" if last.of is Scope.FINDING else f", for {last.of} {clean(last.name)}"
        return last.until_at, last.by + whole

    async def put(self, silence: Silence, now: AlignedNs) -> None:
        """
        Raises:
            Refused: there are `MAX_SILENCES` others.
            ServiceUnavailable: it is not known to be stored.
            StoreError: as well.
        """

        def add(known: Known) -> None:
            known[silence.of, silence.name] = silence
            if len(known) > MAX_SILENCES:
                raise Refused(f"silences: {MAX_SILENCES} already: end one of them first")

        await self._change(add, now)

    async def end(self, id: str, now: AlignedNs) -> Silence | None:
        """End the silence with this id, or of the finding with it; None if there is none.

        Raises:
            ServiceUnavailable, StoreError: as `put`.
        """
        ended: list[Silence] = []

        def remove(known: Known) -> None:
            own = Scope.FINDING, id
            ended[:] = [one for of, one in known.items() if id == one.id or of == own]
            for one in ended:
                del known[one.of, one.name]

        await self._change(remove, now)
        return ended[0] if ended else None

    async def _change(self, change: Callable[[Known], None], now: AlignedNs) -> None:
        if self._keys is None:
            raise ServiceUnavailable("silences: the service is starting: try again")
        async with self._changing:
            for _ in range(_TRIES):
                try:
                    self._see(entry := await self._keys.get(_KEY))
                    known = _in_force(self._known, now)
                    change(known)
                    value = msgspec.json.encode(list(known.values()))
                    revision = entry.revision if entry is not None else 0
                    self._see(Entry(value, await self._keys.put(_KEY, value, revision)))
                    return
                except Conflict:
                    continue  # another replica was quicker
                except RegistryUnavailable as error:
                    raise ServiceUnavailable(f"silences: {error}") from None
            raise ServiceUnavailable("silences: others change them all the time: try again")

    def _see(self, entry: Entry | None) -> None:
        if entry is None or entry == self._entry:
            return
        self._entry = entry
        try:
            self._known = {(one.of, one.name): one for one in _FORM.decode(entry.value)}
        except msgspec.DecodeError as error:
            log.error("silences: damaged, or of a newer frd: %s: there are none now", error)
            self._known = {}


class LocalKeys:
    """Keys of the findings database, for a service without a cluster: it alone writes."""

    def __init__(self, store: FindingStore) -> None:
        self._store = store

    async def get(self, key: str) -> Entry | None:
        value = await asyncio.to_thread(self._store.value, key)
        return None if value is None else Entry(value, 1)

    async def put(self, key: str, value: bytes, revision: int) -> int:
        await asyncio.to_thread(self._store.keep_value, key, value)
        return 1


def _in_force(known: Mapping[tuple[Scope, str], Silence], now: AlignedNs) -> Known:
    return {of: one for of, one in known.items() if one.until_at > now}
