"""How the troubles of a cluster begin, and how they end."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.sim.cluster.calls import KEEPALIVE
from tests.sim.scenario import Event, Trouble
from tests.sim.troubles import Troubles, service_jump
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

_THE_OWNER: Final = 0.7
_LOSSES: Final = 0.1
_DELAY_S: Final = 0.3
_SLOW_S: Final = 1.5
"""Longest delay of a request, less than a client waits."""


class ClusterTroubles(Troubles):
    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self._cluster = world

    def happen(self, event: Event) -> None:
        world = self._cluster
        dice = world.dice(f"trouble/{event.number}")
        names = self._replicas(event.share, dice)
        if event.trouble in (Trouble.DISMISSED, Trouble.MARKED):
            world.people.come(event)
            return
        match event.trouble:
            case Trouble.REPLICA_KILLED | Trouble.REPLICA_RESTARTED:
                self._restart(names, event, dice)
            case Trouble.REPLICA_PAUSED:
                self._pause(names, event, dice)
            case Trouble.CUT_FROM_SERVERS | Trouble.NO_LEADER:
                cut = names if event.trouble is Trouble.CUT_FROM_SERVERS else world.names
                self._no_answers(cut, event)
            case Trouble.CUT_ONE_WAY:
                self._lose(names, event, answers=1.0)
            case Trouble.CUT_FROM_AGENTS:
                for name in names:
                    for link in world.links_of(name):
                        link.cut_until = max(link.cut_until, world.kernel.now + event.length)
                    self._fall_silent(name, event.length)
            case Trouble.LOST_ANSWERS:
                losses, delay_s = dice.uniform(0, _LOSSES), dice.uniform(0, _DELAY_S)
                self._lose(names, event, requests=losses, answers=losses, delay_s=delay_s)
            case Trouble.SLOW_SERVERS:
                self._lose(names, event, delay_s=dice.uniform(_DELAY_S, _SLOW_S))
            case Trouble.SERVICE_STEP:
                world.replica_hosts[names[0]].step(world.kernel.now, service_jump(dice))
            case _:
                super().happen(event)
                return
        self.well_since = max(self.well_since, event.until)

    def heal(self) -> None:
        world = self._cluster
        super().heal()
        for name in world.names:
            self._answer_again(name)
            if (replica := world.replicas.get(name)) is not None:
                replica.go_on()
            world.start_replica(name)
            for link in world.links_of(name):
                link.cut_until = min(link.cut_until, world.kernel.now)
                link.message_ns = 0
        world.healed()

    def _replicas(self, share: float, dice: random.Random) -> list[str]:
        """That share of them, at least one, which is often the owner of the job's cell."""
        names = self._cluster.names
        chosen = sorted(dice.sample(names, max(round(share * len(names)), 1)))
        owner = self._cluster.oracle.owner
        return [owner] if owner and len(chosen) == 1 and dice.random() < _THE_OWNER else chosen

    # -- replicas --------------------------------------------------------------------------------

    def _restart(self, names: list[str], event: Event, dice: random.Random) -> None:
        world = self._cluster
        for name in names:
            if (replica := world.replicas.get(name)) is None or replica.is_over:
                continue
            if event.trouble is Trouble.REPLICA_KILLED:
                # A process that ends says so; a machine that dies does not.
                noticed = dice.choice((dice.randrange(S // 5), KEEPALIVE + dice.randrange(S)))
                world.kill_replica(name, noticed)
            else:
                replica.go_on()
                replica.stop()
            world.kernel.after(event.length, partial(world.start_replica, name))

    def _pause(self, names: list[str], event: Event, dice: random.Random) -> None:
        world = self._cluster
        for name in names:
            replica = world.replicas.get(name)
            if replica is None or replica.is_over or replica.loop.is_paused:
                continue
            replica.loop.pause()
            self._fall_silent(name, event.length)
            world.kernel.after(event.length, replica.go_on)

    def _fall_silent(self, name: str, length: int) -> None:
        world = self._cluster
        for conn in world.conns_of(name):
            conn.fall_silent(world.kernel.now + length)

    # -- servers ---------------------------------------------------------------------------------

    def _no_answers(self, names: list[str], event: Event) -> None:
        until = (self._cluster.kernel.now + event.length) / S
        for name in names:
            faults = self._cluster.faults[name]
            faults.no_leader_until = max(faults.no_leader_until, until)

    def _lose(
        self,
        names: list[str],
        event: Event,
        *,
        requests: float = 0.0,
        answers: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        for name in names:
            faults = self._cluster.faults[name]
            faults.lost_requests, faults.lost_answers = requests, answers
            faults.delay_s = delay_s
            self._cluster.kernel.after(event.length, partial(self._lose_nothing, name))

    def _lose_nothing(self, name: str) -> None:
        faults = self._cluster.faults[name]
        faults.lost_requests = faults.lost_answers = faults.delay_s = 0.0

    def _answer_again(self, name: str) -> None:
        self._lose_nothing(name)
        self._cluster.faults[name].no_leader_until = 0.0

    # -- wire ------------------------------------------------------------------------------------

    def _cut(self, number: int, length: int, dice: random.Random) -> None:
        world = self._cluster
        for link in world.links_from(number):
            link.cut_until = max(link.cut_until, world.kernel.now + length)
        agent = world.nodes[number].agent
        for conn in world.cluster_conns():
            if conn.agent is agent:
                conn.fall_silent(world.kernel.now + length)

    def _slow(self, nodes: list[int], event: Event, dice: random.Random) -> None:
        world = self._cluster
        links = [link for node in nodes for link in world.links_from(node)]
        delay = dice.randrange(S // 100, S // 2)
        for link in links:
            link.message_ns = delay

        def quick() -> None:
            for link in links:
                link.message_ns = 0

        world.kernel.after(event.length, quick)
