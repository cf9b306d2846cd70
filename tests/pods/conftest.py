"""Fixtures, and the reason where these tests cannot run: `scripts/pods` makes what they need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pods.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "FRD_PODS" in os.environ:
        return
    for item in items:  # of the whole session
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="run by make test-pods, which makes images"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With a running service."""
    with Cluster(tmp_path) as made:
        made.start_service()
        yield made
