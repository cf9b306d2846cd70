"""Chromium, and what a page may not do: complain, fail, or reach another host.

Chromium is that of Debian; Playwright's own download is not used.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    Response,
    sync_playwright,
)

CHROMIUM: Final = shutil.which("chromium-headless-shell") or shutil.which("chromium")
ABSENT: Final = "chromium-headless-shell is absent"
_ARGUMENTS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
_ENDED_BY_PAGE: Final = "net::ERR_ABORTED"
"""The page left, or needs the answer no longer."""
_REPORT_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) => console.error(
  `policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`));
"""


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """A browser without a window. `CHROMIUM` is not None."""
    assert CHROMIUM is not None, ABSENT
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*_ARGUMENTS, *arguments]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, and everything that is wrong with it; `expected` are patterns of what shall be so."""

    page: Page
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    host: str = ""
    """HOST:PORT of the service; the page may reach no other."""

    def __post_init__(self) -> None:
        self.page.add_init_script(_REPORT_VIOLATIONS)
        self.page.on("console", self._heard)
        self.page.on("pageerror", self._raised)
        self.page.on("request", self._asked)
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def open(self, address: str, path: str = "/") -> Page:
        """The page of the service at HOST:PORT, loaded."""
        self.host = address
        self.page.goto(f"http://{address}{path}")
        return self.page

    def expect(self, *patterns: str) -> None:
        """Problems that match one of these regular expressions are part of the scenario."""
        self.expected += patterns

    def check(self) -> None:
        """Nothing was wrong but what was expected."""
        wrong = [
            problem
            for problem in self.problems
            if not any(re.search(pattern, problem) for pattern in self.expected)
        ]
        assert not wrong, "\n".join(wrong)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            where = message.location.get("url", "")
            self.problems.append(f"console {message.type}: {message.text} {where}")

    def _raised(self, error: Error) -> None:
        self.problems.append(f"exception: {error}")

    def _asked(self, request: Request) -> None:
        if self.host and urlsplit(request.url).netloc != self.host:
            self.problems.append(f"another host: {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != _ENDED_BY_PAGE:
            self.problems.append(f"request: {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"answer {response.status}: {response.url}")


@contextlib.contextmanager
def watched(browser: Browser, **options: object) -> Iterator[Watched]:
    """A page in a context; `options` are Playwright's, of a context."""
    context = browser.new_context(**options)  # type: ignore[arg-type]  # passed through
    try:
        one = Watched(context.new_page())
        yield one
        one.check()
    finally:
        context.close()


def overflow_px(page: Page) -> int:
    """By how much the page is wider than the window."""
    wide: int = page.evaluate(
        "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        " - document.documentElement.clientWidth"
    )
    return wide


def section(page: Page, title: str) -> Locator:
    """The first region of the page with this title."""
    return page.get_by_role("region", name=title, exact=True).first
