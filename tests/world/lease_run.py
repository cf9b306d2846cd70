"""Three replicas as processes with three NATS servers: what moves, and how fast, when some fail."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from frd.cluster.cells import CELLS
from frd.cluster.registry import claim_of
from tests.world.daemons import end, freeze, start, until
from tests.world.nats_clients import NatsClient
from tests.world.nats_servers import NatsServers

MEMBERS = ("a", "b", "c")


class Event(NamedTuple):
    at: float
    """CLOCK_MONOTONIC, s."""
    member: str
    what: str
    cell: int


@dataclass
class Replicas:
    """`events` grows while they run."""

    servers: NatsServers
    name: str
    folder: Path
    events: list[Event] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def begin(self, member: str) -> None:
        command = [sys.executable, "-m", "tests.world.lease_replica"]
        arguments = [",".join(self.servers.urls), self.name, member]
        process = start(command + arguments, log=self.folder / f"{member}.log")
        self.processes[member] = process
        threading.Thread(target=self._read, args=(member, process), daemon=True).start()

    def kill(self, member: str) -> None:
        end(self.processes.pop(member))

    def freeze(self, member: str) -> None:
        freeze(self.processes[member])

    def thaw(self, member: str) -> None:
        self.processes[member].send_signal(signal.SIGCONT)

    def cells(self, member: str) -> set[int]:
        """Cells that the replica took over last, as it says."""
        owned: set[int] = set()
        for event in list(self.events):
            if event.member == member:
                match event.what:
                    case "owned":
                        owned.add(event.cell)
                    case "lost" | "fenced" | "drained":
                        owned.discard(event.cell)
        return owned

    def busiest(self) -> str:
        """The replica with the most cells: one that began late may have none."""
        return max(self.processes, key=lambda member: len(self.cells(member)))

    def await_all_owned(self, members: tuple[str, ...] = MEMBERS) -> None:
        def all_owned() -> bool:
            return set().union(*map(self.cells, members)) == set(range(CELLS))

        until(all_owned, "an owner of every cell")

    def moves(self, since: float) -> list[Event]:
        """Takeovers since then, except for ordered ones."""
        drained = {e.cell for e in list(self.events) if e.what == "drained" and e.at >= since}
        return [
            event
            for event in list(self.events)
            if event.what == "owned" and event.at >= since and event.cell not in drained
        ]

    def _read(self, member: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed
            for line in process.stdout:
                event = json.loads(line)
                self.events.append(Event(event["at"], member, event["what"], event["cell"]))


@contextlib.contextmanager
def three_replicas(servers: NatsServers, name: str, folder: Path) -> Iterator[Replicas]:
    """They own all cells."""
    replicas = Replicas(servers, name, folder)
    try:
        for member in MEMBERS:
            replicas.begin(member)
        replicas.await_all_owned()
        yield replicas
    finally:
        for member in list(replicas.processes):
            replicas.kill(member)


def killed_owner(replicas: Replicas, member: str) -> float:
    """Kill one; seconds until the others own all its cells."""
    cells = replicas.cells(member)
    began = time.monotonic()
    replicas.kill(member)
    replicas.await_all_owned(tuple(replicas.processes))
    moves = replicas.moves(began)
    assert {event.cell for event in moves} == cells, "and no others"
    return max(event.at for event in moves) - began


def frozen_owner(replicas: Replicas, member: str) -> tuple[float, float]:
    """Stop one for 8 s; seconds until the others own all its cells, and from its continuation until
    all its writes are refused."""
    cells = replicas.cells(member)
    began = time.monotonic()
    replicas.freeze(member)
    time.sleep(8.0)
    taken = [event for event in replicas.moves(began) if event.member != member]
    assert {event.cell for event in taken} == cells, "and no others"
    continued = time.monotonic()
    replicas.thaw(member)

    def fenced() -> list[Event]:
        return [e for e in list(replicas.events) if e.what == "fenced" and e.at >= continued]

    until(lambda: {event.cell for event in fenced()} == cells, "fences")
    until(lambda: not replicas.cells(member), "losses")

    def said(*what: str) -> list[Event]:
        own = [e for e in list(replicas.events) if e.member == member and e.at >= continued]
        return [e for e in own if e.what in what]

    until(lambda: said("sure"), "sureness")
    sure = said("sure")[0].at
    assert said("sure", "unsure", "lost", "fenced")[0].what == "unsure", "before it hears anything"
    assert {e.cell for e in said("lost", "fenced") if e.at <= sure} == cells, "it drops them first"
    return max(e.at for e in taken) - began, max(e.at for e in fenced()) - continued


def killed_leader(replicas: Replicas) -> int:
    """Kill the server that leads the registry; moves in the 10 s after that: an election takes up
    to 6 s, and a death is found 3 s later."""
    began = time.monotonic()
    replicas.servers.leader(f"KV_{replicas.name}").kill()
    time.sleep(10.0)
    return len(replicas.moves(began))


def killed_owner_and_leader(replicas: Replicas, member: str) -> float:
    """Kill both; seconds until the others own all cells of the dead replica."""
    replicas.servers.leader(f"KV_{replicas.name}").kill()
    return killed_owner(replicas, member)


async def stale_values(client: NatsClient) -> int:
    """Values after the last claim of their cell that its owner has not written."""
    stale, values = 0, client.values()
    for cell in range(CELLS):
        claim = claim_of(await client.registry.get(f"c.{cell:02}"))
        assert claim is not None
        for value in await values.of_cell(cell):
            stale += value.revision > claim.revision and value.data.decode() != claim.owner
    return stale
