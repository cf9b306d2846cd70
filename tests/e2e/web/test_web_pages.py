"""Every page over a scripted state: many findings, what is unknown or over, filters, keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from frd.model import AlignedNs, Finding, Kind, Severity
from tests.e2e.web.browser import Watched, overflow_px, watched
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.daemons import first_line, running, serve_command
from tests.world.http_api import closed
from tests.world.views import NOW, SECOND

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
OPEN = 100
CLOSED = 3
NOT_FOUND = (r"^answer 404", r"^console error: Failed to load resource.* 404")


def past(number: int, job: str, kind: Kind) -> Finding:
    """A closed one, opened so many hours ago."""
    opened = AlignedNs(NOW - number * 3600 * SECOND)
    one = dataclasses.replace(stall(1000 + number, job), kind=kind, opened_at=opened)
    return dataclasses.replace(closed(one), close_reason="the ranks went on", dump="d")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A job that hangs, one that has ended, a hundred open findings and three closed ones."""
    findings = [stall(number, "llm") for number in range(OPEN)]
    findings[7] = dataclasses.replace(findings[7], severity=Severity.CRITICAL, summary="the worst")
    findings += [past(1, "llm", Kind.STALL), past(2, "llm", Kind.OOM), past(3, "rl", Kind.OOM)]
    jobs = [hung("llm"), dataclasses.replace(hung("rl"), ended=True)]
    with serving(tmp_path_factory.mktemp("pages"), jobs, findings) as one:
        yield one


def section(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title, exact=True).first


def rows(page: Page, title: str) -> int:
    return section(page, title).locator("tbody tr").count()


def test_a_hundred_open_findings(service: Serving, watched: Watched) -> None:
    """The overview counts and lists all of them, the critical one first."""
    page = watched.open(service.address)
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"{OPEN} open findings")
    expect(page).to_have_title(re.compile(f"{OPEN} findings"))
    assert rows(page, "Open findings") == OPEN
    first = section(page, "Open findings").locator("tbody tr").first
    expect(first).to_contain_text("the worst")
    expect(page.locator("main p").first).to_contain_text("the worst")


def test_an_unknown_finding(service: Serving, watched: Watched) -> None:
    """The page shows the API's error and the ways out."""
    watched.expect(*NOT_FOUND)
    page = watched.open(service.address, "/findings/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("'nosuch'")
    page.get_by_role("main").get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("open findings")


def test_an_unknown_job(service: Serving, watched: Watched) -> None:
    """The page shows the API's error, and a link to the job's closed findings."""
    watched.expect(*NOT_FOUND)
    page = watched.open(service.address, "/jobs/no%2Fsuch%20job")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job no/such job")
    expect(page.get_by_role("alert")).to_contain_text("'no/such job'")
    page.get_by_role("link", name="History of this job").click()
    expect(page.get_by_text("No closed findings match.")).to_be_visible()


def test_an_address_that_is_no_page(service: Serving, watched: Watched) -> None:
    """A damaged address of a job shows that, and nothing breaks."""
    page = watched.open(service.address, "/jobs/%E0%A4%A")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such page")


def test_a_job_that_ended(service: Serving, watched: Watched) -> None:
    """Its page says so, and still shows its ranks."""
    page = watched.open(service.address, "/jobs/rl")
    expect(page.get_by_text("This job has ended.")).to_be_visible()
    assert rows(page, "Notable ranks") == 4


def test_the_map_of_a_job(service: Serving, watched: Watched) -> None:
    """It draws a canvas and has the same as text; a rank that is chosen shows its groups."""
    page = watched.open(service.address, "/jobs/llm")
    expect(page.locator("#heat-text")).to_have_text("missing: rank 3; stuck: 3 ranks, 0-2")
    page.wait_for_function("() => document.querySelector('.heat canvas').width > 0")
    page.get_by_label("Rank", exact=True).fill("3")
    page.get_by_role("button", name="Show").click()
    panel = page.get_by_role("complementary")
    expect(panel.get_by_role("group", name="Groups of the rank")).to_contain_text("missing")
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)


def test_filters_of_the_history(service: Serving, watched: Watched) -> None:
    """They are in the address: a reload and the button Back show the same list again."""
    page = watched.open(service.address, "/history")
    expect(page.get_by_text("Closed findings")).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(CLOSED)
    page.get_by_label("Job").fill("llm")
    page.get_by_label("Kind").select_option("oom")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.url.endswith("/history?job=llm&kind=oom")
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Job")).to_have_value("llm")
    expect(page.get_by_label("Kind")).to_have_value("oom")
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(CLOSED)
    expect(page.get_by_label("Job")).to_have_value("")


def test_a_filter_that_is_no_time(service: Serving, watched: Watched) -> None:
    """The page shows the API's error."""
    watched.expect(r"^answer 400", r"^console error: Failed to load resource.* 400")
    page = watched.open(service.address, "/history?since=yesterday")
    expect(page.get_by_role("alert")).to_contain_text("yesterday")


def test_keys_only(service: Serving, watched: Watched) -> None:
    """The first Tab reaches the skip link, which leads past the bar; the next one a finding, which
    Enter opens; the timeline takes the arrow keys."""
    page = watched.open(service.address)
    expect(page.get_by_role("heading", level=1)).to_contain_text("open findings")
    focused = page.locator(":focus")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("the worst")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("the worst")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    lanes = page.get_by_role("group", name="Timeline of the ranks")
    for _ in range(20):
        page.keyboard.press("Tab")
        if lanes.evaluate("element => element === document.activeElement"):
            break
    expect(lanes).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(lanes.get_by_role("status")).to_contain_text("has not joined all_reduce #6")


PATHS = ("/", f"/findings/{7:016x}", "/jobs/llm", "/history", "/jobs/%E0%A4%A")


def test_a_narrow_screen(service: Serving, narrow: Watched) -> None:
    """No page is wider than a telephone."""
    for path in PATHS:
        page = narrow.open(service.address, path)
        expect(page.get_by_text(re.compile("^Loading$"))).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert overflow_px(page) <= 0, path


def test_without_javascript(service: Serving, browser: Browser) -> None:
    """The page says in plain text where the same information is, without scrolling."""
    with watched(browser, java_script_enabled=False) as one:
        one.expect(r"^request: .*\.js: csp$")  # this is how Chromium refuses to load scripts
        page = one.open(service.address)
        assert "This page needs JavaScript" in page.inner_text("body")
        for link in page.locator("noscript a").all():
            assert page.request.get(f"http://{service.address}{link.get_attribute('href')}").ok
        expect(page.locator("noscript p")).to_be_in_viewport()


def test_a_finding_that_closes(service: Serving, watched: Watched) -> None:
    """Without a reload it leaves the overview, and its own page says why it closed."""
    before = service.service.state.open_findings()
    gone, *rest = before
    page = watched.open(service.address, f"/findings/{gone.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text(gone.summary)
    expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
    over = dataclasses.replace(closed(gone), close_reason="the ranks went on")
    try:
        service.shows(rest)
        service.keeps(over)
        expect(page.get_by_text("Closed: the ranks went on")).to_be_visible()
        page.get_by_role("link", name="frd").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"{OPEN - 1} open findings")
    finally:
        service.keeps(gone)
        service.shows(before)


def test_no_web(tmp_path: Path, watched: Watched) -> None:
    """`frd serve --no-web` has no page: its addresses answer 404, in JSON."""
    watched.expect(*NOT_FOUND)
    with running(serve_command(tmp_path, "--no-web")) as process:
        address = re.search(r'"http": "([^"]+)"', first_line(process))
        assert address
        for path in ("/", "/history", "/web/js/app.js"):
            answer = watched.page.request.get(f"http://{address[1]}{path}")
            assert answer.status == 404
            assert list(answer.json()) == ["error"]
