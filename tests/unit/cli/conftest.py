"""Commands of `frd` that tests type, and a scripted service that answers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.shell import Shell
from tests.unit.cli.test_analyze import dumps, hang
from tests.world.http_service import Service, serving


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """Dumps of four ranks, of which rank 2 never comes to the third collective; they end 3 ms after
    their begin."""
    return dumps(tmp_path / "dumps", hang)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types a command."""
    return Shell(capsys)


@pytest.fixture
def ask(service: Service, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types a command that asks the scripted service."""
    return Shell(capsys, "--http", service.address)
