"""A torch without process groups, a /proc that a test writes, and files that do not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd_agent import proc
from tests.world.hanging_fuse import Nas, NoMount, hanging_fuse
from tests.world.interpreters import fake_torch


@pytest.fixture(name="fake_torch")
def _fake_torch(tmp_path: Path) -> Path:
    return fake_torch(tmp_path)


@pytest.fixture
def proc_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the agent takes for /proc: an empty folder."""
    monkeypatch.setattr(proc, "PROC", tmp_path / "proc")
    proc.PROC.mkdir()
    return proc.PROC


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """That this process holds open and never writes."""
    path = tmp_path / "shard-17.tar"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    yield path
    os.close(fd)


@pytest.fixture
def nas(tmp_path: Path) -> Iterator[Nas]:
    (tmp_path / "data").mkdir()
    try:
        with hanging_fuse(tmp_path / "data") as nas:
            yield nas
    except NoMount as error:
        pytest.skip(str(error))
