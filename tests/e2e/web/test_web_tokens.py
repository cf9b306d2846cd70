"""Signing in: what the page shows without a token, what the browser keeps, what a role permits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from frd.model import AttemptKey
from frd.wire.messages import Part
from tests.e2e.web.browser import Watched
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.views import NOW

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
READER: Final = "reader-token-of-the-page"
OPERATOR: Final = "operator-token-of-the-page"
REFUSED: Final = (r"^answer 401", r"^console error: Failed to load resource.* 401")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One job, and a finding with a dump, for users that have a token."""
    folder = tmp_path_factory.mktemp("tokens")
    token_file = folder / "tokens"
    token_file.write_text(
        f"{READER} role=reader\n{OPERATOR} role=operator\nagent-token-of-the-page role=agent\n"
    )
    token_file.chmod(0o600)
    with serving(folder, [hung("llm")], token_file=token_file) as one:
        writer = one.service.dumps.create(AttemptKey("llm", 0), NOW)
        writer.add(0, Part.DUMP, b"pickle", last=True)
        dump = writer.finish({"answered": [0], "failed": {}})
        found = dataclasses.replace(stall(1, "llm"), dump=dump)
        one.keeps(found)
        one.shows([found])
        yield one


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_a_wrong_token(service: Serving, watched: Watched) -> None:
    """The form shows the API's error; nothing of a job is on the page, and no cookie is kept."""
    watched.expect(*REFUSED)
    page = watched.open(service.address, "/jobs/llm")
    sign_in(page, "no-token-of-this-page")
    expect(page.get_by_role("alert")).to_contain_text("token: unknown")
    sign_in(page, "agent-token-of-the-page")
    expect(page.get_by_role("alert")).to_contain_text("only for agents")
    assert "all_reduce" not in page.content()
    assert "llm" not in page.inner_text("body")
    assert page.context.cookies() == []
    asked = page.request.get(f"http://{service.address}/api/v1/jobs")
    assert asked.status == 401


def test_a_reader(service: Serving, watched: Watched) -> None:
    """A reader sees the page that was asked for, and is offered no dump, no log and no change. The
    token is in a cookie only, which scripts and other sites cannot use. Signing out leads back to
    the form."""
    page = watched.open(service.address, f"/findings/{1:016x}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    sign_in(page, READER)
    expect(page.get_by_role("heading", level=1)).to_contain_text("has waited 40 s for rank 3")
    expect(page.get_by_role("banner")).to_contain_text("signed in: reader")
    expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()

    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["expires"] == -1  # ends with the browser
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == [
        "",
        0,
        0,
    ]
    assert READER not in page.content() + page.url

    expect(page.get_by_role("link", name="Runbook")).to_be_visible()
    for refused in ("Download the dump", "Last lines of its stderr", "Acknowledge", "Note"):
        expect(page.get_by_text(refused, exact=True)).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert page.context.cookies() == []
    assert "has waited" not in page.inner_text("body")


def test_an_operator(service: Serving, watched: Watched) -> None:
    """An operator gets the dump; a reload needs no new sign-in."""
    page = watched.open(service.address, f"/findings/{1:016x}")
    sign_in(page, OPERATOR)
    expect(page.get_by_role("banner")).to_contain_text("signed in: operator")
    page.reload()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the dump").click()
    assert download.value.failure() is None
    assert download.value.path().stat().st_size > 0


def test_a_session_that_is_over(service: Serving, watched: Watched) -> None:
    """With the next request that the service refuses, the page asks for a token again."""
    watched.expect(*REFUSED)
    page = watched.open(service.address)
    sign_in(page, READER)
    expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
    page.context.clear_cookies()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_a_second_sign_in_without_events(service: Serving, watched: Watched) -> None:
    """Where events are blocked, the page polls after each sign-in."""
    watched.expect(r"net::ERR_FAILED")
    page = watched.page
    page.route("**/api/v1/events*", lambda route: route.abort())
    watched.open(service.address)
    for _ in range(2):
        sign_in(page, READER)
        expect(page.get_by_role("banner")).to_contain_text("polling every 5 s")
        expect(page.locator(".counts")).to_contain_text("1 open finding")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
