"""What the programs need that are run with and without frd."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.interpreters import fake_torch


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Where any user may publish, as a program that gives up being root."""
    folder = Path(tempfile.mkdtemp(prefix="frd-sacred-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(name="fake_torch")
def _fake_torch(tmp_path: Path) -> Path:
    return fake_torch(tmp_path)
