"""lease_replica SERVERS NAME MEMBER: a replica with nothing but its cells, as a process.

It stores its name in each cell that it gains, every two seconds, and prints what happens, one JSON
object a line: {"at": CLOCK_MONOTONIC, "what": ..., "cell": ...}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

from frd.cluster.cluster import STATE, Cluster, Superseded
from frd.cluster.nats import connect
from frd.cluster.registry import RegistryUnavailable
from frd.config import ClusterOptions

STORE_S = 2.0


class Replica:
    def __init__(self, cluster: Cluster, member: str) -> None:
        self._cluster = cluster
        self._member = member
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    def gained(self, cell: int, claim: int, why: str) -> None:
        say("gained", cell)
        self._tasks[cell] = asyncio.create_task(self._own(cell, claim))

    def lost(self, cell: int) -> None:
        say("lost", cell)
        # The writes go on: the claim alone must stop them.

    def drain(self, cell: int, successor: str) -> None:
        say("drained", cell)
        self._spawn(self._drain(cell))

    async def run(self) -> None:
        await self._cluster.lease.start(self)
        was_sure = True
        while True:
            self._cluster.lease.ticked()
            if was_sure != (was_sure := self._cluster.lease.is_sure):
                say("sure" if was_sure else "unsure", -1)
            await asyncio.sleep(0.05)

    async def _own(self, cell: int, claim: int) -> None:
        values = self._cluster.values
        await values.of_cell(cell)
        say("owned", cell)
        self._cluster.lease.owned(cell)
        while True:
            try:
                await values.put(cell, claim, STATE, self._member.encode())
            except RegistryUnavailable:
                continue
            except Superseded:
                say("fenced", cell)
                self._cluster.lease.give_up(cell)
                return
            await asyncio.sleep(STORE_S)

    async def _drain(self, cell: int) -> None:
        self._tasks.pop(cell).cancel()
        await self._cluster.lease.release(cell)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


def say(what: str, cell: int) -> None:
    line = json.dumps({"at": time.monotonic(), "what": what, "cell": cell})
    print(line, flush=True)


async def main(servers: str, name: str, member: str) -> None:
    options = ClusterOptions(tuple(servers.split(",")), name)
    cluster = await connect(options, member, f"{member}:1", f"http://{member}:2", "1")
    await Replica(cluster, member).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
