"""The minute after an incident, over a scripted state: what the first screen says, what can be
copied and said, and what was before."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from frd.forms import finding_json
from frd.model import (
    Address,
    AlignedNs,
    Certainty,
    ExitInfo,
    ExitKind,
    Failure,
    Finding,
    Kind,
    RankState,
    Reason,
    Severity,
    WaitKind,
    WaitsFor,
)
from tests.e2e.web.browser import Watched, overflow_px, section, watched
from tests.e2e.web.serving import Serving, hung, serving, stall
from tests.world.daemons import until
from tests.world.http_api import closed
from tests.world.views import NOW, SECOND, attempt_view, rank_view

pytestmark = pytest.mark.xdist_group("web")  # one Chromium for all
SIZES: Final = ({"width": 1280, "height": 800}, {"width": 390, "height": 844})
HEADLINE: Final = "Rank 3 (node7): its loader worker is stuck in open(/data/shard-17.tar)"
EFFECT: Final = "holds up 3 ranks in all_reduce #6 of default_pg for 40 s"
DO_NOW: Final = [
    {"text": "Log in to the node.", "command": "ssh node7", "args": ["ssh", "node7"]},
    {"text": "If nothing answers, restart the mount."},
]
PATH: Final = f"/findings/{1:016x}"
HOUR: Final = 3600 * SECOND


def incident(number: int = 1, job: str = "llm", ago: int = 0) -> Finding:
    """A stuck loader worker, with everything that is known of its process."""
    base = stall(number, job)
    wait = WaitsFor(
        WaitKind.FILE_READ, Certainty.SEEN, "/data/shard-17.tar", pid=41, process="pt_data_worker",
        thread="pt_data_worker", text="rank 3 waits for its loader worker",
    )  # fmt: skip
    address = Address(
        13908, "python train.py", "alice", "9f2", "4711", "0", "ml", "train-3", "/log/3"
    )
    suspect = dataclasses.replace(
        base.suspects[0], node="node7", waits_for=wait, address=address, stack=()
    )
    opened = base.opened_at if not ago else AlignedNs(NOW - ago)
    return dataclasses.replace(
        base, suspects=(suspect,), severity=Severity.CRITICAL, opened_at=opened,
        headline=HEADLINE, effect=EFFECT, summary=f"{HEADLINE}; {EFFECT}",
    )  # fmt: skip


def over(number: int, job: str, ago: int, **changes: Any) -> Finding:
    """One that opened so long ago, and closed five minutes later."""
    one = dataclasses.replace(closed(incident(number, job, ago)), **changes)
    return dataclasses.replace(one, closed_at=AlignedNs(NOW - ago + 300 * SECOND))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A job that hangs for the third time, and a job that the engine has forgotten."""
    past = [over(50, "llm", HOUR), over(51, "llm", 30 * HOUR)]
    past += [over(52, "gone", 2 * HOUR, kind=Kind.OOM, headline="Rank 1 ran out of memory")]
    with serving(tmp_path_factory.mktemp("i"), [hung("llm")], [incident(), *past]) as one:
        yield one


def opened(one: Watched, service: Serving, path: str) -> Page:
    """The page, with steps for the open finding."""
    shown = {**finding_json(incident()), "do_now": DO_NOW}
    shown["before"] = {"times": 1, "last_at": shown["opened_at"]}
    shown["silence_url"] = "https://alerts.example/#/silences/new"
    listed = re.compile(r"/api/v1/findings\?state=open")
    one.page.route(listed, lambda route: route.fulfill(json={"findings": [shown]}))
    one.page.route(f"**/api/v1{PATH}", lambda route: route.fulfill(json=shown))
    page = one.open(service.address, path)
    expect(page.get_by_text(HEADLINE).first).to_be_visible()
    return page


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size["width"]))
@pytest.mark.parametrize("path", ["/", PATH])
def test_the_first_screen(service: Serving, browser: Browser, path: str, size: Any) -> None:
    """Without scrolling: the cause as the heading and nowhere else, its effect, what to do with the
    command, and on the overview also who waits and the jobs. The overview fits the screen."""
    with watched(browser, viewport=size) as one:
        page = opened(one, service, path)
        expect(page.get_by_role("heading", level=1)).to_have_text(HEADLINE)
        silence = page.get_by_role("link", name="Silence its alerts")
        expect(silence).to_have_count(int(path == PATH))
        expect(page.locator("main").get_by_text(HEADLINE, exact=True)).to_have_count(1)
        shown = [EFFECT, "Log in to the node.", "ssh node7", "If nothing answers"]
        for text in shown + (["Only wait", "1 suspect"] if path == "/" else []):
            expect(page.get_by_text(text).first).to_be_in_viewport()
        assert overflow_px(page) <= 0
        if path == "/":
            bottom = page.locator("#jobs-head").evaluate("e => e.getBoundingClientRect().bottom")
            assert bottom < size["height"]


def test_a_command_is_copied(service: Serving, browser: Browser) -> None:
    """The clipboard has the command, a link, or a report whose commands are fenced."""
    granted = ["clipboard-read", "clipboard-write"]
    with watched(browser, permissions=granted) as one:
        page = opened(one, service, PATH)

        def copied() -> str:
            return str(page.evaluate("navigator.clipboard.readText()"))

        page.get_by_role("button", name="Copy ssh node7").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert copied() == "ssh node7"
        page.get_by_role("button", name="Copy the command line").click()
        until(lambda: copied() == "python train.py", "the command line")
        page.get_by_role("button", name="Copy link").click()
        until(lambda: copied() == page.url, "the link")
        page.get_by_role("button", name="Copy as Markdown").click()
        until(lambda: copied().startswith("# Rank 3"), "the report")
        report = copied()
        assert "   ```sh\n   kubectl exec --namespace ml train-3 -- ls" in report
        assert r"all\_reduce" in report
        assert f"{PATH}>" in report


def test_where_the_suspect_runs(service: Serving, watched: Watched) -> None:
    """Its node, process, container, Slurm job, pod and log; a name is not said twice, and what is
    not known is explained."""
    card = opened(watched, service, PATH).get_by_role("article")
    for text in ("node7", "13908", "user alice", "9f2", "4711.0", "ml/train-3", "/log/3"):
        expect(card).to_contain_text(text)
    expect(card).to_contain_text(re.compile(r"Process\s*pt_data_worker, pid 41(?!,)"))
    expect(card).to_contain_text("No stack yet: the rank has not answered.")


def test_the_log_on_demand(service: Serving, watched: Watched) -> None:
    """The last lines of stderr are read when they are wanted, and are text; of a rank without a
    file it says why."""
    ranks = [
        {"rank": 3, "node": "node7", "path": "/log/3", "lines": ["<b>slow</b>", "x" * 999]},
        {"rank": 1, "node": "node6", "path": "", "lines": [], "why": "stderr is a pipe"},
    ]
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"ranks": ranks})

    watched.page.route("**/log", answer)
    page = opened(watched, service, PATH)
    expect(page.get_by_text("Last lines of its stderr")).to_be_visible()
    assert asked == []
    page.get_by_text("Last lines of its stderr").click()
    expect(page.locator(".log pre")).to_have_text("<b>slow</b>\n" + "x" * 999)
    expect(page.locator(".log")).to_contain_text("stderr is a pipe")
    assert overflow_px(page) <= 0


def test_what_people_say(service: Serving, watched: Watched) -> None:
    """Each button sends what its route takes, with the name of the person where no token has one,
    and shows the answer; an error is shown."""
    sent: list[tuple[str, dict[str, Any]]] = []
    data = watched.page.request.get(f"http://{service.address}/api/v1{PATH}").json()

    def answer(route: Route) -> None:
        action, body = route.request.url.rpartition("/")[2], route.request.post_data_json or {}
        sent.append((action, body))
        if action == "close":
            route.fulfill(status=409, json={"error": "finding: closed already"})
            return
        data.update(acknowledged_by=body["by"]) if action == "ack" else None
        data.update(assigned_to=body["to"]) if action == "assign" else None
        note = {"by": body["by"], "written_at": data["opened_at"], "text": body.get("text", "")}
        data.update(notes=[note]) if action == "note" else None
        data.update(silenced_until=body["until"]) if action == "silence" else None
        route.fulfill(json=data)

    watched.expect(r"answer 409", r"409 \(Conflict\)")
    watched.page.route(re.compile(r"/(ack|assign|note|silence|close)$"), answer)
    page = opened(watched, service, PATH)
    page.get_by_placeholder("your name").fill("ann")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("acknowledged by ann")).to_be_visible()
    for button, label, text, submit in (
        ("Assign", "Assign to", "bob", "Assign"),
        ("Note", "Note", "asked\u202e storage", "Add"),
        ("Silence", "Why", "known", "4 h"),
        ("Close", "Why", "fixed", "Close the finding"),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        form = page.locator("form.say")
        form.get_by_label(label).fill(text)
        form.get_by_role("button", name=submit).click()
    expect(page.get_by_role("alert")).to_have_text("finding: closed already")
    expect(page.get_by_text("assigned to bob")).to_be_visible()
    expect(page.locator(".person-note")).to_contain_text("asked\\u202e storage")
    expect(page.get_by_text("silenced until")).to_be_visible()
    assert [action for action, _ in sent] == ["ack", "assign", "note", "silence", "close"]
    bodies = dict(sent)
    assert bodies["ack"] == {"by": "ann"}
    assert bodies["assign"] == {"to": "bob", "by": "ann"}
    assert bodies["silence"].keys() == {"until", "because", "by"}
    assert bodies["close"] == {"because": "fixed", "by": "ann"}


def test_what_was(service: Serving, watched: Watched) -> None:
    """The overview has what ended within a day; the finding says that it is the third one, and
    links to the others; a job that the engine has forgotten has its findings, and no error."""
    watched.expect(r"^answer 404: .*/jobs/gone", r"^console error: Failed to load.* 404")
    page = watched.open(service.address)
    ended = section(page, "Ended by itself in the last 24 hours")
    expect(ended.locator("li")).to_have_count(2)
    expect(ended).to_contain_text("Rank 1 ran out of memory")
    expect(ended).to_contain_text("llm: the same as now")
    page = watched.open(service.address, PATH)
    before = page.locator(".before")
    expect(before).to_contain_text("This happened 2 times to this job before, 2 times on node7")
    before.get_by_role("link").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page = watched.open(service.address, "/jobs/gone")
    past = section(page, "Findings of this job")
    expect(past).to_contain_text("Rank 1 ran out of memory")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_recent_history(service: Serving, watched: Watched) -> None:
    """It begins with the last day, older ones follow on demand; text and severity are filters, and
    are in the address."""
    page = opened(watched, service, "/")  # knows the service's time from here on
    page.get_by_role("link", name="History").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page = watched.open(service.address, "/history?text=RAN+OUT&severity=critical")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Severity")).to_have_value("critical")
    page.get_by_label("Severity").select_option("warning")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text(re.compile("^None of the 3 findings"))).to_be_visible()
    assert page.url.endswith("/history?severity=warning&text=RAN+OUT")


def test_times_in_two_zones(service: Serving, browser: Browser) -> None:
    """Each time is that of the reader and UTC, the axis of the timeline says the difference."""
    both = re.compile(r"since 2027-01-15 08:59:59 local, 07:59:59 UTC")
    with watched(browser, timezone_id="Europe/Berlin") as one:
        expect(opened(one, service, "/").locator(".verdict")).to_contain_text(both)
        page = opened(one, service, PATH)
        expect(page.locator(".head-line")).to_contain_text(both)
        model = "import('/web/js/finding/lanes.js').then((m) => m.laneModel({from: '%s'}).zone)"
        assert page.evaluate(model % "2027-01-15T08:00:00Z") == "UTC (local +1 h)"


def test_a_zoom_is_in_the_address(service: Serving, watched: Watched) -> None:
    """A reload, or a copied link, shows the same part of the timeline."""
    page = opened(watched, service, PATH)
    page.locator(".lanes canvas").wait_for()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_url(re.compile(r"zoom=[\d.]+-[\d.]+$"))
    link = page.url
    page.evaluate("new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")
    pixels = "document.querySelector('.lanes canvas').toDataURL()"
    before = page.evaluate(pixels)
    page.reload()
    page.wait_for_function(f"(before) => document.querySelector('.lanes') && {pixels} === before",
                           arg=before)  # fmt: skip
    assert page.url == link
    page.get_by_role("button", name="Incident").click()
    page.wait_for_url(f"**{PATH}")


def test_shortcuts(service: Serving, watched: Watched) -> None:
    """j and k go through the findings, ? lists the keys, / leads to the filter, in which they are
    letters."""
    page = opened(watched, service, "/")
    focused = page.locator(":focus")
    page.keyboard.press("j")
    expect(focused).to_have_text(HEADLINE)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(focused).to_have_text("Rank 1 ran out of memory")
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(focused).to_have_text(HEADLINE)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("filter the history")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("j/?")
    expect(page.get_by_label("Text")).to_have_value("j/?")


def test_an_empty_service(tmp_path: Path, watched: Watched) -> None:
    """It teaches the next step, and says that frd is blind, in the title of the tab, too."""
    with serving(tmp_path) as service:
        service.service.state = dataclasses.replace(service.service.state, nodes=())
        page = watched.open(service.address)
        steps = page.locator("ol.do-now")
        expect(steps).to_contain_text("frd-agent run --service 127.0.0.1:9373")
        expect(steps).to_contain_text("frd-agent exec -- torchrun")
        expect(page.get_by_text("No open findings")).to_have_count(1)
        expect(page).to_have_title("blind · frd")
        page.goto("about:blank")


def test_an_unknown_path(service: Serving, watched: Watched) -> None:
    """A browser gets the page, which says so; a program gets JSON."""
    watched.expect(r"^answer 404", r"^console error: Failed to load resource.* 404")
    page = watched.open(service.address, "/findngs/7")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
    answer = page.request.get(f"http://{service.address}/findngs/7", headers={"Accept": "*/*"})
    assert answer.status == 404
    assert "unknown path" in answer.json()["error"]


def test_a_job_that_was_stopped(tmp_path: Path, watched: Watched) -> None:
    """Ranks that ended on purpose are not red; those of a job that failed are."""
    ranks = [rank_view(rank, RankState.EXITED) for rank in range(4)]
    stopped = attempt_view(ranks, ended=True)
    why = ExitInfo(ExitKind.SIGNAL, 9)
    failure = Failure(0, 4, AlignedNs(NOW - HOUR), 2, "rank 2 was killed by SIGKILL", why)
    with serving(tmp_path, [stopped]) as service:
        page = watched.open(service.address)
        jobs = section(page, "Jobs")
        expect(jobs).to_contain_text("4 exited")
        expect(jobs.locator(".bad")).to_have_count(0)
        page = watched.open(service.address, f"/jobs/{stopped.key.job}")
        expect(section(page, "Notable ranks")).to_contain_text("exited")
        expect(section(page, "Notable ranks").locator(".bad")).to_have_count(0)
        service.shows(jobs=[dataclasses.replace(stopped, failure=failure)])
        page = watched.open(service.address)
        expect(page.get_by_role("heading", level=1)).to_have_text("1 job has failed")
        expect(page.get_by_text("rank 2 was killed by SIGKILL")).to_have_count(1)
        expect(section(page, "Jobs").locator(".bad").first).to_be_visible()
        page.goto("about:blank")


def test_the_end_of_a_lost_rank(service: Serving, watched: Watched) -> None:
    """Its lane has the time of its exit, and its open op goes no further."""
    page = opened(watched, service, PATH)
    data = {
        "from": "2027-01-15T08:00:00Z", "until": "2027-01-15T08:00:09Z", "ops": ["all_reduce"],
        "lanes": [{"rank": 2, "role": "suspect"}, {"rank": 0}], "groups": ["pg"],
        "bars": {"lane": [0, 1], "group": [0, 0], "seq": [1, 1], "op": [0, 0],
                 "enqueued_s": [1, 1], "end_s": [None, None]},
        "onsets": [{"rank": 2, "at_s": 4.5}],
    }  # fmt: skip
    finding = {"suspects": [{"rank": 2, "reason": Reason.EXITED.value}]}
    lanes = page.evaluate(
        f"import('/web/js/finding/lanes.js').then((m) =>"
        f" m.laneModel({json.dumps(data)}, {json.dumps(finding)})"
        f".lanes.map((one) => [one.end, one.items[0].end]))"
    )
    assert lanes == [[4.5, 4.5], [None, 9]]
