"""One Chromium for all tests of this folder, and for each of them a page that may not complain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.e2e.web.browser import Watched


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="playwright is not installed")
    from tests.e2e.web.browser import ABSENT, CHROMIUM, chromium

    if CHROMIUM is None:
        pytest.skip(ABSENT)
    with chromium() as started:
        yield started


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A page without cookies. At the end, whatever it complained of fails the test."""
    from tests.e2e.web.browser import watched

    with watched(browser) as one:
        yield one
