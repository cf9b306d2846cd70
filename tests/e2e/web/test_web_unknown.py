"""What frd does not know, or the page does not show, is said, and is not shown as bad."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from frd.model import Kind
from tests.e2e.web.browser import Watched
from tests.e2e.web.serving import hung, serving, stall

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
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
        expect(page.get_by_role("heading", level=1)).to_contain_text("200 or more open findings")
        expect(page.get_by_text("Shown are the newest 200 open findings")).to_be_visible()
        expect(page).to_have_title("● 200+ findings · frd")


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Kind.STALL, "Only wait"), (Kind.RANK_LOST, "Also affected"), (Kind.OOM, "")],
)
def test_victims_of_a_kind(kind: Kind, said: str, tmp_path: Path, watched: Watched) -> None:
    """They wait, or are affected; after a failed allocation they are not shown."""
    finding = dataclasses.replace(stall(1, "llm"), kind=kind)
    with serving(tmp_path, [hung("llm")], [finding]) as service:
        page = watched.open(service.address)
        blame = page.locator(".blame")
        expect(blame).to_contain_text("First cause")
        expect(blame.get_by_text(said or "First cause", exact=True)).to_be_visible()
        expect(blame.locator("> .muted")).to_have_count(2 if said else 1)
