"""Daemons that are killed, stopped and cut off while ranks go on, and what frd reports meanwhile.

Service and agents are real processes, the ranks are scripted. In every case no rank is blamed for a
fault of the network or a daemon, real hangs are found, and in the end every collective that a rank
recorded is accounted for.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from frd.cli import FINDINGS_PRESENT
from tests.world.cluster import CULPRIT, HELD, LATE_S, STALL_S, Cluster, Scene, blamed, scene, until
from tests.world.daemons import frd, run_program, throughout

pytestmark = pytest.mark.timeout(180)

HOUR_S: Final = 3600
Begin: TypeAlias = Callable[..., Scene]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(scene(tmp_path, **options))


# -- killed and stopped --------------------------------------------------------------------------


def test_all_of_frd_is_killed_in_a_stall(begin: Begin) -> None:
    """SIGKILL for service and agents while a rank is missing: after a restart the same finding is
    open, and a replay of the journal of both services claims the same. It closes when the rank
    joins."""
    run = begin()
    cluster = run.cluster
    run.training.hold(HELD)
    until(lambda: run.named() == CULPRIT, "no finding")
    (before,) = cluster.findings()
    for daemon in (*cluster.agents, cluster.service):
        daemon.kill()

    cluster.start_service()
    for agent in cluster.agents:
        agent.start()
    until(lambda: cluster.reporting(2), "the agents do not come back")

    def finding_stays() -> None:
        (after,) = cluster.findings()
        assert (after["id"], after["state"]) == (before["id"], "open")
        assert after["opened_at"] == before["opened_at"]
        assert blamed([after]) == CULPRIT

    throughout(STALL_S + 1, finding_stays)

    def is_replayed() -> bool:
        """The journal is written a tick later."""
        done = frd("replay", cluster.data_dir / "journal", "--json")
        (live,), replayed = cluster.findings(), json.loads(done.stdout)["findings"]
        said = done.returncode, done.stderr, list(map(claim, replayed))
        return said == (FINDINGS_PRESENT, "", [claim(live)])

    until(is_replayed, "a replay says something else")
    run.over()
    assert [finding["id"] for finding in cluster.findings()] == [before["id"]]


def claim(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    suspects = [(s["rank"], s["reason"], s["node"]) for s in finding["suspects"]]
    collective = finding["collective"]["group_id"], finding["collective"]["seq"]
    what = finding["id"], finding["kind"], finding["opened_at"]
    return *what, suspects, finding["victims"], collective


@pytest.mark.long
def test_a_frozen_agent_is_no_stuck_rank(begin: Begin) -> None:
    """SIGSTOP for an agent, then a rank of its node hangs: its ranks are unreachable, nothing is
    certain. After SIGCONT the rank that hangs is named, and entries that rings lost
    meanwhile are counted."""
    run = begin()
    cluster = run.cluster
    cluster.agents[1].freeze()
    until(lambda: cluster.metric('frd_nodes{job="training",state="late"}') == 1, "not late")
    assert cluster.findings() == []
    run.training.hold(HELD)
    until(lambda: cluster.findings("open"), "no finding")

    def nothing_is_certain() -> None:
        assert not run.named("high")
        assert {reason for _, reason in run.named("")} <= {"unreachable", "unknown"}

    throughout(STALL_S + 1, nothing_is_certain)
    cluster.agents[1].thaw()
    until(lambda: run.named() == CULPRIT, lambda: str(cluster.findings()))
    assert run.named("") == CULPRIT
    run.over(overrun=True)
    assert cluster.reporting(2)


def test_a_frozen_service_blames_no_rank(begin: Begin) -> None:
    """SIGSTOP for the service in mid-job, for longer than a stall and for longer than agents may be
    late: after SIGCONT it reports how long it was stopped, and no finding."""
    run = begin()
    cluster = run.cluster
    for seconds in (STALL_S + 1, LATE_S + 1):
        cluster.service.freeze()
        time.sleep(seconds)
        cluster.service.thaw()
        run.reported()
        assert cluster.metric("frd_loop_lag_seconds") > seconds - 1
        until(lambda: cluster.reporting(2), "the agents do not report")
        assert cluster.findings() == []
    run.accounted()
    assert cluster.findings() == []


# -- the clock -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_clock_that_is_set_back(begin: Begin, tmp_path: Path) -> None:
    """A rank hangs, the service's clock is set back by two hours and the service is killed: the
    hang is found again under the same id although its stored times are in the future."""
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime: see scripts/debian-packages")
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    # Not below the wrapper itself, which would be killed instead.
    command = ["faketime", "-f", "+0s", "printenv", "LD_PRELOAD"]
    environment = {
        "LD_PRELOAD": run_program(command, check=True).stdout[:-1],
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    run = begin(environment=environment)
    cluster = run.cluster
    run.training.hold(HELD)
    until(lambda: run.named() == CULPRIT, lambda: str(cluster.findings()))
    (before,) = cluster.findings()
    set_clock(clock, -2 * HOUR_S)

    def finding_stays() -> None:
        (after,) = cluster.findings()
        assert (after["id"], after["state"]) == (before["id"], "open")

    throughout(STALL_S + 1, finding_stays)
    cluster.service.kill()
    cluster.start_service()
    until(lambda: cluster.reporting(2), "the agents do not come back")
    assert run.named() == CULPRIT
    run.over()
    assert [finding["id"] for finding in cluster.findings()] == [before["id"]]


def set_clock(file: Path, ahead_s: int) -> None:
    """Written elsewhere and renamed: a reader never sees half of it."""
    new = file.with_suffix(".new")
    new.write_text(f"{ahead_s:+}s\n")
    new.replace(file)


# -- the network ---------------------------------------------------------------------------------


def test_a_cut_network_is_no_stall(begin: Begin) -> None:
    """The network to a node is cut in mid-job, and later its connections are reset: no finding, the
    node is shown as missing, and afterwards its agent sends all rows that it kept."""
    run = begin()
    cluster = run.cluster
    run.proxy.cut()
    until(lambda: cluster.reporting(1), "the node is not missed")

    def nothing_is_found() -> None:
        assert cluster.findings() == []

    throughout(STALL_S + 1, nothing_is_found)
    run.proxy.heal()
    until(lambda: cluster.reporting(2), "the node does not report")
    run.reported()
    connections = run.proxy.connections
    run.proxy.reset()
    until(lambda: run.proxy.connections > connections, "the agent does not come back")
    run.reported()
    run.accounted()
    assert cluster.findings() == []


def test_a_slow_network_hides_no_stall(begin: Begin) -> None:
    """Messages of a node take 400 ms and more, answers half of that: the error of its clock is
    within its uncertainty, and the rank that hangs is named."""
    run = begin()
    cluster = run.cluster
    run.proxy.there.delay_s, run.proxy.there.jitter_s = 0.4, 0.2
    run.proxy.back.delay_s, run.proxy.back.jitter_s = 0.2, 0.1
    run.training.rest()
    run.proxy.reset()
    cluster.agents[1].kill()
    cluster.agents[1].start()
    until(
        lambda: cluster.agent_metric(1, "frd_agent_connected") == 1, "the agent does not come back"
    )
    run.training.go_on()
    run.reported()
    nodes = until(lambda: synchronized(cluster), "clocks are not known")
    for node in nodes:
        # Both read the same clock: the reported offset is the error.
        assert abs(node["clock_offset_s"]) <= node["clock_uncertainty_s"] < 2.0
    run.training.hold(HELD)
    until(lambda: run.named() == CULPRIT, lambda: str(cluster.findings()))
    run.over()


def synchronized(cluster: Cluster) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = cluster.get("/api/v1/jobs/training")["nodes"]
    return nodes if all(node["clock_state"] == "synchronized" for node in nodes) else []
