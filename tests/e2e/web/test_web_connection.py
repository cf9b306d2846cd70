"""The service goes away, and comes back; events are blocked on the way to the browser."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.e2e.web.browser import Watched
from tests.e2e.web.serving import hung, serving, stall
from tests.world.daemons import first_line, free_address, running, serve_command, until
from tests.world.http_api import closed

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
UNREACHABLE = (r"net::ERR_(CONNECTION_|EMPTY_RESPONSE|INCOMPLETE_CHUNKED_ENCODING)",)
BLOCKED = (r"net::ERR_FAILED",)
SCRIPTED_EVENTS = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.events = this; }
  close() {}
  say(name) { this.dispatchEvent(new MessageEvent(name, { data: "{}" })); }
};
"""
AGE = re.compile(r"connection lost — data from (\d+) s ago")


def age_s(page: Page) -> int:
    """Of the data on the screen, as the page says it."""
    said = AGE.search(page.get_by_role("banner").inner_text())
    return int(said[1]) if said else -1


def test_a_lost_service(tmp_path: Path, watched: Watched) -> None:
    """A page whose service is killed says so and how old its data is; when the service is back at
    its address, the page goes on without a reload."""
    watched.expect(*UNREACHABLE)
    watched.page.clock.install()
    command = [*serve_command(tmp_path), "--http", (address := free_address())]
    with running(command) as process:
        assert first_line(process)
        page = watched.open(address)
        expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
        page.evaluate("window.mark = 1")
        expect(page.get_by_role("heading", level=1)).to_contain_text("No open findings")
        heading = page.get_by_role("heading", level=1).inner_text()
    banner = page.get_by_role("banner")
    expect(banner).to_contain_text(AGE)
    expect(page).to_have_title(re.compile("connection lost"))
    first = age_s(page)
    page.clock.fast_forward(30_000)
    expect(banner).to_contain_text(re.compile(f"data from ({first + 30}|{first + 31}) s ago"))
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    expect(page.locator(".stale")).to_be_visible()
    with running(command) as process:
        assert first_line(process)
        page.clock.fast_forward(15_000)  # the longest time between two attempts
        expect(banner.get_by_text("live", exact=True)).to_be_visible()
        expect(page.locator(".stale")).to_have_count(0)
        assert page.evaluate("window.mark") == 1
        page.goto("about:blank")  # before the service ends


def test_blocked_events(tmp_path: Path, watched: Watched) -> None:
    """Without server-sent events the page asks every few seconds, says so, and shows what is
    new."""
    watched.expect(*BLOCKED)
    page = watched.page
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.clock.install()
    with serving(tmp_path, [hung("llm")]) as service:
        watched.open(service.address)
        expect(page.get_by_role("banner")).to_contain_text("polling every 5 s")
        expect(page.get_by_role("heading", level=1)).to_contain_text("No open findings")
        service.shows([stall(1, "llm")])
        page.clock.fast_forward(5_000)
        expect(page.locator(".counts")).to_contain_text("1 open finding")
        page.goto("about:blank")


def test_silent_events(tmp_path: Path, watched: Watched) -> None:
    """A stream of events that says nothing, as through a proxy that holds it back, is given up
    after twelve seconds; polling goes on."""
    page = watched.page
    page.route(
        "**/api/v1/events*",
        lambda route: route.fulfill(content_type="text/event-stream", body=": nothing\n\n"),
    )
    page.clock.install()
    with serving(tmp_path, [hung("llm")], [stall(1, "llm")]) as service:
        watched.open(service.address)
        expect(page.locator(".counts")).to_contain_text("1 open finding")
        page.clock.fast_forward(13_000)
        expect(page.get_by_role("banner")).to_contain_text("polling every 5 s")
        page.goto("about:blank")


def test_ticks(tmp_path: Path, watched: Watched) -> None:
    """A stream of nothing but ticks is live, and open findings are read once: at its hello."""
    page = watched.page
    page.add_init_script(SCRIPTED_EVENTS)
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with serving(tmp_path, [hung("llm")], [stall(1, "llm")]) as service:
        watched.open(service.address)
        expect(page.get_by_role("region", name="Jobs")).to_contain_text("llm")
        page.evaluate("events.say('hello')")
        expect(page.locator(".counts")).to_contain_text("1 open finding")
        for _ in range(3):
            page.clock.fast_forward(8_000)
            page.evaluate("events.say('tick')")
            page.clock.run_for(1_000)
            expect(page.get_by_role("banner")).to_contain_text("live")
        assert len([url for url in asked if "/findings?" in url]) == 1
        page.clock.fast_forward(13_000)
        expect(page.get_by_role("banner")).to_contain_text("polling every 5 s")
        page.goto("about:blank")


def test_a_slow_map(tmp_path: Path, watched: Watched) -> None:
    """A map whose version changes while it is on the way arrives, and is asked for once more."""
    page = watched.page
    page.clock.install()
    maps: list[Route] = []
    versions = 0

    def hold(route: Route) -> None:
        maps.append(route)

    def summary(route: Route) -> None:
        nonlocal versions
        versions += 1
        route.fulfill(json=route.fetch().json() | {"map": f"version {versions}"})

    page.route("**/jobs/llm?view=map*", hold)
    page.route("**/jobs/llm?view=summary*", summary)
    with serving(tmp_path, [hung("llm")]) as service:
        watched.open(service.address, "/jobs/llm?attempt=0")
        expect(page.get_by_role("heading", level=1)).to_contain_text("attempt 0")
        for _ in range(3):
            with page.expect_response("**/jobs/llm?view=summary*"):
                page.clock.fast_forward(5_000)
        page.clock.run_for(1_000)
        assert len(maps) == 1
        with page.expect_request("**/jobs/llm?view=map*"):
            maps[0].continue_()
        expect(page.locator("#heat-text")).to_contain_text("missing: rank 3")
        page.clock.run_for(1_000)
        assert len(maps) == 2
        maps[1].continue_()
        page.unroute_all(behavior="ignoreErrors")  # a summary may be on its way
        page.goto("about:blank")


def test_the_timeline_after_the_close(tmp_path: Path, watched: Watched) -> None:
    """It is read once more five seconds later, for what was not stored before."""
    page = watched.page
    page.clock.install()
    asked: list[Request] = []
    page.on("request", lambda one: asked.append(one))  # noqa: PLW0108  # takes no builtin

    def reads() -> list[list[Request]]:
        """The first one since the page opened, or the finding closed, asks for any version."""
        page.evaluate("0")  # events come meanwhile
        of_timeline = [one for one in asked if one.url.endswith("/timeline")]
        first = [n for n, one in enumerate(of_timeline) if "if-none-match" not in one.headers]
        return [of_timeline[n:end] for n, end in pairwise([*first, None])]

    def until_after(step_ms: int, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            page.clock.run_for(step_ms)
            return condition()

        until(look)

    finding = stall(1, "llm")
    with serving(tmp_path, [hung("llm")], [finding]) as service:
        watched.open(service.address, f"/findings/{finding.id}")
        expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
        until(reads)  # it is open on this page
        page.clock.pause_at(page.evaluate("Date.now() / 1000 + 30"))  # else a slow machine's counts
        service.shows([])
        service.keeps(dataclasses.replace(closed(finding), close_reason="the ranks went on"))
        until_after(50, page.get_by_text("Closed: the ranks went on").is_visible)
        until_after(50, lambda: len(reads()) == 2)
        until_after(500, lambda: len(reads()[1]) == 2)
        page.clock.run_for(11_000)
        assert [len(some) for some in reads()[1:]] == [2]
        page.goto("about:blank")
