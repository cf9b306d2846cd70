"""The lease of a replica: its heartbeats in the registry, and what follows from those of others.

A heartbeat lists the replica's cells, so that a replica reads only one key for each other replica
after each heartbeat that it sends. The decisions are `frd.cluster.ownership`'s. A replica that
cannot reach the registry keeps its cells: it learns that others own them from those
(`frd.service.http.peers.questions`), when it reaches the registry again, or when a value is
refused.
Heartbeats stop when the service's event loop no longer runs, because such an owner detects nothing.

A replica is *sure* of its cells for `SURE_S` after it has sent a heartbeat that was then confirmed:
no other replica can have found it silent. Once that time is over, other replicas may have claimed
its cells, or be about to. It then writes a heartbeat and reads its claims; a replica that claims a
cell writes the claim and reads the heartbeat of the former owner. One of both sees the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from frd.cluster.lease import ClusterView, Owner, Replica
from frd.cluster.ownership import SILENT, Claim, Heartbeat, Ownership
from frd.cluster.registry import (
    ClaimValue,
    Conflict,
    Entry,
    HeartbeatValue,
    Registry,
    RegistryUnavailable,
    claim_of,
    generation_of,
    heartbeat_of,
)
from frd.cluster.thread import Runner
from frd.errors import ClusterError

INTERVAL_S: Final = 0.5
"""Between two heartbeats."""
SURE_S: Final = (SILENT - 1) * INTERVAL_S
"""Others read a heartbeat after it was sent, and begin `SILENT` more before they claim anything;
the first of them may follow immediately."""
_RETRY_S: Final = 0.1
_IDLE_S: Final = 5.0
"""Heartbeats stop when the service's event loop has not run for so long."""
_START_S: Final = 20.0
_LEAVE_S: Final = 3.0
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, where the system has such a clock."""
_log = logging.getLogger(__name__)


class HeartbeatLease:
    """Implements `frd.cluster.lease.Lease`.

    The work is done in `runner`, for whose event loop `registry` is; the methods are for the event
    loop in which `start` was called.
    """

    def __init__(
        self,
        runner: Runner,
        registry: Registry,
        me: Replica,
        *,
        durable: bool = True,
        clock: Callable[[], float] = lambda: time.clock_gettime(_CLOCK),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._runner = runner
        self._registry = registry
        self._me = me
        self._key = f"r.{me.name}"
        self._clock = clock
        self._wall = wall
        self._ownership = Ownership(me.name)
        self.view = ClusterView(me.name, durable=durable)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: Owner | None = None
        self._running: Any = None
        self._generation = 0
        self._revision = 0
        self._written = 0
        """Heartbeats of this process, with those that had no answer."""
        self._unclaimed_until = 0.0
        """No other replica can claim our cells before, because of the last confirmed heartbeat."""
        self._sure_until = 0.0
        """The same, as it is known in the service's event loop, after what was lost."""
        self._others: dict[str, HeartbeatValue] = {}
        """The last heartbeats of the other living replicas."""
        self._ticked = 0.0
        self._acknowledged = 0.0
        self._replaced = False
        """A newer process uses this replica's name."""
        self._idle = False
        """The service's event loop does not run."""
        self._ready: set[int] = set()
        """Cells whose takeover is complete."""
        self._releasing: set[int] = set()
        self._kick: asyncio.Event | None = None

    # -- frd.cluster.lease.Lease, in the service's event loop ------------------------------------

    async def start(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.ticked()
        await self._runner.call(self._begin())
        self._running = self._runner.submit(self._run())

    @property
    def is_sure(self) -> bool:
        return self._clock() < self._sure_until

    def ticked(self) -> None:
        self._ticked = self._clock()

    def owned(self, cell: int) -> None:
        self._ready.add(cell)

    async def release(self, cell: int) -> None:
        await self._runner.call(self._release(cell))

    def give_up(self, cell: int) -> None:
        self._runner.submit(self._release(cell))

    async def leave(self) -> None:
        await self._runner.call(self._announce_end())

    async def stop(self) -> None:
        if self._running is None:
            return
        self._running.cancel()
        self._running = None
        self._sure_until = 0.0
        await self._runner.call(self._leave())

    # -- heartbeats, in the runner's event loop --------------------------------------------------

    async def _begin(self) -> None:
        """The first heartbeat, as the next process of this replica's name."""
        self._kick = asyncio.Event()
        deadline = self._clock() + _START_S
        while True:
            try:
                entry = await self._registry.get(self._key)
                self._revision = entry.revision if entry else 0
                # Not 1 where a key was deleted, of which an old process may still be frozen.
                self._generation = max(generation_of(entry) + 1, int(self._wall()))
                self._revision = await self._registry.put(self._key, self._value(), self._revision)
                self._acknowledged = self._clock()
                return
            except Conflict:
                problem = (
                    f"cluster.member: {self._me.name}: another process uses this name: "
                    "give each replica its own name"
                )
            except RegistryUnavailable as error:
                problem = f"cluster.servers: no heartbeat: {error}"
            if self._clock() > deadline:
                raise ClusterError(problem)
            await asyncio.sleep(_RETRY_S)

    async def _run(self) -> None:
        due = self._clock()
        while not self._replaced:
            try:
                if await self._kicked(due):
                    await self._put()  # decides nothing: others have had no time for theirs
                elif self._is_idle():
                    due = self._clock() + _RETRY_S
                    self._publish(self.view.replicas)
                else:
                    due = self._clock() + INTERVAL_S
                    await self._beat()
            except RegistryUnavailable:
                due = max(due, self._clock() + _RETRY_S)
                self._publish(self.view.replicas)
            except Exception:  # a bug must not end the heartbeats: the cells would be taken
                _log.exception("cluster: heartbeat failed")
                due = max(due, self._clock() + _RETRY_S)

    async def _kicked(self, due: float) -> bool:
        """Wait until `due`; true if a heartbeat should be written before."""
        assert self._kick is not None
        if (pause := due - self._clock()) <= 0:
            return False
        try:
            async with asyncio.timeout(pause):  # wait_for may lose a cancellation
                await self._kick.wait()
        except TimeoutError:
            return False
        self._kick.clear()
        return True

    def _is_idle(self) -> bool:
        was_idle, self._idle = self._idle, self._clock() - self._ticked > _IDLE_S
        if self._idle and not was_idle:
            _log.error("cluster: the event loop has not run for %s s: heartbeats stop", _IDLE_S)
        return self._idle

    async def _beat(self) -> None:
        """One heartbeat; all that is decided follows from what is read after its acknowledgement.

        Raises:
            RegistryUnavailable: it is not known to be stored.
        """
        await self._put()
        if self._replaced:
            return
        found = await self._registry.find("r.")
        self._acknowledged = self._clock()
        values = {
            key.removeprefix("r."): value
            for key, entry in found.items()
            if (value := heartbeat_of(entry)) is not None
        }
        decision = self._ownership.beat(
            {
                name: Heartbeat(
                    value.generation, found[f"r.{name}"].revision, value.cells, value.leaving
                )
                for name, value in values.items()
            },
            self._ready,
        )
        others = set(self._ownership.living) - {self._me.name}
        self._others = {
            name: value for name, value in (self._others | values).items() if name in others
        }
        for cell in decision.lost:
            self._lose(cell)
        if decision.drain is not None:
            cell, successor = decision.drain
            self._notify(lambda owner: owner.drain(cell, successor))
        if decision.claim:
            await asyncio.gather(*(self._claim(cell, found) for cell in decision.claim))
        self._publish(
            [
                Replica(
                    name,
                    v.grpc,
                    v.http,
                    v.version,
                    tuple(sorted(v.cells)),
                    is_late=name in self._ownership.late,
                    is_leaving=v.leaving,
                )
                for name, v in self._others.items()
            ]
        )
        if decision.forget is not None:
            await self._forget(*decision.forget)

    async def _put(self) -> None:
        """Write the heartbeat, unless a newer process uses this replica's name.

        Raises:
            RegistryUnavailable: it is not known to be stored.
        """
        try:
            await self._write()
            return
        except Conflict:
            await self._resolve()
        if self._replaced:
            return
        try:
            await self._write()
        except Conflict as error:
            raise RegistryUnavailable(str(error)) from None

    async def _write(self) -> None:
        """Write the heartbeat once.

        Raises:
            Conflict, RegistryUnavailable
        """
        sent = self._clock()
        self._revision = await self._registry.put(self._key, self._value(), self._revision)
        if self._clock() >= self._unclaimed_until:
            await self._read_claims()
        self._unclaimed_until = sent + SURE_S
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._be_sure, self._unclaimed_until)

    async def _read_claims(self) -> None:
        """Find out which cells other replicas have claimed.

        Raises:
            RegistryUnavailable: it is not known.
        """
        mine = dict(self._ownership.mine)
        entries = await asyncio.gather(*(self._registry.get(_claim_key(cell)) for cell in mine))
        for (cell, revision), entry in zip(mine.items(), entries, strict=True):
            is_claimed = entry is None or entry.revision != revision
            if is_claimed and self._ownership.mine.get(cell) == revision:  # not released meanwhile
                del self._ownership.mine[cell]
                self._lose(cell)

    async def _resolve(self) -> None:
        """Our key has another revision: an earlier heartbeat without an answer was stored, or
        another process of our name has begun."""
        entry = await self._registry.get(self._key)
        self._revision = entry.revision if entry else 0
        if entry is None or generation_of(entry) <= self._generation:
            return
        self._replaced = True
        _log.error(
            "cluster.member: %s: a newer process uses this name: this one takes no more jobs; "
            "give each replica its own name",
            self._me.name,
        )
        for cell in list(self._ownership.mine):
            self._ownership.dropped(cell)
            self._lose(cell)
        self._publish(())

    async def _claim(self, cell: int, heartbeats: Mapping[str, Entry]) -> None:
        """Claim a cell that has no owner according to these heartbeats."""
        key = _claim_key(cell)
        try:
            entry = await self._registry.get(key)
            former = claim_of(entry)
            if not self._ownership.may_claim(cell, former):
                return
            value = msgspec.json.encode(ClaimValue(self._me.name, self._generation))
            revision = await self._registry.put(key, value, entry.revision if entry else 0)
            for name in self._ownership.rivals(cell, former):
                if await self._registry.get(f"r.{name}") != heartbeats.get(f"r.{name}"):
                    return  # it goes on, and may have read its claims before ours was stored
        except (Conflict, RegistryUnavailable):
            return  # the next heartbeat shows whether it is still free
        self._ownership.claimed(cell, revision)
        self._publish(self.view.replicas)  # other claims of this heartbeat may wait for answers
        if self._ownership.leaving:
            await self._release(cell)
            return
        why = _why(former, self._me.name)
        self._notify(lambda owner: owner.gained(cell, revision, why))

    async def _forget(self, name: str, revision: int) -> None:
        with contextlib.suppress(RegistryUnavailable):  # then with the next heartbeat
            await self._registry.delete(f"r.{name}", revision)
            _log.info("cluster: replica %s: no heartbeat for a day: forgotten", name)

    async def _release(self, cell: int) -> None:
        """Say that the cell is free, if our claim is still the last one."""
        revision = self._ownership.mine.get(cell)
        self._ready.discard(cell)
        if revision is None or cell in self._releasing:
            return
        self._releasing.add(cell)
        # If this fails, others find the cell unreported, and claim it a little later.
        try:
            with contextlib.suppress(Conflict, RegistryUnavailable):
                value = msgspec.json.encode(ClaimValue("", 0))
                await self._registry.put(_claim_key(cell), value, revision)
        finally:
            self._releasing.discard(cell)
        self._ownership.dropped(cell)
        self._publish(self.view.replicas)
        self._beat_now()

    async def _announce_end(self) -> None:
        self._ownership.leaving = True
        self._beat_now()

    def _beat_now(self) -> None:
        if self._kick is not None:
            self._kick.set()

    async def _leave(self) -> None:
        if self._replaced:
            return  # the heartbeat is the newer process's
        self._ownership.leaving = True
        for cell in list(self._ownership.mine):
            self._ownership.dropped(cell)
        try:
            await asyncio.wait_for(self._put(), _LEAVE_S)
        except (RegistryUnavailable, TimeoutError):
            _log.warning("cluster: the last heartbeat failed: others take over some seconds later")

    # -- values and notifications ----------------------------------------------------------------

    def _value(self) -> bytes:
        me, own = self._me, self._ownership
        self._written += 1
        value = HeartbeatValue(
            me.grpc, me.http, me.version, self._generation, own.mine, own.leaving, self._written
        )
        return msgspec.json.encode(value)

    def _be_sure(self, until: float) -> None:
        if self._running is not None:
            self._sure_until = until

    def _lose(self, cell: int) -> None:
        self._ready.discard(cell)
        if cell not in self._releasing:
            self._notify(lambda owner: owner.lost(cell))

    def _notify(self, call: Callable[[Owner], None]) -> None:
        assert self._loop is not None
        assert self._owner is not None
        self._loop.call_soon_threadsafe(call, self._owner)

    def _publish(self, others: Sequence[Replica]) -> None:
        me = self._me
        mine = Replica(me.name, me.grpc, me.http, me.version, tuple(sorted(self._ownership.mine)))
        replicas = [mine, *(replica for replica in others if replica.name != me.name)]
        self.view = ClusterView(
            me.name,
            sorted(replicas, key=lambda replica: replica.name),
            self._ownership.owners(),
            self._clock() - self._acknowledged < SILENT * INTERVAL_S,
            self.view.durable,
        )


def _claim_key(cell: int) -> str:
    return f"c.{cell:02}"


def _why(former: Claim | None, me: str) -> str:
    """Why a cell is claimed, after its former claim; see `Owner.gained`."""
    if former is None or former.owner == me:
        return "start"
    return "dead" if former.owner else "released"
