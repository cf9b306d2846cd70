"""What a cluster does when something fails: real replicas, real NATS servers, on this machine.

`lease`: seconds until others own the cells of a replica that is killed or stopped, alone and with
the NATS server that leads the registry; moves when only that server is killed. `values`: values of
a cell that its owner stores with confirmation, for three copies.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

sys.path.append(str(Path(__file__).parents[1]))  # `bench` is not installed

from bench.report import show
from frd.cluster.cluster import STATE
from tests.world.lease_run import (
    frozen_owner,
    killed_leader,
    killed_owner,
    killed_owner_and_leader,
    stale_values,
    three_replicas,
)
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import NatsServers, nats_servers

_SIZES = (2_000, 16_000, 160_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["lease", "values", "all"], default="all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of values of each size")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, nats_servers(Path(folder)) as servers:
        if options.what != "lease":
            result |= asyncio.run(_values(servers, options.seconds))
        if options.what != "values":
            result |= _lease(servers, Path(folder), options.runs)
    show(result, as_json=options.json)


def _lease(servers: NatsServers, folder: Path, runs: int) -> dict[str, object]:
    figures: dict[str, list[float]] = {
        "killed_s": [],
        "stopped_s": [],
        "fenced_s": [],
        "leader_moves": [],
        "both_s": [],
        "stale_values": [],
    }
    for _ in range(runs):
        name = f"b{uuid4().hex[:8]}"
        with three_replicas(servers, name, folder) as replicas:
            figures["leader_moves"].append(killed_leader(replicas))
            servers.heal()
            stopped_s, fenced_s = frozen_owner(replicas, replicas.busiest())
            figures["stopped_s"].append(stopped_s)
            figures["fenced_s"].append(fenced_s)
            member = replicas.busiest()
            figures["killed_s"].append(killed_owner(replicas, member))
            replicas.begin(member)
            replicas.await_all_owned()
            time.sleep(4.0)  # the new process claims from its sixth heartbeat on
            figures["both_s"].append(killed_owner_and_leader(replicas, replicas.busiest()))
            servers.heal()
            figures["stale_values"].append(asyncio.run(_stale(servers, name)))
    return {key: [round(value, 2) for value in values] for key, values in figures.items()}


async def _stale(servers: NatsServers, name: str) -> int:
    async with nats_client(options_for(servers, name)) as client:
        return await stale_values(client)


async def _values(servers: NatsServers, seconds: float) -> dict[str, object]:
    result: dict[str, object] = {}
    async with nats_client(options_for(servers, f"b{uuid4().hex[:8]}")) as client:
        for cell, size in enumerate(_SIZES):
            claim = await client.registry.put(f"c.{cell:02}", b"bench", 0)
            values, data, times = client.values(), bytes(size), []
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                await values.put(cell, claim, STATE, data)
                times.append(time.perf_counter() - began)
            cuts = statistics.quantiles(times, n=100)
            result[f"value_{size}"] = {
                "mb_per_s": round(size * len(times) / sum(times) / 1e6, 1),
                "p50_ms": round(cuts[49] * 1e3, 2),
                "p99_ms": round(cuts[98] * 1e3, 2),
            }
    return result


if __name__ == "__main__":
    main()
