"""Commands of `frd` that tests type, and a scripted service that answers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.shell import Shell
from tests.world.http_service import Service, serving


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types a command."""
    return Shell(capsys)


@pytest.fixture
def ask(service: Service, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types a command that asks the scripted service."""
    return Shell(capsys, "--http", service.address)
