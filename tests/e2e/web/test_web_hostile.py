"""Names and lines that try to be markup, a path, or another direction of writing stay text."""

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
    Certainty,
    Finding,
    Note,
    SuspectPhase,
    WaitKind,
    WaitsFor,
    Witness,
    WorkerStack,
)
from tests.e2e.web.browser import Watched, overflow_px, section
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.views import NOW, SECOND

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
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
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
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
def test_a_hostile_name(service: Serving, watched: Watched, which: str) -> None:
    """On each page it is shown as it is written; links of its job and finding lead there."""
    text, seen = HOSTILE[which], SEEN[which]
    to_do = {"text": text, "command": f"ls {text}", "args": ["ls", text]}

    answer = {**finding_json(finding_of([*HOSTILE].index(which), text)), "do_now": [to_do]}

    def add(route: Route) -> None:
        route.fulfill(json=answer)

    watched.page.route("**/api/v1/findings/*", add)
    page = watched.open(service.address)
    expect(page.locator("main")).to_contain_text(f"headline {seen}")
    check(page)

    section(page, "Jobs").get_by_role("link", name=seen, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {seen}")
    path = f"/jobs/{quote(text, safe=_UNQUOTED)}"
    assert page.url == f"http://{service.address}{path}"
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

    page.goto(f"http://{service.address}/history?job={quote(text, safe='')}")
    expect(page.get_by_label("Job")).to_have_value(text.replace("\n", ""))
    check(page)
