"""The HTTP API: the agreed answers, and one clear error for everything else."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from frd.do_now import shown_json
from frd.engine.views import GroupView, MemoryView, StatusView
from frd.forms import utc_ns, utc_text
from frd.model import AlignedNs, AttemptKey, Change, FindingEvent, Kind, SeriesInfo, SeriesKind
from frd.service.findings.report import report
from frd.service.http.json_api import group_json
from frd.service.http.routes import WebOptions
from frd.service.http.web.pages import Runbook
from frd.service.state import ServiceState
from tests.world.http_api import Client, Service, closed, finding, job_view
from tests.world.views import NOW, SECOND


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    jobs = [job_view("train", 1), job_view("train", 0), job_view("a/b c")]
    jobs.append(job_view("b\n\udcff"))
    service = Service(tmp_path, [*jobs, job_view("gone")])
    yield Client(service)
    service.close()


def test_metrics(client: Client) -> None:
    """/metrics is Prometheus text of the current state."""
    answer = client.get("/metrics")
    assert (answer.status, answer.content_type.partition(";")[0]) == (200, "text/plain")
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"frd_build_info", "frd_stall_seconds"} <= names


def test_health_and_readiness(client: Client) -> None:
    """Healthy whenever it answers; not ready while the last evaluation is stale."""
    assert client.get("/-/healthy").status == 200
    assert client.get("/-/ready").status == 200
    client.service.now = AlignedNs(NOW + 6 * SECOND)
    assert client.get("/-/healthy").status == 200
    answer = client.get("/-/ready")
    assert answer.status == 503
    assert b"the last evaluation is stale" in answer.body


def test_runbooks(client: Client) -> None:
    """Every page that an alert may link to is served unchanged, and so is their list."""
    pages = sorted((Path(__file__).parents[4] / "docs/runbooks").glob("*.md"))
    assert pages
    for page in pages:
        answer = client.get(f"/runbooks/{page.name}")
        assert answer.content_type == "text/plain; charset=utf-8"
        assert answer.body == page.read_bytes()
    assert client.get("/runbooks/").body.decode().split() == [page.name for page in pages]
    answer = client.get("/runbooks/../findings.md")
    assert answer.status == 404
    assert answer.json["error"].startswith("runbook: '../findings.md': unknown here")


def test_runbooks_as_pages(client: Client) -> None:
    """A browser gets HTML without any script, with the headers of the page. Links lead to other
    runbooks; those to other documents are plain text."""
    answer = client.get("/runbooks/FrdMemoryFirstCause.md", accept="text/html,*/*")
    assert answer.content_type == "text/html; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    page = answer.body.decode()
    assert '<a href="FrdRankLost.md"><code>FrdRankLost</code></a>' in page
    assert "written by" not in page
    pages = [client.get(f"/runbooks/{name}", accept="text/html").body.decode() for name in
             client.get("/runbooks/").body.decode().split()]  # fmt: skip
    assert not [one for one in pages if "<script" in one or 'href="..' in one or "](" in one]
    listed = client.get("/runbooks/", accept="text/html").body.decode()
    assert '<a href="FrdStandstill.md">FrdStandstill</a>' in listed


def test_html_in_a_runbook_is_text() -> None:
    """No element, and no address that runs a script."""
    text = "# A\n\n<script>alert(1)</script> <b>x</b> [y](javascript:alert(1)) [z](https://a.b)"
    page = Runbook("<A>", text, text).page
    assert "<script" not in page
    assert "<b>" not in page
    assert "<title>&lt;A&gt;</title>" in page
    assert 'href="javascript' not in page
    assert 'href="https://a.b"' in page


def test_jobs(client: Client) -> None:
    """The list has the newest attempt of every job with counts of ranks, findings and agents;
    a name that is no UTF-8 is escaped JSON."""
    jobs = client.get("/api/v1/jobs").json["jobs"]
    assert [job["job"] for job in jobs] == ["a/b c", "b\n\udcff", "gone", "train"]
    assert jobs[-1] == {
        "job": "train",
        "attempt": 1,
        "world_size": 2,
        "ended": False,
        "state": "running",
        "failure": None,
        "ranks": {"live": 1, "silent": 1},
        "open_findings": 2,
        "last_heard_s": 1.0,
        "gap_entries": 0,
        "pace": {"per_s": None, "every_s": 5.0, "recent": []},
        "agents": 1,
    }


def test_a_group_of_unknown_members_is_watched_in_part() -> None:
    """Its members are the ranks that list it; the others may be of another job."""
    group = GroupView("00bb", "weights", 0, 1, 1, 12.5, 6, 7, 6)
    assert group_json(group)["unwatched"].endswith("others are of other jobs")


def test_job_in_full(client: Client) -> None:
    """An attempt shows groups, ranks, nodes and its open findings, newest first. Without a number,
    it is the newest attempt."""
    job = client.get("/api/v1/jobs/train", "attempt=0").json
    assert (job["job"], job["attempt"], job["world_size"], job["ended"]) == ("train", 0, 2, False)
    assert job["groups"] == [
        {
            "group_id": "00aa",
            "group": "default_pg",
            "size": 2,
            "unwatched": "",
            "open": 1,
            "stalled": 1,
            "stall_s": 12.5,
            "threshold_s": 0.0,
            "matched": 6,
            "enqueued": 7,
            "completed": 6,
        }
    ]
    assert job["ranks"][0]["as_of"] is None
    assert job["ranks"][0]["age_s"] is None
    assert job["ranks"][1] == {
        "rank": 1,
        "node": "node0",
        "pid": 101,
        "state": "live",
        "detail": "T",
        "as_of": "2027-01-15T07:59:59.000000Z",
        "age_s": 1.0,
        "waiting_in": "all_reduce #7 on default_pg",
        "waiting_s": 12.5,
        "exit": None,
    }
    assert job["nodes"] == [
        {
            "node": "node0",
            "boot_id": "boot0",
            "session": "",
            "connected": True,
            "clock_state": "unsynchronized",
            "clock_reason": "no exchange yet",
            "clock_offset_s": 0.001,
            "clock_uncertainty_s": None,
            "clock_drift_ppm": 0.0,
            "clock_age_s": None,
            "clock_steps": 0,
            "last_message_age_s": 0.5,
            "ranks": [0, 1],
        }
    ]
    assert job["memory"] == {"ranks": 0, "recent_every_s": 0.0, "series": []}
    assert job["findings"] == [shown_json(finding(2)), shown_json(finding(1))]
    newest = client.get("/api/v1/jobs/train").json
    assert (newest["attempt"], newest["findings"]) == (1, [])


def test_memory_of_the_ranks_asked_for(client: Client) -> None:
    """The worst few by default, `memory=all`, or ranks; an unknown rank is an error."""
    series = [SeriesInfo(rank, SeriesKind.HOST_USED) for rank in range(12)]
    used, recent = np.full(12, 1 << 30, np.int64), np.full((12, 4), 1 << 30, np.int64)
    memory = MemoryView(series, used, 2 * used, recent, 2.0)
    view = dataclasses.replace(job_view("train", world_size=12), memory=memory)
    client.service.state = ServiceState(StatusView(NOW, [view], []))
    for query, count in (("", 6), ("memory=all", 12), ("memory=3-9", 7)):
        job = client.get("/api/v1/jobs/train", query).json
        assert len(job["memory"]["series"]) == count, query
    assert client.get("/api/v1/jobs/train", "memory=12").status == 400
    assert client.get("/api/v1/jobs/train", "memory=x").status == 400


def test_history(client: Client) -> None:
    """All stored findings come page by page, oldest first, and each of them once."""

    def pages(query: str) -> list[list[str]]:
        found, after = [], ""
        while after is not None:
            page = client.get("/api/v1/history", f"{query}&after={after}" if after else query).json
            found.append([finding["id"] for finding in page["findings"]])
            after = page["next"]
        return found

    first, second, third = (finding(number).id for number in (1, 2, 3))
    assert pages("") == [[first, second, third]]
    assert pages("limit=2") == [[first, second], [third]]
    assert pages("limit=3") == [[first, second, third], []]
    assert pages("job=other") == [[]]
    at = utc_text(finding(2).opened_at)
    assert pages(f"since={at}") == [[second, third]]
    assert pages(f"until={at}") == [[first]]


def test_what_is_watched(client: Client) -> None:
    """Jobs and findings carry the version of their form and what is watched, of all jobs or one."""
    found = client.get("/api/v1/findings").json
    assert found["api_version"] == 1
    assert found["watching"] == {
        "jobs": 4,
        "ranks": 8,
        "agents": 1,
        "last_heard_s": 0.5,
        "blind": [],
    }
    assert client.get("/api/v1/jobs").json["watching"] == found["watching"]
    assert client.get("/api/v1/findings", "job=train").json["watching"]["ranks"] == 2
    client.service.now = AlignedNs(NOW + 6 * SECOND)
    (reason,) = client.get("/api/v1/jobs").json["watching"]["blind"]
    assert "the last evaluation is stale" in reason


KINDS = {1: Kind.STALL, 2: Kind.OOM, 3: Kind.STALL, 4: Kind.STRAGGLER}


def opened(number: int) -> str:
    return utc_text(AlignedNs(NOW + number * SECOND))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("", [4, 3, 2, 1]),
        ("state=open", [2, 1]),
        ("state=closed", [4, 3]),
        ("job=train&limit=1", [4]),
        ("job=other", []),
        (f"since={opened(9)}", [4, 3, 2, 1]),  # when 3 and 4 closed
        (f"since={opened(10)}", [2, 1]),
        (f"until={opened(4)}", [3, 2, 1]),
        (f"until={opened(2)}&state=open", [1]),
        (f"until={opened(1)}", []),
        (f"until={opened(4)}&since={opened(10)}", [2, 1]),
        ("kind=stall", [3, 1]),
        ("kind=stall&state=open", [1]),
        ("kind=stall&state=closed", [3]),
        ("kind=straggler", [4]),
        ("kind=rank_lost", []),
        ("kind=stall&limit=1", [3]),
        ("kind=stall&job=other", []),
        (f"until={opened(9)}&kind=oom", [2]),
    ],
)
def test_findings(tmp_path: Path, query: str, numbers: list[int]) -> None:
    """Findings 1 and 2 are open, 3 and 4 are closed. They come newest first, of the engine and of
    the store together, by state, job and kind. `since` keeps what is open, and what closed then or
    later; `until` is the first moment of an opening that does not count."""
    found = [dataclasses.replace(finding(n), kind=kind) for n, kind in KINDS.items()]
    service = Service(tmp_path, [job_view("train")], [*found[:2], *map(closed, found[2:])])
    listed = Client(service).get("/api/v1/findings", query).json["findings"]
    service.close()
    assert [int(one["id"], 16) for one in listed] == numbers


def test_closing_by_hand(client: Client) -> None:
    """A reason is required; an unknown finding, or one that is closed already, is an error."""
    path = f"/api/v1/findings/{finding(1).id}/close"
    for body, says in (
        ({}, "because"),
        ({"because": " "}, "because: 0 char"),
        ({"because": 1}, "because"),
    ):
        answer = client.post(path, body)
        assert answer.status == 400
        assert says in answer.json["error"]
    assert client.post(path, {"because": "x" * 1001}).status == 400
    assert client.post(path, {"because": "x"}, content_type="text/plain").status == 400
    done = client.post(path, {"because": "a known\n pause"})
    assert (done.status, done.json["state"]) == (200, "closed")
    assert done.json["close_reason"] == "closed by hand: a known pause"
    again = client.post(path, {"because": "x"})
    assert (again.status, again.json["error"]) == (
        409,
        f"finding: {finding(1).id}: closed already: closed by hand: a known pause",
    )
    assert client.post("/api/v1/findings/nothing/close", {"because": "x"}).status == 404


def test_taking_and_fetching_a_dump(client: Client) -> None:
    """The newest attempt is dumped; the answer lists failed ranks, and the dump is one tar."""
    answer = client.post(
        "/api/v1/jobs/train/dumps", {"ranks": "0-1", "stacks": True, "timeout_s": 1}
    )
    assert answer.status == 201
    assert client.service.asked == [(AttemptKey("train", 1), (0, 1), True, 1.0)]
    dump = answer.json
    assert dump["answered"] == [0]
    assert dump["failed"] == {"1": "no answer within 1 s"}
    tar = client.get(f"/api/v1/dumps/{dump['id']}")
    assert (tar.status, tar.content_type) == (200, "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(tar.body)) as archive:
        assert archive.getnames() == ["summary.json", "train/rank_0"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body:"),
        (b"[]", "body:"),
        (b"\xff\xfe", "body:"),
        ({"rank": "1"}, "unknown field"),
        ({"ranks": [1]}, "ranks"),
        ({"ranks": "1-x"}, "ranks: '1-x'"),
        ({"ranks": ""}, "ranks: ''"),
        ({"ranks": "3-1"}, "upwards"),
        ({"ranks": "0-7"}, "ranks: 7: the job has ranks 0 to 1"),
        ({"ranks": ",".join(["0-999999"] * 1000)}, "more than a million"),
        ({"ranks": "1" * 5000}, "ranks"),
        ({"timeout_s": 0}, "timeout_s: 0"),
        ({"timeout_s": 1e9}, "timeout_s: 1e+09"),
    ],
)
def test_bad_dump_requests(client: Client, body: object, says: str) -> None:
    """Each bad body is a 400 that names the field, and no agent is asked."""
    answer = client.post("/api/v1/jobs/train/dumps", body)
    assert answer.status == 400
    assert says in answer.json["error"]
    assert client.service.asked == []


def test_dumps_that_are_not_taken(client: Client) -> None:
    """A request that a browser would send across sites without asking is refused, one whose body
    is beyond the limit is not even parsed; and no agent of a job is connected."""
    path = "/api/v1/jobs/train/dumps"
    assert client.post(path, {}, content_type="text/plain").status == 400
    assert client.post(path, b" " * 100_000).status == 413
    assert client.service.asked == []
    answer = client.post("/api/v1/jobs/gone/dumps", {})
    assert answer.status == 503
    assert "none of job 'gone' is connected" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/nothing", "", 404),
        ("/api/v1/nothing", "", 404),
        ("/api/v1/jobs/unknown", "", 404),
        ("/api/v1/findings/unknown", "", 404),
        ("/api/v1/findings/../../etc/passwd", "", 404),
        ("/api/v1/dumps/unknown", "", 404),
        ("/api/v1/dumps/../findings.sqlite", "", 404),
        ("/api/v1/jobs/train", "attempt=x", 400),
        ("/api/v1/findings", "state=ajar", 400),
        ("/api/v1/findings", "limit=0", 400),
        ("/api/v1/findings", "limit=-1", 400),
        ("/api/v1/history", "limit=0", 400),
        ("/api/v1/history", "after=yesterday", 400),
        ("/api/v1/history", "after=99999999999999999999999.x", 400),
        ("/api/v1/history", f"after={'0' * 20}{'9' * 20}.x", 400),
        ("/api/v1/history", f"after={'0' * 5000}.x", 400),
        ("/api/v1/history", "since=soon", 400),
        ("/api/v1/findings", "since=soon", 400),
        ("/api/v1/history", "until=9999-12-31T23:59:59-23:59", 400),
        ("/api/v1/findings", "limit=9999999999999999999999", 400),
        ("/api/v1/findings", "kind=stalls", 400),
        ("/api/v1/findings", "kind=", 400),
        ("/api/v1/findings", "kind=STALL", 400),
        ("/api/v1/findings", "until=soon", 400),
        ("/api/v1/findings", "until=", 400),
    ],
)
def test_errors_are_json(client: Client, path: str, query: str, status: int) -> None:
    """Unknown paths, ids and parameters are JSON errors of one line, which begins with the name of
    the parameter. A kind that is misspelt is not one without findings."""
    answer = client.get(path, query)
    assert answer.status == status
    assert answer.json.keys() == {"error"}
    assert "\n" not in answer.json["error"]
    assert answer.json["error"].startswith(query.partition("=")[0])


def test_damaged_store(client: Client) -> None:
    """A store that fails is a 503 with the store's error."""
    client.service.store.close()
    answer = client.get("/api/v1/findings")
    assert answer.status == 503
    assert "findings database" in answer.json["error"]


def test_utc_is_ahead_of_the_time_of_the_engine(client: Client) -> None:
    """The service's wall clock was set: shown times follow, and ages stay as they are."""

    def answers() -> list[dict[str, Any]]:
        asked = (
            ("jobs/train", ""),
            ("jobs/train", "view=rank&rank=0"),
            ("jobs", ""),
            ("findings", ""),
        )
        return [client.get(f"/api/v1/{path}", query).json for path, query in asked]

    before, hour = answers(), 3600 * SECOND
    view = dataclasses.replace(client.service.state.status_view, utc_ahead_ns=hour)
    client.service.state = dataclasses.replace(client.service.state, status_view=view)
    after = answers()
    assert [one["at"] for one in after] == [utc_text(NOW + hour)] * 4
    for one, other in zip(before[0]["ranks"], after[0]["ranks"], strict=True):
        moved = one["as_of"] and utc_text(utc_ns(one["as_of"]) + hour)
        assert other == {**one, "as_of": moved}
    assert any(one["as_of"] for one in before[0]["ranks"])
    assert after[1]["rank"]["as_of"] == after[0]["ranks"][0]["as_of"]
    assert after[3]["findings"] == before[3]["findings"], "theirs are UTC already"
    stamp = "frd_last_evaluation_timestamp_seconds"
    families = text_string_to_metric_families(client.get("/metrics").body.decode())
    (sample,) = next(family.samples for family in families if family.name == stamp)
    assert sample.value == (NOW + hour) / SECOND


def test_a_finding_leads_to_the_form_of_alertmanager(client: Client) -> None:
    """If its address is configured."""
    path = f"/api/v1/findings/{finding(1).id}"
    assert "silence_url" not in client.get(path).json
    web = WebOptions(alertmanager_url="https://alerts.example/am")
    form = "https://alerts.example/am/#/silences/new?filter=%7Bfinding%3D%220000000000000001%22%7D"
    assert Client(client.service, web).get(path).json["silence_url"] == form


def test_a_finding_as_markdown(client: Client) -> None:
    """With the address of its page, as people open it, unless the page is switched off."""
    path = f"/api/v1/findings/{finding(1).id}"
    url = "https://frd.example"

    def text(web: WebOptions) -> str:
        answer = Client(client.service, web).get(path, "format=markdown")
        assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
        return answer.body.decode()

    shown = client.get(path, "format=json").json
    assert text(WebOptions(public_url=url)) == report(shown, f"{url}/findings/{finding(1).id}")
    assert text(WebOptions(has_page=False)) == report(shown, "")
    assert "://" in text(WebOptions())
    assert client.get(path, "format=html").status == 400


def test_closing_by_hand_hides_nothing(client: Client) -> None:
    """The only stall of a job was closed by hand and goes on: the job is still stalled, lists of
    open findings have it, and no series that alerts are made of does."""
    known = closed(dataclasses.replace(finding(1), attempt=1))
    going_on = dataclasses.replace(known, close_reason="closed by hand: x", goes_on=True)
    state = client.service.state
    view = dataclasses.replace(state.status_view, findings=[going_on], going_on=[going_on])
    client.service.state = dataclasses.replace(state, status_view=view)
    client.service.store.save([FindingEvent(Change.CLOSED, going_on)])
    (line,) = [one for one in client.get("/api/v1/jobs").json["jobs"] if one["job"] == "train"]
    assert (line["state"], line["open_findings"]) == ("stalled", 0)
    assert line["findings_closed_by_hand"] == 1
    job = client.get("/api/v1/jobs/train").json
    listed = client.get("/api/v1/findings", "state=open").json["findings"]
    assert (job["state"], job["findings"], listed) == ("stalled", listed, [shown_json(going_on)])
    recent = client.get("/api/v1/findings", "since=2099-01-01T00:00:00Z").json["findings"]
    assert [one["id"] for one in recent if one.get("goes_on")] == [going_on.id]
    one = client.get(f"/api/v1/findings/{going_on.id}").json
    assert (one["state"], one["goes_on"]) == ("closed", True)
    samples = {
        (sample.name, sample.labels.get("kind")): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").body.decode())
        for sample in family.samples
        if sample.labels.get("job") == "train"
    }
    assert samples["frd_findings_closed_by_hand", "stall"] == 1
    assert samples["frd_findings_open", "stall"] == 0
    assert ("frd_finding_critical", "stall") not in samples
    assert ("frd_suspect", "stall") not in samples
