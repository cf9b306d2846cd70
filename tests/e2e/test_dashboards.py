"""The shipped dashboards, query by query, on what a real service and a real agent export.

Two small jobs are watched, on GPUs of a scripted driver. One runs, hangs, and is asked about while
it does; the other runs on with a straggler and memory that rises; so each panel has something to
show. What Grafana does with the answers is not tested: it is not there.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world import nvml
from tests.world.apart import ApartRank
from tests.world.daemons import Stage, agent_command, free_address, running, until
from tests.world.fleet import fleet
from tests.world.nvml import GIB, Driver, uuid
from tests.world.played_rank import PlayedRank
from tests.world.prometheus import ROOT, Prometheus

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is absent"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("dashboards"),  # two stages for all
]
DASHBOARDS = sorted((ROOT / "helm/frd/dashboards").glob("*.json"))
JOB = "training"
RANKS = 3
LATE = 1
"""The rank of `JOB` that hangs, and the one of `UNEVEN` that comes late to each collective."""
UNEVEN = "uneven"
DEAD_WEBHOOK = "http://127.0.0.1:9/"
"""A webhook without a server."""
STRAGGLER = 'kind="straggler"'
POLICY = {"straggler_window_s": 6, "straggler_min_lost_s": 0.2, "telemetry_late_s": 2}
GPU = uuid(1)
NO_DRIVER = not any(map(shutil.which, ("cc", "gcc", "clang")))
"""Without a C compiler there is no scripted driver of GPUs, and their series are absent."""


def queries(*, of_cluster: bool) -> Iterator[Any]:
    """All that the dashboards ask, their marks of alerts too."""
    for path in DASHBOARDS:
        if (path.stem == "cluster") is not of_cluster:
            continue
        dashboard = json.loads(path.read_text("utf-8"))
        for mark in dashboard["annotations"]["list"]:
            yield pytest.param(mark["expr"], id=f"{path.stem}: {mark['name']}")
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                name = f"{path.stem}: {panel['title']}: {target['refId']}"
                yield pytest.param(target["expr"], id=name)


def substituted(expression: str) -> str:
    """As Grafana sends it, for scrapes once a second."""
    job = UNEVEN if STRAGGLER in expression or "memory_rise" in expression else JOB
    variables = {"$job": job, "${job:regex}": job, "$__rate_interval": "30s", "$__range": "5m"}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@contextmanager
def playing(job: Sequence[PlayedRank], turn: Callable[[], None]) -> Iterator[None]:
    """A thread calls `turn` ten times a second, in which the ranks of `job` act."""
    over = threading.Event()

    def play() -> None:
        while not over.wait(0.1):
            turn()

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()
        for rank in job:
            rank.close()


def leave(rank: PlayedRank) -> None:
    rank.leave()
    rank.entries[-1]["time_discovered_completed_ns"] = time.time_ns()


def hanging_ranks(run_dir: Path) -> AbstractContextManager[None]:
    """They complete ten collectives a second for four seconds; then one joins no more. The first is
    this process, which the driver sees on a GPU."""
    job = [PlayedRank(run_dir, 0, RANKS, job=JOB)]
    job += [ApartRank(run_dir, rank, RANKS, job=JOB) for rank in range(1, RANKS)]
    job[0].identity["devices"] = [GPU]
    job[0].publish_identity()
    held = (UUID(GPU.removeprefix("GPU-")).bytes, 80 * GIB, 8 * GIB, 9 * GIB, 9 * GIB, 0)
    began = time.monotonic()

    def turn() -> None:
        hangs = time.monotonic() - began > 4.0
        for rank in job:
            if not hangs:
                rank.enter()
                leave(rank)
            elif rank is not job[LATE] and rank.seq == rank.completed:
                rank.enter()
            rank.publish()
        job[0].publish_memory([held])

    return playing(job, turn)


def uneven_ranks(run_dir: Path) -> AbstractContextManager[None]:
    """They complete five collectives a second; to each of them one rank comes 100 ms late. The
    first uses more and more memory, and an allocation fails each second."""
    job = [ApartRank(run_dir, rank, RANKS, job=UNEVEN) for rank in range(RANKS)]
    device = UUID(int=2).bytes
    began = time.monotonic()

    def turn() -> None:
        passed_s = time.monotonic() - began
        held, failed = GIB + int(passed_s * 2**24), int(passed_s)
        errors = [(failed, time.time_ns(), device, GIB, 0)] if failed else []
        job[0].publish_memory([(device, 80 * GIB, held, held, held, failed)], errors)
        for rank in job:
            if rank is not job[LATE]:
                rank.enter()
            rank.publish()
        time.sleep(0.1)
        job[LATE].enter()
        for rank in job:
            leave(rank)
            rank.publish()

    return playing(job, turn)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, some seconds after one job began to hang and the other's straggler was found."""
    folder = tmp_path_factory.mktemp("dashboards")
    library = nvml.build(folder / "nvml")
    driver = Driver(folder / "driver.txt", {GPU: (10 * GIB, 80 * GIB)})
    driver.processes = [(GPU, "compute", os.getpid(), 9 * GIB)]
    driver.write()
    scenario = replace(SCENARIOS["missing_rank"], policy=POLICY)
    with ExitStack() as stack:
        stage = stack.enter_context(Stage(scenario, RANKS, 2.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FRD_NOTIFY", json.dumps([{"name": "dead", "url": DEAD_WEBHOOK}]))
            service = stage.start_service()
        run_dir = folder / "run"
        _, _, port = free_address().rpartition(":")
        flags = ("--service", service.grpc, "--metrics", f"0.0.0.0:{port}")
        environment = driver.environment(library) if library is not None else {}
        environment["FRD_AGENT_NODE"] = "localhost"  # by which Prometheus reaches it
        stack.enter_context(running(agent_command(run_dir, *flags), env=environment))
        started = stack.enter_context(Prometheus(folder, service.http))
        until(lambda: started.query("frd_agent_connected == 1"), "a first scrape")
        stack.enter_context(uneven_ranks(run_dir))
        until(lambda: started.query(f"frd_suspect{{{STRAGGLER}}}"), "the straggler")
        stack.enter_context(hanging_ranks(run_dir))
        until(lambda: started.query(f'frd_suspect{{job="{JOB}"}}'), "the hang")
        yield started


@pytest.mark.parametrize("expression", list(queries(of_cluster=False)))
def test_a_panel_has_something_to_show(prometheus: Prometheus, expression: str) -> None:
    """Its query parses and gives series, with the variables put in."""
    if NO_DRIVER and "frd_gpu_memory" in expression:
        pytest.skip("no C compiler to build the scripted NVIDIA driver with")
    assert until(lambda: prometheus.query(substituted(expression)), expression, 30)


@pytest.fixture(scope="module")
def of_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus of two replicas that share the cells."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "prometheus").mkdir()
    with fleet(folder, 2) as whole:
        targets = [replica.http for replica in whole.alive]
        with Prometheus(folder / "prometheus", *targets) as started:
            until(lambda: started.query("frd_replicas == 2"), "a first scrape")
            yield started


@pytest.mark.nats
@pytest.mark.parametrize(
    "expression",
    [query for query in queries(of_cluster=True) if "ALERTS" not in str(query.values)],
)
def test_a_panel_of_the_cluster_has_something_to_show(
    of_replicas: Prometheus, expression: str
) -> None:
    """Its query parses and gives series, with the variables put in."""
    assert until(lambda: of_replicas.query(substituted(expression)), expression, 30)
