"""Signing in: what the page shows without a token, what the browser keeps, what a role permits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from frd.forms import finding_json
from frd.model import (
    Address,
    AlignedNs,
    AttemptKey,
    Certainty,
    Finding,
    Note,
    SuspectPhase,
    WaitKind,
    WaitsFor,
    Witness,
    WorkerStack,
)
from frd.wire.messages import Part
from tests.e2e.web.browser import Watched, overflow_px, section
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.views import NOW, SECOND

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


# -- web hostile -----------------------------------------------------------------------------------
# Names and lines that try to be markup, a path, or another direction of writing stay text.


HOSTILE: Final = {
    "image": "<img src=x onerror=\"window.hacked = 'image'\">",
    "script": "\"><script>window.hacked = 'script'</script>",
    "path": "a/b c\n../..?job=x#y%2F&amp;",
    "letters": "\u202edetrever\u2066\x07\x1b[31m\u2028${alert(1)}{{7*7}}",
}
SEEN: Final = {
    **HOSTILE,
    "path": "a/b c\\n../..?job=x#y%2F&amp;",
    "letters": "\\u202edetrever\\u2066\\u0007\\u001b[31m\\u2028${alert(1)}{{7*7}}",
}
"""As the page shows them: control characters and directions are visible."""


_UNQUOTED: Final = "()!~*'"
"""What `encodeURIComponent` leaves as it is, and `quote` does not."""


def finding_of(number: int, text: str) -> Finding:
    """One that has `text` wherever a finding has text from outside."""
    base = stall(number, text)
    (suspect,), collective = base.suspects, base.collective
    assert collective is not None
    suspect = dataclasses.replace(
        suspect,
        node=text,
        evidence=f"evidence {text}",
        stack=(f"{text}:7 in {text}", "train.py:9 in main"),
        inside=f"inside {text}",
        doing=f"doing {text}",
        workers=(WorkerStack(12, text, (f"{text}:1",), text, text, text),),
        waits_for=WaitsFor(
            WaitKind.FILE_READ, Certainty.SEEN, text, text, text, 12, text, text, NOW, text=text
        ),
        phase=SuspectPhase((text, "step"), NOW),
        address=Address(7, text, text, text, text, text, text, text, text),
    )
    return dataclasses.replace(
        base,
        suspects=(suspect,),
        collective=dataclasses.replace(collective, group=text, op=text),
        groups_held_up=(text,),
        witness=Witness(0, (f"{text}:3 in {text}",)),
        second_opinion=(f"NCCL RAS: {text}", text),
        disagreement=text,
        ended_by=text,
        dump=None,
        headline=f"headline {text}",
        effect=f"effect {text}",
        summary=f"headline {text}; effect {text}",
        acknowledged_by=text,
        acknowledged_at=NOW,
        assigned_to=text,
        notes=(Note(text, NOW, f"note {text}"),),
        silenced_until_at=AlignedNs(NOW + 3600 * SECOND),
        silenced_by=text,
    )


@pytest.fixture(scope="module")
def hostile_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Each text is a job with a finding, its node, its group and its op."""
    jobs = [hung(text, node=text, group=text, op=text) for text in HOSTILE.values()]
    findings = [finding_of(number, text) for number, text in enumerate(HOSTILE.values())]
    with serving(tmp_path_factory.mktemp("hostile"), jobs, findings) as one:
        yield one


def check(page: Page) -> None:
    """Nothing of the texts became an element or ran, and none of them widens the page."""
    assert page.evaluate("window.hacked") is None
    inside = "main img, main script, main iframe, main object, main b, main style"
    assert page.locator(inside).count() == 0
    assert overflow_px(page) <= 0


@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_name(hostile_service: Serving, watched: Watched, which: str) -> None:
    """On each page it is shown as it is written; links of its job and finding lead there."""
    text, seen = HOSTILE[which], SEEN[which]
    to_do = {"text": text, "command": f"ls {text}", "args": ["ls", text]}

    answer = {**finding_json(finding_of([*HOSTILE].index(which), text)), "do_now": [to_do]}

    def add(route: Route) -> None:
        route.fulfill(json=answer)

    watched.page.route("**/api/v1/findings/*", add)
    page = watched.open(hostile_service.address)
    expect(page.locator("main")).to_contain_text(f"headline {seen}")
    check(page)

    section(page, "Jobs").get_by_role("link", name=seen, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {seen}")
    path = f"/jobs/{quote(text, safe=_UNQUOTED)}"
    assert page.url == f"http://{hostile_service.address}{path}"
    expect(section(page, "Process groups")).to_contain_text(seen)
    expect(page.locator("#heat-text")).to_contain_text("missing: rank 3")
    page.get_by_role("button", name="rank 3").click()
    expect(page.get_by_role("complementary")).to_contain_text(seen)
    check(page)
    page.reload()
    expect(section(page, "Process groups")).to_contain_text(seen)
    assert seen in page.title()

    page.get_by_role("link", name=f"headline {seen}").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"headline {seen}")
    for shown in (
        f"effect {seen}",
        f"ls {seen}",
        "note ",
        f"assigned to {seen}",
        f"evidence {seen}",
        f"doing {seen}",
        f"{seen}:7 in {seen}",
        f"{seen}:3 in {seen}",
        f"NCCL RAS: {seen}",
    ):
        expect(page.get_by_role("main")).to_contain_text(shown)
    page.get_by_text("The timeline as a table").click()
    expect(section(page, "Timeline")).to_contain_text(f"{seen} #6 on {seen}")
    page.locator(".lanes").press("ArrowDown")
    expect(page.locator(".lanes").get_by_role("status")).to_contain_text(f"{seen} #6")
    check(page)

    page.goto(f"http://{hostile_service.address}/history?job={quote(text, safe='')}")
    expect(page.get_by_label("Job")).to_have_value(text.replace("\n", ""))
    check(page)
