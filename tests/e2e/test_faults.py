"""Daemons that are killed, stopped and cut off while ranks go on, and what frd says meanwhile.

Service and agents are real processes, the ranks scripted. Whatever is done to them, no rank is
blamed for what the network or a daemon did, what really hangs is found, and in the end every
collective that a rank recorded is accounted for.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.faults.job import Training
from tests.e2e.faults.world import World, blamed, until
from tests.world.daemons import run_program
from tests.world.proxy import Proxy

pytestmark = pytest.mark.timeout(180)

STALL_S: Final = 2.0
LATE_S: Final = 5.0
"""These ranks fill their rings faster than that, and agents look before they do."""
HELD: Final = 2
"""The rank that does not come; it is on the second of two nodes, as rank 3 is."""
HOUR_S: Final = 3600
CULPRIT: Final = {(HELD, "cpu_stuck")}


@dataclass(frozen=True)
class Scene:
    """A service, and a job of four ranks on two nodes; the second one's agent is behind `proxy`."""

    world: World
    training: Training
    proxy: Proxy

    def reported(self) -> None:
        """What the ranks have done until now has reached the service."""
        steps = self.training.steps + 1
        until(lambda: self.world.steps(self.training) >= steps, "rows are missing")

    def named(self, confidence: str = "high") -> set[tuple[int, str]]:
        return blamed(self.world.findings("open"), confidence)

    def over(self, *, overrun: bool = False) -> None:
        """The rank that was held comes: what is open closes, and every row is accounted for."""
        self.training.release(HELD)
        until(lambda: not self.world.findings("open"), lambda: str(self.world.findings("open")))
        self.accounted(overrun=overrun)

    def accounted(self, *, overrun: bool = False) -> None:
        """Every row is accounted for; `overrun`: rings ran over while no agent read them."""
        self.training.rest()
        self.world.settled(self.training)
        assert (self.world.metric("frd_telemetry_gap_entries_total") > 0) is overrun


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:

        def start(**options: Any) -> Scene:
            world = stack.enter_context(
                World(tmp_path, stall_after_s=STALL_S, telemetry_late_s=LATE_S, **options)
            )
            proxy = stack.enter_context(Proxy(world.grpc))
            run_dirs = [world.run_dir(number) for number in range(2)]
            training = stack.enter_context(Training(run_dirs))
            world.start_agent()
            world.start_agent(proxy.address)
            world.begin(training)
            scene = Scene(world, training, proxy)
            scene.reported()
            return scene

        yield start


# -- killed and stopped --------------------------------------------------------------------------


def test_all_of_frd_is_killed_in_a_stall(begin: Callable[..., Scene]) -> None:
    """SIGKILL for service and agents while a rank is missing: what comes after them goes on with
    the same finding, which closes when the rank comes."""
    scene = begin()
    world = scene.world
    scene.training.hold(HELD)
    until(lambda: scene.named() == CULPRIT, "no finding")
    (before,) = world.findings()
    for daemon in (*world.agents, world.service):
        daemon.kill()

    world.start_service()
    for agent in world.agents:
        agent.start()
    until(lambda: world.reporting(2), "the agents do not come back")
    evaluated = time.monotonic() + STALL_S + 1
    while time.monotonic() < evaluated:
        (after,) = world.findings()
        assert (after["id"], after["state"]) == (before["id"], "open")
        assert blamed([after]) == CULPRIT
        time.sleep(0.2)
    scene.over()
    assert [finding["id"] for finding in world.findings()] == [before["id"]]


def test_a_frozen_agent_is_no_stuck_rank(begin: Callable[..., Scene]) -> None:
    """SIGSTOP for an agent, then a rank of its node hangs: its ranks are out of reach, which is no
    high confidence in anything; when it goes on, the one that hangs is named, and what rings lost
    meanwhile is counted."""
    scene = begin()
    world = scene.world
    world.agents[1].freeze()
    until(lambda: world.metric('frd_nodes{job="training",state="late"}') == 1, "not late")
    assert world.findings() == []
    scene.training.hold(HELD)
    until(lambda: world.findings("open"), "no finding")
    looked = time.monotonic() + STALL_S + 1
    while time.monotonic() < looked:
        assert not scene.named("high")
        assert {reason for _, reason in scene.named("")} <= {"unreachable", "unknown"}
        time.sleep(0.2)
    world.agents[1].thaw()
    until(lambda: scene.named() == CULPRIT, lambda: str(world.findings()))
    assert scene.named("") == CULPRIT
    scene.over(overrun=True)
    assert world.reporting(2)


def test_a_frozen_service_blames_no_rank(begin: Callable[..., Scene]) -> None:
    """SIGSTOP for the service in mid-job, for longer than a stall and for longer than agents may be
    late: what it finds when it goes on is how long it slept, and no fault of anybody."""
    scene = begin()
    world = scene.world
    for seconds in (STALL_S + 1, LATE_S + 1):
        world.service.freeze()
        time.sleep(seconds)
        world.service.thaw()
        scene.reported()
        assert world.metric("frd_loop_lag_seconds") > seconds - 1
        until(lambda: world.reporting(2), "the agents are not heard")
        assert world.findings() == []
    scene.accounted()
    assert world.findings() == []


# -- the clock -----------------------------------------------------------------------------------


def test_a_clock_that_is_set_back(begin: Callable[..., Scene], tmp_path: Path) -> None:
    """A rank hangs, the service's clock is set back by two hours and the service is killed: the
    hang is found again under the same id although its stored times are in the future."""
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime: see scripts/debian-packages")
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    # Not below the wrapper itself, which would be what is killed.
    asked = ["faketime", "-f", "+0s", "printenv", "LD_PRELOAD"]
    environment = {
        "LD_PRELOAD": run_program(asked, check=True).stdout[:-1],
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    scene = begin(environment=environment)
    world = scene.world
    scene.training.hold(HELD)
    until(lambda: scene.named() == CULPRIT, lambda: str(world.findings()))
    (before,) = world.findings()
    set_clock(clock, -2 * HOUR_S)
    looked = time.monotonic() + STALL_S + 1
    while time.monotonic() < looked:
        assert world.findings()[0]["id"] == before["id"]
        assert world.findings()[0]["state"] == "open"
        time.sleep(0.2)
    world.service.kill()
    world.start_service()
    until(lambda: world.reporting(2), "the agents do not come back")
    assert scene.named() == CULPRIT
    scene.over()
    assert [finding["id"] for finding in world.findings()] == [before["id"]]


def set_clock(file: Path, ahead_s: int) -> None:
    """Whoever reads it never sees half of it."""
    new = file.with_suffix(".new")
    new.write_text(f"{ahead_s:+}s\n")
    new.replace(file)


# -- the network ---------------------------------------------------------------------------------


def test_a_cut_network_is_no_stall(begin: Callable[..., Scene]) -> None:
    """The network to a node is cut in mid-job, and later its connections are reset: no finding, the
    node is shown as missing, and afterwards all that it kept is sent."""
    scene = begin()
    world = scene.world
    scene.proxy.cut()
    until(lambda: world.reporting(1), "the node is not missed")
    cut = time.monotonic() + STALL_S + 1
    while time.monotonic() < cut:
        assert world.findings() == []
        time.sleep(0.2)
    scene.proxy.heal()
    until(lambda: world.reporting(2), "the node is not heard")
    scene.reported()
    connections = scene.proxy.connections
    scene.proxy.reset()
    until(lambda: scene.proxy.connections > connections, "the agent does not come back")
    scene.reported()
    scene.accounted()
    assert world.findings() == []


def test_a_slow_network_hides_no_stall(begin: Callable[..., Scene]) -> None:
    """Messages of a node take 400 ms and more, answers half of that: its clock is known as well as
    can be, and the rank that hangs is found and named."""
    scene = begin()
    world = scene.world
    scene.proxy.there.delay_s, scene.proxy.there.jitter_s = 0.4, 0.2
    scene.proxy.back.delay_s, scene.proxy.back.jitter_s = 0.2, 0.1
    scene.training.rest()
    scene.proxy.reset()
    world.agents[1].kill()
    world.agents[1].start()
    until(lambda: world.agent_metric(1, "frd_agent_connected") == 1, "the agent does not come back")
    scene.training.go_on()
    scene.reported()
    nodes = until(lambda: synchronized(world), "clocks are not known")
    for node in nodes:
        # Both read the same clock: the reported offset is the error.
        assert abs(node["clock_offset_s"]) <= node["clock_uncertainty_s"] < 2.0
    scene.training.hold(HELD)
    until(lambda: scene.named() == CULPRIT, lambda: str(world.findings()))
    scene.over()


def synchronized(world: World) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = world.get("/api/v1/jobs/training")["nodes"]
    return nodes if all(node["clock_state"] == "synchronized" for node in nodes) else []
