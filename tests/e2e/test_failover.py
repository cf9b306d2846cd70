"""Replicas of the service on real NATS servers: what a stall looks like while its owner dies, and
through replicas that do not own its job.

Real agents with two scripted ranks each report to three replicas.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frd.cluster.cells import cell_of
from tests.world import daemons
from tests.world.daemons import frd, free_address, metric
from tests.world.fleet import Fleet, ReplicaProcess, fleet
from tests.world.prometheus import Prometheus
from tests.world.training import Training
from tests.world.webhook import Receiver

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300), pytest.mark.xdist_group("fleet")]
AGENTS = 8
STALL_S = 5.0
FOUND_WITHIN_S = 8.0
SLACK_S = 6.0
"""A machine with two cores runs a dozen processes."""
HELD = 5
POLICY = {"FRD_POLICY__STALL_AFTER_S": str(STALL_S), "FRD_POLICY__TELEMETRY_LATE_S": "5"}
until = daemons.until


@dataclass
class Scene:
    fleet: Fleet
    training: Training
    metrics_of: list[str]

    @property
    def owner(self) -> ReplicaProcess:
        return until(lambda: self.fleet.owner_of(self.training.job), "an owner", ignoring=OSError)

    def others(self, of: ReplicaProcess) -> list[ReplicaProcess]:
        return [replica for replica in self.fleet.alive if replica.name != of.name]

    def open(self, at: ReplicaProcess) -> list[dict[str, Any]]:
        """Open findings of the job, asked of this replica."""
        answer = at.get(f"/api/v1/findings?state=open&job={self.training.job}")
        found: list[dict[str, Any]] = answer["findings"]
        return found

    def stall(self, at: ReplicaProcess, held: int = HELD, former: str = "") -> dict[str, Any]:
        """Wait for the stall of the rank that is held. The new owner of a job may not know yet that
        the `former` one is over."""

        def found() -> dict[str, Any] | None:
            stalls = (f for f in self.open(at) if f["id"] != former)
            return next((f for f in stalls if named(f) == {held}), None)

        return until(found, lambda: str(self.open(at)), ignoring=OSError)

    def connected(self) -> bool:
        return all(metric(one, "frd_agent_connected") == 1 for one in self.metrics_of)


def named(finding: dict[str, Any]) -> set[int]:
    return {suspect["rank"] for suspect in finding["suspects"]}


@contextmanager
def scene(
    folder: Path, *, agents: int = AGENTS, may_cut: bool = False, webhook: str = ""
) -> Iterator[Scene]:
    """Findings are sent to `webhook`, if there is one."""
    notify = {"FRD_NOTIFY": json.dumps([{"url": webhook}])} if webhook else {}
    run_dirs = [folder / f"run{number}" for number in range(agents)]
    metrics_of = [free_address() for _ in run_dirs]
    with ExitStack() as stack:
        whole = stack.enter_context(fleet(folder, env=POLICY | notify, may_cut=may_cut))
        for number, run_dir in enumerate(run_dirs):
            command = daemons.agent_command(
                run_dir, "--service", whole.service, "--metrics", metrics_of[number]
            )
            env = {"FRD_AGENT_NODE": f"node{number}", "FRD_AGENT_MEMORY_HZ": "0"}
            log = folder / f"agent{number}.log"
            stack.enter_context(daemons.running(command, env=env, log=log))
        training = stack.enter_context(Training(run_dirs, job="training"))
        made = Scene(whole, training, metrics_of)
        until(
            lambda: made.owner.metric("frd_agents_reporting") == agents,
            "agents are missing",
            ignoring=OSError,
        )
        training.go_on()
        until(lambda: training.steps > 50, "steps")
        yield made


def lasted(condition: Callable[[], object]) -> float:
    """Seconds until the condition holds."""
    began = time.monotonic()
    until(condition, "it", ignoring=OSError)
    return time.monotonic() - began


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="absent: prometheus")
def test_the_owner_dies_with_a_stall_open(tmp_path: Path) -> None:
    """The owner of a job that hangs is killed: from another replica comes the same finding with the
    same suspect, no other rank is named, and the alert fires on. Then the rank goes on, and the
    finding closes. A second hang, which began during a second takeover, is named, too."""
    with scene(tmp_path) as at:
        https = [replica.http for replica in at.fleet.alive]
        (tmp_path / "prometheus").mkdir()
        with Prometheus(tmp_path / "prometheus", *https) as prometheus:
            at.training.hold(HELD)
            before = at.stall(at.owner)
            alert = 'ALERTS{alertname="FrdCollectiveStalled",alertstate="firing"}'
            until(lambda: prometheus.query(alert), "the alert")

            first = at.owner
            at.fleet.kill(first.name)
            took_s = lasted(lambda: at.fleet.owner_of(at.training.job))
            assert took_s <= FOUND_WITHIN_S + SLACK_S
            second = at.owner
            other = next(iter(at.others(second)), second)
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:  # agents come back, and a stall would open again
                (finding,) = until(lambda: at.open(other), "the finding", ignoring=OSError)
                assert finding["id"] == before["id"]
                assert named(finding) == {HELD}
                assert prometheus.query(alert), "the alert has resolved"
                time.sleep(0.25)
            assert at.connected()

            at.training.release(HELD)
            until(lambda: not at.open(other), lambda: str(at.open(other)), ignoring=OSError)

        at.fleet.start(first.name)
        at.fleet.kill(second.name)
        at.training.hold(HELD)
        held_at = time.monotonic()
        at.stall(first, former=before["id"])
        assert time.monotonic() - held_at <= STALL_S + 10 + SLACK_S
        closed = [f for f in first.get("/api/v1/findings")["findings"] if f["state"] == "closed"]
        assert {frozenset(named(f)) for f in closed} == {frozenset({HELD})}, "an innocent was named"


@pytest.mark.soak  # tests/contract/test_lease.py shows the lease and the fence of it
def test_what_a_killed_owner_owed(tmp_path: Path) -> None:
    """The receiver is down when the owner of a job is killed, which has found a hang: the replica
    that takes over goes on with the finding and sends it, and its end; the killed one sends nothing
    when it starts again."""
    with Receiver() as receiver, scene(tmp_path, agents=2, webhook=receiver.url) as at:
        receiver.status = 503
        first = at.owner
        at.training.hold(1)
        before = at.stall(first, 1)
        until(lambda: receiver.asked, "no try")
        at.fleet.kill(first.name)
        receiver.status = 200
        second = at.owner
        at.stall(second, 1)
        until(receiver.events, "the message is lost")
        at.fleet.start(first.name)
        at.training.release(1)
        until(lambda: len(receiver.received) == 2, "the end is not sent")
        assert receiver.events() == ["opened", "closed"]
        assert {message["id"] for message in receiver.received} == {before["id"]}


def test_an_owner_that_was_paused(tmp_path: Path) -> None:
    """The owner is stopped for 8 s with a stall open: another replica has the job; when it goes on,
    it drops what it had, shows nothing of it, and asks the new owner."""
    with scene(tmp_path) as at:
        at.training.hold(HELD)
        before = at.stall(at.owner)
        paused = at.owner
        daemons.freeze(paused.process)
        until(
            lambda: any(r.metric('frd_cells{state="owned"}') for r in at.others(paused)),
            "a new owner",
        )
        time.sleep(4.0)
        os.kill(paused.process.pid, signal.SIGCONT)
        until(lambda: paused.metric('frd_cells{state="owned"}') == 0, "it drops its cells")
        (finding,) = until(lambda: at.open(paused), "the finding of the new owner")
        assert (finding["id"], named(finding)) == (before["id"], {HELD})
        until(at.connected, "all agents")
        assert at.owner.name != paused.name


@pytest.mark.soak
def test_an_owner_that_is_cut_off_from_nats(tmp_path: Path) -> None:
    """The way from the owner to NATS is cut, with a stall open, and its agents still reach it:
    within seconds they are with another replica, which has the same finding. When NATS cannot be
    reached by any replica, the new owner keeps its agents, and shows the finding to people with the
    note that it is not sure; Prometheus gets nothing of the job."""
    with scene(tmp_path, may_cut=True) as at:
        at.training.hold(HELD)
        cut = at.owner
        before = at.stall(cut)
        assert cut.to_nats is not None
        cut.to_nats.cut()
        others = at.others(cut)
        took_s = lasted(lambda: any(r.metric("frd_agents_reporting") == AGENTS for r in others))
        print(f"agents with another replica after {took_s:.1f} s")
        assert took_s <= 6.0 + SLACK_S
        assert cut.metric('frd_cells{state="owned"}') == 0
        new = next(r for r in others if r.metric("frd_agents_reporting") == AGENTS)
        finding = at.stall(new)
        assert finding["id"] == before["id"]
        for replica in others:
            assert replica.to_nats is not None
            replica.to_nats.cut()
        time.sleep(6.0)
        assert at.connected()
        answer = new.get("/api/v1/findings?state=open")
        assert [one["id"] for one in answer["findings"]] == [before["id"]]
        assert new.name in answer["incomplete"]
        assert new.metric("frd_cluster_sure") == 0
        assert new.metric("frd_agents_reporting") == 0


def test_any_replica_answers_and_an_owner_that_stops_is_missed(tmp_path: Path) -> None:
    """The job, its finding and a dump through a replica that does not own it; the finding is
    acknowledged, and its job silenced, there. Then the owner is stopped: until it is taken over,
    lists come in time and say what is missing, with the finding; then the job is back, what people
    said is still known, and the finding is closed through the replica that does not own it."""
    with scene(tmp_path, agents=1) as at:
        at.training.hold(1)
        owner = at.owner
        finding = at.stall(owner, 1)["id"]
        other, third = at.others(owner)
        job = other.get(f"/api/v1/jobs/{at.training.job}")
        assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
        assert [found["id"] for one in (other, third) for found in at.open(one)] == [finding] * 2
        assert [line["job"] for line in third.get("/api/v1/jobs")["jobs"]] == [at.training.job]
        assert other.get(f"/api/v1/findings/{finding}")["suspects"][0]["rank"] == 1

        for said_by_people in (
            ("ack", finding),
            ("silence", "--job", at.training.job, "--for", "1h"),
        ):
            done = frd("findings", *said_by_people, "--http", other.http)
            assert done.returncode == 0, done.stderr
        silenced_by = until(lambda: at.open(owner)[0].get("silenced_by"), "the owner's reading")
        assert silenced_by.endswith(f"(unverified), for job {at.training.job}")

        folder = tmp_path / "dumps"
        dumped = frd("dump", "--job", at.training.job, "-o", folder, "--http", third.http)
        assert (folder / "summary.json").exists(), dumped.stderr

        daemons.freeze(owner.process)
        began = time.monotonic()
        answer = other.get("/api/v1/jobs")
        assert time.monotonic() - began < 6  # 2 s and a slow machine
        if other.get("/api/v1/cluster")["owners"].count(owner.name):
            assert answer["incomplete"] == [owner.name]
        addresses = ",".join(replica.http for replica in (owner, other))
        assert finding in [found["id"] for found in at.open(other)]

        def taken_over() -> bool:
            is_whole = other.get("/api/v1/jobs")["incomplete"] == []
            return is_whole and bool(other.get(f"/api/v1/jobs/{at.training.job}")["nodes"])

        until(taken_over, "the takeover", ignoring=OSError)
        status = frd("status", "--http", addresses)
        assert status.returncode == 0, status.stderr
        assert "incomplete" not in status.stderr
        assert finding in frd("findings", "-o", "name", "--http", addresses).stdout.split()
        said = json.loads(frd("status", "--json", "--http", other.http).stdout)
        names = {one["replica"] for one in said["cluster"]["replicas"]}
        assert names == {other.name, third.name}

        (found,) = at.open(third)
        assert found["acknowledged_by"].endswith(" (unverified)")
        assert found["silenced_by"] == silenced_by
        listed = frd("findings", "silence", "--list", "--http", third.http)
        assert f"job {at.training.job}  until" in listed.stdout

        owners = other.get("/api/v1/cluster")["owners"]
        asked = third if owners[cell_of(at.training.job)] == other.name else other
        closed = frd("findings", "close", finding, "--because", "seen", "--http", asked.http)
        assert closed.returncode == 0, closed.stderr
        until(lambda: [one["goes_on"] for one in at.open(asked)] == [True], "the finding is closed")
        assert asked.get(f"/api/v1/findings/{finding}")["state"] == "closed"
