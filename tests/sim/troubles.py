"""How each trouble begins, and how it ends."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.sim.liar import lie
from tests.sim.scenario import Event, Trouble
from tests.world.clocks import MS, S

if TYPE_CHECKING:
    from tests.sim.world import World

_PATIENCE: Final = (20 * S, 40 * S)
"""Timeouts for a peer that sends nothing."""


class Troubles:
    def __init__(self, world: World) -> None:
        self._world = world
        self.crashed = False
        """The service was killed at least once."""
        self.liars: set[int] = set()
        """Nodes whose agents have lied."""
        self.well_since = 0
        """Machines and wire work since then."""

    def happen(self, event: Event) -> None:
        world = self._world
        self.well_since = max(self.well_since, event.until)
        dice = world.dice(f"trouble/{event.number}")
        nodes = self._some(event.share, dice)
        world.settle()
        match event.trouble:
            case Trouble.AGENT_KILLED | Trouble.AGENT_RESTARTED:
                self._restart_agents(nodes, event, dice)
            case Trouble.SERVICE_KILLED | Trouble.SERVICE_RESTARTED:
                self._restart_service(event, dice)
            case Trouble.PARTITION:
                for node in nodes:
                    self._cut(node, event.length, dice)
            case Trouble.RESET:
                self._reset(nodes, dice)
            case Trouble.SLOW_READER:
                self._slow(nodes, event, dice)
            case Trouble.DISK_FULL:
                world.disk.full = True
                world.kernel.after(event.length, self._free_disk)
            case Trouble.NODE_STEP:
                for node in nodes:
                    world.hosts[node].step(world.kernel.now, jump(dice))
            case Trouble.SERVICE_STEP:
                world.service_host.step(world.kernel.now, service_jump(dice))
            case Trouble.LIAR:
                self.liars.add(nodes[0])
                lie(world, nodes[0], dice)
            case Trouble.JOB_RESTARTED:
                world.restart_job()

    def heal(self) -> None:
        """Machines and wire work from now on."""
        world = self._world
        self.well_since = min(self.well_since, world.kernel.now)
        world.disk.full = False
        world.start_service()
        for node, link in enumerate(world.links):
            link.cut_until = min(link.cut_until, world.kernel.now)
            link.message_ns = 0
            world.start_agent(node)

    def _some(self, share: float, dice: random.Random) -> list[int]:
        """That share of the nodes, at least one."""
        nodes = len(self._world.nodes)
        return sorted(dice.sample(range(nodes), max(round(share * nodes), 1)))

    def _restart_agents(self, nodes: list[int], event: Event, dice: random.Random) -> None:
        world = self._world
        for number in nodes:
            node = world.nodes[number]
            if (agent := node.agent) is not None:
                node.agent = None
                if event.trouble is Trouble.AGENT_KILLED:
                    agent.stop()
                else:
                    agent.say_goodbye()
                delay = dice.randrange(event.length)
                world.kernel.after(delay, partial(world.start_agent, number))

    def _restart_service(self, event: Event, dice: random.Random) -> None:
        world = self._world
        if (service := world.service) is None:
            return
        self.crashed = True
        if event.trouble is Trouble.SERVICE_KILLED:
            service.crash()
            world.disk.tear(dice)
        else:
            service.stop()
        world.service = None
        for conn in world.conns:
            conn.die_with_service(dice.randrange(2 * S))
        world.conns = []
        world.kernel.after(event.length, world.start_service)

    def _cut(self, number: int, length: int, dice: random.Random) -> None:
        world = self._world
        link = world.links[number]
        link.cut_until = max(link.cut_until, world.kernel.now + length)
        agent = world.nodes[number].agent
        if agent is None or (conn := agent.conn) is None:
            return
        at_agent, at_service = dice.randrange(*_PATIENCE), dice.randrange(*_PATIENCE)
        if at_agent < length:
            world.kernel.after(at_agent, conn.lose)
        if at_service < length:
            world.kernel.after(at_service, conn.end_at_service)

    def _reset(self, nodes: list[int], dice: random.Random) -> None:
        world = self._world
        for number in nodes:
            agent = world.nodes[number].agent
            if agent is not None and agent.conn is not None:
                agent.conn.reset(dice.randrange(5 * S), dice.randrange(5 * S))

    def _slow(self, nodes: list[int], event: Event, dice: random.Random) -> None:
        links = [self._world.links[node] for node in nodes]
        for link in links:
            link.message_ns = dice.randrange(10 * MS, 500 * MS)

        def quick() -> None:
            for link in links:
                link.message_ns = 0

        self._world.kernel.after(event.length, quick)

    def _free_disk(self) -> None:
        self._world.disk.full = False


def jump(dice: random.Random, most: int = 1) -> int:
    """From steps that no detector can notice to `10 ** most` seconds, which every one must."""
    return round(dice.choice((-1, 1)) * 10 ** dice.uniform(-5, most) * S)


def service_jump(dice: random.Random) -> int:
    """Up to a day, which must change nothing."""
    return jump(dice, 5)
