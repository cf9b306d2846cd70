"""Services with scripted states: one alone, one that is watched, and three replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.service.access import refusals
from tests.unit.service.http.three import SCRIPTS
from tests.world.event_feed import Feeding
from tests.world.http_api import Service, job_view
from tests.world.http_cluster import Cluster, cluster


@pytest.fixture(autouse=True)
def _undelayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong tokens cost tests no time."""
    monkeypatch.setattr(refusals, "_DELAY_S", 0.0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """It has the job `train`, with findings."""
    made = Service(tmp_path, [job_view("train")])
    yield made
    made.close()


@pytest.fixture
def feeding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feeding]:
    """The events of a service that has the job `train`, without findings."""
    service = Service(tmp_path, [job_view("train")], [])
    yield Feeding(service, monkeypatch)
    service.close()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Cluster]:
    """They end with the test, which may stop them and change what they store."""
    with cluster(tmp_path, SCRIPTS) as made:
        yield made


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("three"), SCRIPTS) as made:
        yield made


@pytest.fixture
def three(_shared: Cluster) -> Cluster:
    """They are those of the test before, which has stopped none and has changed nothing that they
    store."""
    _shared.show(_shared.urls())
    for member in _shared.members.values():
        member.asked.clear()
    return _shared
