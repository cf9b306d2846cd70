"""Fixtures; `scripts/pods` makes what they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pods.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With a running service."""
    with Cluster(tmp_path) as made:
        made.start_service()
        yield made
