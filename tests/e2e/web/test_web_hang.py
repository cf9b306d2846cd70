"""A real job hangs under a real agent and a real service, while the page is open."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import examples
from tests.e2e.web.browser import Watched
from tests.world.daemons import PATIENCE_S, findings
from tests.world.daemons import watched as staged

pytestmark = [
    pytest.mark.torch,
    pytest.mark.recorder,
    pytest.mark.xdist_group("web"),  # one Chromium for all
]
WITHIN_S = 2.0
"""From the API's naming of a rank to the page's."""
LINE = "time.sleep(3600)"
"""Of the example, where the rank is stuck."""
STUCK = 2


def becomes(page: Page, condition: Callable[[], Any], what: str) -> Any:
    """`until`, while the page goes on: Playwright runs in this thread."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(20)
    return value


def test_a_hang_from_its_opening_to_its_end(watched: Watched, tmp_path: Path) -> None:
    """The overview names the stuck rank within two seconds of the API; the finding's page shows
    cause, stack, timeline and victims, gives a trace that Perfetto loads, and follows the finding
    until the job is killed, all without a reload."""
    with staged(SCENARIOS["missing_rank"], 3, 2.0) as (stage, client):
        page = watched.open(client.url.removeprefix("http://"))
        expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
        page.evaluate("window.mark = 1")

        def opened() -> list[dict[str, Any]]:
            return findings(client, state="open")

        finding, *more = becomes(page, opened, "an open finding")
        began = time.monotonic()
        assert not more
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_contain_text(f"ank {STUCK} ", timeout=WITHIN_S * 1000)
        assert time.monotonic() - began < WITHIN_S
        expect(page.locator(".counts")).to_contain_text("1 open finding")
        heading.get_by_role("link").click()
        shows_the_cause(page, client, finding["id"])
        shows_the_timeline(page, client, finding["id"])
        downloads_a_trace(page, tmp_path)
        for rank in stage.ranks:
            os.killpg(rank.pid, signal.SIGKILL)
        shows_the_end(page, client, finding["id"])
        assert page.evaluate("window.mark") == 1
        page.goto("about:blank")  # before the service ends


def shows_the_cause(page: Page, client: Client, finding_id: str) -> None:
    """The rank, its reason, evidence, stack, what it waits for, and the ranks that wait."""

    def explained() -> Any:
        one = client.get(f"/api/v1/findings/{finding_id}")
        return one if one["suspects"][0].get("waits_for") and one.get("witness") else None

    finding = becomes(page, explained, "a finding with what its suspect waits for")
    (suspect,) = finding["suspects"]
    (line,) = (
        number
        for number, text in enumerate((examples() / "missing_rank.py").read_text().split("\n"), 1)
        if LINE in text
    )
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text(finding.get("headline") or finding["summary"])
    card = page.get_by_role("article")
    for shown in (
        f"Rank {STUCK} on {suspect['node']}",
        suspect["reason"],
        suspect["confidence"],
        suspect["evidence"],
        f"missing_rank.py:{line} in load_batch",
        f"rank {STUCK} waits for a timer",
    ):
        expect(card).to_contain_text(shown)
    facts = page.get_by_role("region", name="Ranks that wait, and facts")
    expect(facts).to_contain_text(re.compile(r"Victims\s*0-1"))
    expect(facts).to_contain_text(f"all_reduce #{finding['collective']['seq']} on default_pg")
    expect(facts).to_contain_text("entered the collective from")


def shows_the_timeline(page: Page, client: Client, finding_id: str) -> None:
    """The API has bars, and a gap of the stuck rank; the canvas has pixels, and the table the
    same."""
    timeline = client.get(f"/api/v1/findings/{finding_id}/timeline")
    ranks = [lane["rank"] for lane in timeline["lanes"]]
    assert sorted(ranks) == [0, 1, 2]
    assert {ranks[lane] for lane in timeline["bars"]["lane"]} == {0, 1, 2}
    assert [ranks[lane] for lane in timeline["missing"]["lane"]] == [STUCK]
    (seq,) = timeline["missing"]["seq"]
    page.get_by_text("The timeline as a table").click()
    table = page.get_by_role("region", name="Timeline", exact=True).locator("tbody")
    gap = table.locator("tr").filter(has_text="has not joined")
    expect(gap).to_have_count(1)
    expect(gap.locator("td").first).to_have_text(str(STUCK))
    expect(gap).to_contain_text(f"all_reduce #{seq} on default_pg")
    assert table.locator("tr").count() == len(timeline["bars"]["lane"]) + 1
    colours = page.locator(".lanes canvas").evaluate(
        "c => new Set(new Uint32Array(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.buffer)).size"
    )
    assert colours > 8


def downloads_a_trace(page: Page, folder: Path) -> None:
    """Perfetto's own processor reads it, and finds the stuck rank's track."""
    from tests.e2e.test_timeline import complaints, loaded, rows

    with page.expect_download() as download:
        page.get_by_role("link", name="Perfetto").click()
    assert download.value.suggested_filename.endswith(".pftrace")
    trace = folder / "t.pftrace"
    shutil.copy(download.value.path(), trace)
    with loaded(trace) as processor:
        assert complaints(processor) == []
        tracks = [name for (name,) in rows(processor, "select name from track")]
        assert any(str(name).startswith(f"rank {STUCK}") for name in tracks)
        ops = rows(processor, "select count(*) from slice where name like 'all_reduce #%'")
        assert ops[0][0] > 3


def shows_the_end(page: Page, client: Client, finding_id: str) -> None:
    expect(page.get_by_text("Closed:")).to_be_visible(timeout=PATIENCE_S * 1000)
    finding = client.get(f"/api/v1/findings/{finding_id}")
    assert finding["state"] == "closed"
    expect(page.get_by_text(f"Closed: {finding['close_reason']}")).to_be_visible()
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    timeline = client.get(f"/api/v1/findings/{finding_id}/timeline")
    assert timeline["missing"]["until_s"][0] is not None
    table = page.get_by_role("region", name="Timeline", exact=True).locator("tbody")
    expect(table).to_contain_text("joined, or ended, at")
