"""Replicas as processes with real NATS servers: which cells move when something fails, how fast."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.world.lease_run import (
    frozen_owner,
    killed_leader,
    killed_owner_and_leader,
    stale_values,
    three_replicas,
)
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import NatsServers

# Targets when idle: 4.5 s, 0.5 s and 14 s (bench/cluster.py); tests share two cores.
MOVED_S = 6.0
FENCED_S = 1.0
BOTH_S = 20.0

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("fleet")]


async def test_servers_and_owners_fail(servers: NatsServers, tmp_path: Path) -> None:
    """The server that leads the registry is killed: nothing moves. An owner is stopped for 8 s and
    continues: others own its cells some seconds after it stopped, and its writes are refused when
    it continues. An owner and the leader are killed together: others own its cells after an
    election. No stale value is stored meanwhile."""
    with three_replicas(servers, f"l{uuid4().hex[:8]}", tmp_path) as replicas:
        try:
            assert killed_leader(replicas) == 0
            servers.heal()
            moved, fenced = frozen_owner(replicas, replicas.busiest())
            print(f"stopped: moved after {moved:.1f} s, fenced {fenced:.2f} s after continuing")
            assert moved <= MOVED_S
            assert fenced <= FENCED_S
            moved = killed_owner_and_leader(replicas, replicas.busiest())
            assert moved <= BOTH_S
            servers.heal()
            async with nats_client(options_for(servers, replicas.name)) as client:
                assert await stale_values(client) == 0
        finally:
            servers.heal()
