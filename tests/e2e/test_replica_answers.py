"""HTTP and commands through replicas that do not own the job: real replicas, real NATS servers, one
agent with two scripted ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd.cluster.cells import cell_of
from tests.world import daemons
from tests.world.daemons import frd
from tests.world.fleet import ReplicaProcess, fleet
from tests.world.training import Training

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240), pytest.mark.xdist_group("fleet")]
JOB, HELD = "training", 1
POLICY = {"FRD_POLICY__STALL_AFTER_S": "3"}


@contextmanager
def hanging(folder: Path) -> Iterator[tuple[ReplicaProcess, list[ReplicaProcess]]]:
    """A job whose rank 1 hangs; the replica that owns it, and the others."""
    run_dir = folder / "run"
    with fleet(folder, env=POLICY) as whole:
        command = daemons.agent_command(run_dir, "--service", whole.service)
        with (
            daemons.running(command, log=folder / "agent.log"),
            Training([run_dir], job=JOB) as training,
        ):
            owner = daemons.until(lambda: whole.owner_of(JOB), "an owner")
            daemons.until(lambda: owner.metric("frd_agents_reporting") == 1, "the agent")
            training.go_on()
            daemons.until(lambda: training.steps > 20, "steps")
            training.hold(HELD)
            daemons.until(lambda: found(owner), "the stall")
            yield owner, [one for one in whole.alive if one.name != owner.name]


def found(at: ReplicaProcess) -> list[str]:
    return [one["id"] for one in at.get("/api/v1/findings?state=open")["findings"]]


def test_any_replica_answers_and_an_owner_that_stops_is_missed(tmp_path: Path) -> None:
    """The job, its finding and a dump through a replica that does not own it. Then the owner is
    stopped: until it is taken over, lists come in time and say what is missing, with the finding;
    then the job is back, and the finding is closed through the replica that does not own it."""
    with hanging(tmp_path) as (owner, (other, third)):
        (finding,) = found(owner)
        job = other.get(f"/api/v1/jobs/{JOB}")
        assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
        assert found(other) == found(third) == [finding]
        assert [line["job"] for line in third.get("/api/v1/jobs")["jobs"]] == [JOB]
        assert other.get(f"/api/v1/findings/{finding}")["suspects"][0]["rank"] == HELD

        folder = tmp_path / "dumps"
        dumped = frd("dump", "--job", JOB, "-o", folder, "--http", third.http)
        assert (folder / "summary.json").exists(), dumped.stderr

        daemons.freeze(owner.process)
        began = time.monotonic()
        answer = other.get("/api/v1/jobs")
        assert time.monotonic() - began < 6  # 2 s and a slow machine
        if other.get("/api/v1/cluster")["owners"].count(owner.name):
            assert answer["incomplete"] == [owner.name]
        addresses = ",".join(replica.http for replica in (owner, other))
        assert finding in found(other)

        def taken_over() -> bool:
            is_whole = other.get("/api/v1/jobs")["incomplete"] == []
            return is_whole and bool(other.get(f"/api/v1/jobs/{JOB}")["nodes"])

        daemons.until(taken_over, "the takeover", ignoring=OSError)
        status = frd("status", "--http", addresses)
        assert status.returncode == 0, status.stderr
        assert finding in status.stdout
        assert not [line for line in status.stdout.splitlines() if line.startswith("incomplete")]
        said = json.loads(frd("status", "--json", "--http", other.http).stdout)
        names = {one["replica"] for one in said["cluster"]["replicas"]}
        assert names == {other.name, third.name}

        now_owner = daemons.until(lambda: owned_by((other, third)), "an owner")
        asked = third if now_owner is other else other
        closed = frd("findings", "close", finding, "--because", "seen", "--http", asked.http)
        assert closed.returncode == 0, closed.stderr
        daemons.until(lambda: not found(asked), "the finding is closed")
        assert asked.get(f"/api/v1/findings/{finding}")["state"] == "closed"


def owned_by(among: tuple[ReplicaProcess, ...]) -> ReplicaProcess | None:
    """As the first of them sees it: a replica that is stopped cannot be asked."""
    name = among[0].get("/api/v1/cluster")["owners"][cell_of(JOB)]
    return next((one for one in among if one.name == name), None)
