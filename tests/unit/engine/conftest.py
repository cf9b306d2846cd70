"""Times of the engine that tests cannot wait for."""

import pytest

from frd.engine.memory.walk import trend
from tests.world.clocks import S


@pytest.fixture
def short_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rise of a minute and a half may be a leak."""
    monkeypatch.setattr(trend, "LEAK_WINDOW_NS", 96 * S)
