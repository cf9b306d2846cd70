"""Every page over a scripted state: many findings, what is unknown or over, filters, keys. What frd
does not know, or the page does not show, is said, and is not shown as bad."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from frd.engine.views import MemoryView
from frd.model import AlignedNs, Finding, Kind, Severity
from tests.e2e.web.browser import Watched, overflow_px, section, watched
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.http_api import closed
from tests.world.views import NOW, SECOND, rise

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
    findings[7] = dataclasses.replace(findings[7], severity=Severity.CRITICAL, headline="the worst")
    findings += [past(1, "llm", Kind.STALL), past(2, "llm", Kind.OOM), past(3, "rl", Kind.OOM)]
    jobs = [hung("llm"), dataclasses.replace(hung("rl"), ended=True)]
    with serving(tmp_path_factory.mktemp("pages"), jobs, findings) as one:
        yield one


def rows(page: Page, title: str) -> int:
    return section(page, title).locator("tbody tr").count()


def test_one_worker_has_all_of_this(request: pytest.FixtureRequest) -> None:
    """xdist adds the group to the name; with pytest 9.2 it does not, and says nothing."""
    has_groups = bool(request.config.getoption("loadgroup", default=False))
    assert request.node.nodeid.endswith("@web") == has_groups


def test_a_hundred_open_findings(service: Serving, watched: Watched) -> None:
    """The overview counts and lists all of them, the critical one first and only once."""
    page = watched.open(service.address)
    expect(page.locator(".counts")).to_contain_text(f"{OPEN} open findings")
    expect(page).to_have_title(re.compile(f"{OPEN} findings"))
    expect(page.get_by_role("heading", level=1)).to_have_text("the worst")
    expect(page.get_by_text("the worst", exact=True)).to_have_count(1)
    assert rows(page, "Other open findings") == 4
    page.get_by_role("button", name=f"Show all {OPEN - 1}").click()
    assert rows(page, "Other open findings") == OPEN - 1


def test_an_unknown_finding_and_an_unknown_job(service: Serving, watched: Watched) -> None:
    """The page shows the API's error and the ways out: the overview, and the job's closed
    findings."""
    watched.expect(*NOT_FOUND)
    page = watched.open(service.address, "/findings/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("'nosuch'")
    page.get_by_role("main").get_by_role("link", name="Overview").click()
    expect(page.locator(".counts")).to_contain_text("open findings")
    page = watched.open(service.address, "/jobs/no%2Fsuch%20job")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job no/such job")
    expect(page.get_by_role("alert")).to_contain_text("'no/such job'")
    page.get_by_role("link", name="History of this job").click()
    expect(page.get_by_text("No finding was closed in the last 24 hours.")).to_be_visible()


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
    expect(page.locator("#heat-text")).to_have_text(
        "missing: rank 3; waiting, stalled: 3 ranks, 0-2"
    )
    page.wait_for_function("() => document.querySelector('.heat canvas').width > 0")
    expect(section(page, "Groups and ranks")).to_contain_text("rank 3, train.py:7 in load")
    suspect, *others = section(page, "Notable ranks").locator("tbody tr").all()
    expect(suspect).to_contain_text("train.py:7 in load")
    expect(suspect.locator(".tag.bad")).to_contain_text("suspect")
    expect(section(page, "Notable ranks").locator(".good")).to_have_count(0)
    assert any("waiting" in other.inner_text() for other in others)
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
    expect(page.locator(".counts")).to_contain_text("open findings")
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
    for _ in range(30):
        page.keyboard.press("Tab")
        if lanes.evaluate("element => element === document.activeElement"):
            break
    expect(lanes).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(lanes.get_by_role("status")).to_contain_text("has not joined all_reduce #6")


def spike(number: int, rank: int) -> Finding:
    found = stall(number, "llm")
    suspect = dataclasses.replace(found.suspects[0], rank=rank)
    found = dataclasses.replace(found, headline=f"rank {rank} rose", suspects=(suspect,))
    return dataclasses.replace(found, kind=Kind.MEMORY_SPIKE)


def test_memory_that_rose(tmp_path: Path, watched: Watched) -> None:
    """A rise that alarms comes first, with a link to the finding that is about it; a calm one says
    so. On a telephone, too, and reached with the keyboard. Nothing is shown if none rose."""
    rises = [rise(0), rise(ranks=range(4), common_cause=True), rise(1, fell_back=True)]
    memory = MemoryView(rises=[*rises, rise(2, alarming=True)])
    jobs = [dataclasses.replace(hung("llm"), memory=memory), hung("rl")]
    with serving(tmp_path, jobs, [spike(2, 3), spike(1, 2)]) as one:
        for width in (1280, 390):
            watched.page.set_viewport_size({"width": width, "height": 844})
            page = watched.open(one.address, "/jobs/llm")
            shown = section(page, "Memory that rose").locator("tbody tr")
            expect(shown.nth(0)).to_contain_text("rank 2 on node")
            expect(shown.nth(0).get_by_role("link")).to_have_text("rank 2 rose")
            expect(shown.nth(1)).to_contain_text("+1.0 GiB in 1.5 s")
            expect(shown.nth(1)).to_contain_text("host memory of the rank")
            expect(shown.nth(1)).to_contain_text("does not alarm")
            expect(shown.nth(2)).to_contain_text("0-3 (4 ranks), together")
            expect(shown.nth(3)).to_contain_text("fell back")
            assert overflow_px(page) <= 0
        page.get_by_role("group", name="Memory that rose").focus()
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("rank 2 rose")
        page = watched.open(one.address, "/jobs/rl")
        expect(section(page, "Notable ranks")).to_be_visible()
        expect(page.get_by_text("Memory that rose")).to_have_count(0)
        page.goto("about:blank")


PATHS = (
    *("/", f"/findings/{7:016x}", "/jobs/llm", "/history", "/jobs/%E0%A4%A"),
    *("/runbooks/", "/runbooks/FrdCollectiveStalled.md"),
)


def test_a_narrow_screen(service: Serving, browser: Browser) -> None:
    """No page is wider than a telephone."""
    with watched(browser, viewport={"width": 390, "height": 844}) as one:
        for path in PATHS:
            page = one.open(service.address, path)
            expect(page.get_by_text(re.compile("^Loading$"))).to_have_count(0)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert overflow_px(page) <= 0, path


def test_runbooks(service: Serving, watched: Watched) -> None:
    """From the list to a runbook, to the one that it mentions, and back to the findings."""
    page = watched.open(service.address, "/runbooks/")
    page.get_by_role("link", name="FrdMemoryFirstCause").click()
    page.get_by_role("link", name="FrdRankLost").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("FrdRankLost")
    page.get_by_role("link", name="frd", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("the worst")


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
        expect(page.locator(".counts")).to_contain_text(f"{OPEN - 1} open findings")
    finally:
        service.keeps(gone)
        service.shows(before)


# -- what is unknown, or is not shown --------------------------------------------------------------

UNKNOWN = 9
STATES = [{"code": 4, "name": "none"}, {"code": UNKNOWN, "name": "unknown", "text": "not known"}]


def unknown_map(route: Route) -> None:
    """The map of a job of which nothing is known about rank 0, with other codes."""
    data = route.fetch().json()
    cells = bytes([UNKNOWN] + [4] * (data["world_size"] * len(data["rows"]) - 1))
    route.fulfill(json=data | {"states": STATES, "cells": base64.b64encode(cells).decode()})


def unknown_waits(route: Route) -> None:
    """The summary of a job in which nothing is known about rank 3."""
    data = route.fetch().json()
    data["waits"] = [
        one | {"missing": "", "missing_count": 0, "unknown": "3", "unknown_count": 1}
        for one in data["waits"]
    ]
    route.fulfill(json=data)


def test_ranks_about_which_nothing_is_known(tmp_path: Path, watched: Watched) -> None:
    """The map, its legend and the wait-for graph have them, and none is called bad."""
    page = watched.page
    page.route("**/jobs/llm?view=map*", unknown_map)
    page.route("**/jobs/llm?view=summary*", unknown_waits)
    with serving(tmp_path, [hung("llm")]) as service:
        watched.open(service.address, "/jobs/llm?attempt=0")
        expect(page.locator("#heat-text")).to_have_text(
            "No rank waits long in a collective or is missing from one, as far as is known. "
            "unknown: rank 0"
        )
        legend = page.locator(".legend span", has=page.locator(".cell-unknown"))
        expect(legend).to_contain_text("unknown (not known) 1")
        expect(page.locator(".legend .strong")).to_have_count(0)
        expect(page.locator(".waits-list")).to_contain_text(
            "ranks 0-2 (3 ranks) wait; nothing is known about ranks 3"
        )
        expect(page.locator(".waits-graph .box-unknown")).to_contain_text("unknown: rank 3")
        expect(page.locator(".waits-graph .box-missing")).to_have_count(0)
        page.goto("about:blank")


def test_too_many_open_findings(tmp_path: Path, watched: Watched) -> None:
    """The newest 200 are on the page, which says so."""
    findings = [stall(number, "llm") for number in range(201)]
    with serving(tmp_path, [hung("llm")], findings) as service:
        page = watched.open(service.address)
        expect(page.locator(".counts")).to_contain_text("200 or more open findings")
        expect(page.get_by_text("Shown are the newest 200 open findings")).to_be_visible()
        expect(page).to_have_title("● 200+ findings · frd")


def test_a_silenced_finding_comes_last(tmp_path: Path, watched: Watched) -> None:
    """It stays in sight, below another one that is less severe."""
    until = AlignedNs(NOW + 3600 * SECOND)
    critical = dataclasses.replace(stall(1, "llm"), severity=Severity.CRITICAL)
    known = dataclasses.replace(
        critical, silenced_until_at=until, headline="known", silenced_by="ann"
    )
    other = dataclasses.replace(stall(2, "rl"), headline="other")
    with serving(tmp_path, [hung("llm"), hung("rl")], [known, other]) as service:
        page = watched.open(service.address)
        expect(page.get_by_role("heading", level=1)).to_have_text("other")
        row = section(page, "Other open findings").locator("tbody tr")
        expect(row).to_contain_text("known")
        expect(row).to_contain_text("silenced until 2027-01-15 09:00:00 UTC by ann")


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Kind.STALL, "Only wait"), (Kind.RANK_LOST, "Also affected"), (Kind.OOM, "")],
)
def test_victims_of_a_kind(kind: Kind, said: str, tmp_path: Path, watched: Watched) -> None:
    """They wait, or are affected; after a failed allocation they are not shown."""
    finding = dataclasses.replace(stall(1, "llm"), kind=kind)
    with serving(tmp_path, [hung("llm")], [finding]) as service:
        page = watched.open(service.address)
        expect(page.locator(".counts")).to_be_visible()
        affected = page.locator(".affected")
        expect(affected).to_have_text([f"{said} 0-2 (3 ranks)"] if said else [])
