"""Three replicas for tests of what any of them answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.service.http.three import SCRIPTS
from tests.world.http_cluster import Cluster, cluster


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
