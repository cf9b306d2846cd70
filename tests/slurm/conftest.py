"""Fixtures, and the reason where these tests cannot run: `scripts/slurm` prepares them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "FRD_SLURM" in os.environ:
        return
    for item in items:  # of the whole session
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="run by make test-slurm, which needs Debian"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made
