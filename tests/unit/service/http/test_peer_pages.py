"""What the web page asks for, of any replica of a cluster: health, timelines, filters, sessions
and events."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from frd.address import split_address
from frd.cluster.cells import CELLS
from frd.cluster.lease import ClusterView
from frd.forms import utc_text
from frd.model import AlignedNs, Change, FindingEvent
from frd.service.http.peers.client import PeerClient
from frd.service.http.peers.merging import Gathered, Heard, Jobs, decode, merge_jobs
from frd.service.http.peers.questions import FORWARDED, CutOff
from frd.service.http.web import events as module
from frd.v1 import perfetto_pb2 as pb
from tests.unit.service.http.three import (
    CLOSED_C,
    OPEN_B,
    READER,
    SCRIPTS,
    A,
    B,
    C,
    job_path,
    token_file,
)
from tests.world.http_api import closed, finding
from tests.world.http_cluster import PLAIN, Cluster, cluster, job_of
from tests.world.timelines import bar, timeline
from tests.world.views import NOW, SECOND

TIMELINE = f"/api/v1/findings/{CLOSED_C.id}/timeline"


def asked(three: Cluster, name: str) -> list[str]:
    return [target for _, target, _ in three.members[name].asked]


# -- health ------------------------------------------------------------------------------------


def test_health_is_that_of_all_replicas(fresh: Cluster) -> None:
    """Whichever is asked, it comes first, and the nodes are those of all. frd-1 dies: the answer
    says that it is missing, and has the others."""
    for name, order in (("frd-0", [0, 1, 2]), ("frd-1", [1, 0, 2])):
        found = fresh.ask(name, "/api/v1/health").json
        assert [one["replica"] for one in found["services"]] == [f"frd-{n}" for n in order]
        assert found["node_counts"]["connected"] == len(found["nodes"]) == 1
        assert found["incomplete"] == []
    fresh.stop("frd-1")
    found = fresh.ask("frd-0", "/api/v1/health").json
    assert [one["replica"] for one in found["services"]] == ["frd-0", "frd-2"]
    assert found["incomplete"] == ["frd-1"]


# -- timelines ---------------------------------------------------------------------------------


def keep(three: Cluster, name: str, ranks: int) -> None:
    """This replica has stored the timeline of the closed finding."""
    stored = timeline(9, *(bar(rank, 6, 1, 2) for rank in range(ranks)))
    three.members[name].service.timelines.save(CLOSED_C.id, NOW, stored.encode(), is_final=True)


def test_the_timeline_of_a_closed_finding_is_where_it_was_stored(fresh: Cluster) -> None:
    """frd-2 had the job; frd-0 and frd-1 have the finding and no timeline of it: they relay that of
    frd-2, with the ranks and the form that are asked for."""
    keep(fresh, "frd-2", 40)
    direct = fresh.ask("frd-2", f"{TIMELINE}?ranks=1-2")
    assert direct.json["ranks"] == "1-2"
    assert asked(fresh, "frd-0") == asked(fresh, "frd-1") == []
    for name in ("frd-0", "frd-1"):
        assert fresh.ask(name, f"{TIMELINE}?ranks=1-2").json == direct.json
    answer = fresh.ask("frd-0", f"{TIMELINE}?format=perfetto")
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    names = [one.track_descriptor.name for one in pb.Trace.FromString(answer.body).packet]
    assert "rank 3 on node3" in names
    packed = fresh.ask("frd-0", TIMELINE, headers={"Accept-Encoding": "gzip"})
    assert packed.headers.get("content-encoding") == "gzip"


def test_a_timeline_that_no_replica_has(fresh: Cluster) -> None:
    """It was closed before this release, or its replica is gone: the own answer says that nothing
    is known. A replica that is asked by another one says 404, so that it is not taken for one that
    has it."""
    for stopped in (None, "frd-2"):
        if stopped is not None:
            fresh.stop(stopped)
        answer = fresh.ask("frd-0", TIMELINE)
        assert (answer.status, bool(answer.json["empty"])) == (200, True)
    forwarded = fresh.ask("frd-1", TIMELINE, headers={FORWARDED: "frd-0"})
    assert (forwarded.status, "not kept here" in forwarded.json["error"]) == (404, True)


def test_the_timeline_of_an_open_finding_is_that_of_its_owner(fresh: Cluster) -> None:
    """frd-0 has a copy of the finding: frd-1 answers, which has what its ranks do now."""
    stored = timeline(9, bar(5, 6, 1, 2)).encode()
    fresh.members["frd-1"].service.timelines.save(OPEN_B.id, NOW, stored)
    path = f"/api/v1/findings/{OPEN_B.id}/timeline"
    assert fresh.ask("frd-0", path).json["ranks"] == "5"
    unknown = fresh.ask("frd-0", "/api/v1/findings/ffff/timeline")
    assert (unknown.status, "unknown here" in unknown.json["error"]) == (404, True)
    bad = fresh.ask("frd-0", f"{path}?ranks=x")
    assert (bad.status, bad.json["error"].partition(":")[0]) == (400, "ranks")
    fresh.stop("frd-1")
    assert fresh.ask("frd-0", path).status == 503


# -- jobs and findings -------------------------------------------------------------------------


def test_forms_of_a_job_come_from_its_owner(three: Cluster) -> None:
    """Summary and map of a job of frd-2, asked of frd-0; a map that has not changed is 304 there,
    too."""
    path = job_path(C)
    assert three.ask("frd-0", f"{path}?view=summary").json["job"] == C
    first = three.ask("frd-0", f"{path}?view=map")
    again = three.ask("frd-0", f"{path}?view=map", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status, again.status, again.body) == (200, 304, b"")
    assert three.ask("frd-0", f"{path}?view=rank&rank=9").status == 404


def ids(three: Cluster, query: str) -> list[int]:
    found = three.ask("frd-0", f"/api/v1/findings?{query}").json["findings"]
    return [int(one["id"], 16) for one in found]


def test_filters_are_those_of_all_replicas(fresh: Cluster) -> None:
    """Kind and time go to the others, and hold for what they answer. When frd-1 has died, they hold
    for the copy of its finding."""
    until = quote(utc_text(AlignedNs(NOW + 2 * SECOND)))
    for is_alive in (True, False):
        if not is_alive:
            fresh.stop("frd-1")
        assert ids(fresh, "kind=oom") == [2]
        assert ids(fresh, "kind=stall") == [3, 1]
        assert ids(fresh, f"until={until}") == [1]
        assert ids(fresh, f"kind=oom&until={until}") == []
    assert f"/api/v1/findings?state=open&limit=10000&kind=oom&until={until}" in [
        target.replace("2027-01-15T08%3A00%3A02.000000Z", until) for target in asked(fresh, "frd-1")
    ]


# -- sessions ----------------------------------------------------------------------------------


def test_a_session_holds_on_all_replicas(tmp_path: Path) -> None:
    """One signs in on frd-0. frd-1 takes the cookie; what it asks of frd-2 carries the token in the
    header that commands use, also if frd-2 should know no cookies yet."""
    with cluster(tmp_path, SCRIPTS, token_file=token_file(tmp_path)) as three:
        assert three.ask("frd-1", "/api/v1/jobs").status == 401
        answer = three.ask("frd-0", "/api/v1/session", {"token": READER})
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        path = job_path(C)
        assert three.ask("frd-1", "/api/v1/jobs", headers=cookie).json["incomplete"] == []
        assert three.ask("frd-1", "/api/v1/health", headers=cookie).json["incomplete"] == []
        assert three.ask("frd-1", path, headers=cookie).json["job"] == C
        assert len(three.members["frd-2"].asked) == 3
        for _, _, headers in three.members["frd-2"].asked:
            assert headers["authorization"] == f"Bearer {READER}"


# -- events ------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds look again immediately."""
    monkeypatch.setattr(module, "_LOOK_S", 0.02)


@contextlib.contextmanager
def following(three: Cluster, name: str, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    """The events that this replica sends."""
    connection = http.client.HTTPConnection(*split_address(three.members[name].address), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", f"/api/v1/events{query}")
        answer = connection.getresponse()

        def events() -> Iterator[tuple[str, Any]]:
            while line := answer.readline():
                event = line.decode().strip().removeprefix("event: ")
                data = answer.readline().decode().strip().removeprefix("data: ")
                answer.readline()
                yield event, json.loads(data)

        with contextlib.closing(answer):
            yield events()


def first(events: Iterator[tuple[str, Any]], name: str) -> Any:
    return next(data for event, data in events if event == name)


def test_events_are_of_all_replicas(fresh: Cluster, quick: None) -> None:
    """A stream of frd-0 about a job of frd-2 has its summary and the lists of all; about one that
    frd-2 does not know, its error; and about one whose owner is gone, why there is no answer."""
    for job in (A, C):
        with following(fresh, "frd-0", f"?job={quote(job, safe='')}") as events:
            assert first(events, "job")["job"] == job
            assert [one["job"] for one in first(events, "jobs")["jobs"]] == sorted([A, B, C])
            assert len(first(events, "health")["services"]) == 3
    for job, says in ((job_of(50, 1), "unknown here"), (B, "does not answer")):
        if job == B:
            fresh.stop("frd-1")
        with following(fresh, "frd-0", f"?job={quote(job, safe='')}") as events:
            assert says in first(events, "job")["error"]
            assert first(events, "jobs")["jobs"]


def test_findings_of_other_replicas_are_events(fresh: Cluster, quick: None) -> None:
    """One opens on frd-1 and its copy arrives in the store of frd-0; then it closes there."""
    store = fresh.members["frd-0"].service.store
    with following(fresh, "frd-0") as events:
        first(events, "jobs")
        for state, one in (("open", finding(7, B)), ("closed", closed(finding(7, B)))):
            store.save([FindingEvent(Change.UPDATED, one)])
            found = first(events, "finding")
            assert (found["id"], found["state"]) == (one.id, state)


# -- A replica that NATS does not answer asks the others for its cells, over real listeners --------


def taken_from(made: Cluster, *, connected: bool = False) -> dict[int, str]:
    """The cells that frd-0 learns to have lost, and where their agents should go. `connected`: NATS
    answers frd-0."""
    member, taken = made.members["frd-0"], dict[int, str]()
    state = member.service.state.cluster
    assert state is not None
    view = replace(state.view, connected=connected)
    client = PeerClient(PLAIN)
    cut_off = CutOff(client, lambda: view, lambda: member.cells, taken.__setitem__)
    made.run(cut_off.look())
    made.run(client.close())
    return taken


def test_a_replica_that_is_cut_off_learns_who_has_its_cells(tmp_path: Path) -> None:
    """NATS does not answer one replica, and answers the others, of which one has taken two of its
    cells over: the agents of those go there. The question needs no token, and while NATS answers
    there is none. A supervisor who asks for readiness does not learn which cells a replica has."""
    with cluster(tmp_path, {}, token_file=token_file(tmp_path)) as made:
        assert taken_from(made) == {}
        other = made.members["frd-1"]
        other.cells |= {3, 7}
        other.asked.clear()
        assert taken_from(made, connected=True) == {}
        assert not other.asked
        assert taken_from(made) == {3: "frd-1:9373", 7: "frd-1:9373"}
        assert "frd-cells" not in made.ask("frd-1", "/-/ready").headers


def test_all_keep_what_they_have_while_nats_answers_none(tmp_path: Path) -> None:
    """NATS answers no replica, and two of them have one cell: the older owner cannot know which it
    is, and keeps it. A replica that does not answer at all changes nothing."""
    with cluster(tmp_path, {}) as made:
        made.members["frd-1"].cells |= {3}
        made.show(made.urls(), connected=False)
        made.stop("frd-2")
        assert taken_from(made) == {}
        asked = [(method, target) for method, target, _ in made.members["frd-1"].asked]
        assert asked == [("GET", "/-/ready")]


# -- one answer of several: pure functions over JSON -----------------------------------------------


VIEW = ClusterView("frd-0", owners=dict.fromkeys(range(CELLS), "frd-0"))


def line(job: str, attempt: int = 0, **others: Any) -> dict[str, Any]:
    return {"job": job, "attempt": attempt, **others}


def said(*lines: Any, at: str = "2026-11-25T00:00:00.000000Z", **watching: Any) -> dict[str, Any]:
    known = {"jobs": 0, "ranks": 0, "agents": 0, "last_heard_s": None, "blind": [], **watching}
    return {"at": at, "jobs": list(lines), "watching": known, "warnings": [], "ended": []}


def merged(first: dict[str, Any], *others: dict[str, Any], view: ClusterView = VIEW) -> Any:
    return merge_jobs(Gathered(Heard(first), [Heard(one) for one in others], view=view))


def test_the_order_of_answers_does_not_matter() -> None:
    """Any replica may merge, and any may answer first: the list is the same. Of a job that has just
    moved, the newer attempt is shown."""
    answers = [
        said(line("b"), line("c", 1), agents=2, ranks=3, last_heard_s=2.0, blind=["x"]),
        said(line("a"), at="2026-11-25T00:00:01.000000Z", agents=1, last_heard_s=0.5),
        said(line("c", 2), blind=["x"]),
    ]
    (one, *others) = [merged(*order) for order in permutations(answers)]
    assert all(other == one for other in others)
    assert [(found["job"], found["attempt"]) for found in one["jobs"]] == [
        ("a", 0),
        ("b", 0),
        ("c", 2),
    ]
    assert one["at"] == "2026-11-25T00:00:01.000000Z"
    assert one["watching"] == {
        "jobs": 0,
        "ranks": 3,
        "agents": 3,
        "last_heard_s": 0.5,
        "blind": ["x"],
    }


def test_what_ended_is_that_of_all() -> None:
    """A failed job is known to one replica, a closed finding to all: each is there once, the newest
    first."""
    failed = {"job": "a", "at": "2026-11-25T00:00:02Z", "kind": "failed", "text": "killed"}
    closed = {"job": "b", "at": "2026-11-25T00:00:01Z", "kind": "stall", "text": "stuck"}
    answers = [said() | {"ended": [closed]}, said() | {"ended": [failed, closed]}, said()]
    for order in permutations(answers):
        assert merged(*order)["ended"] == [failed, closed]
    with pytest.raises(ValueError, match="ended"):
        decode(json.dumps(said() | {"ended": [{"job": "a"}]}).encode(), Jobs)


def test_keys_of_a_newer_release_stay() -> None:
    """During an upgrade, a replica says more than this one knows."""
    answer = merged(said(), said(line("a", colour="red")))
    assert answer["jobs"] == [line("a", colour="red")]


def test_a_name_that_is_not_utf_8_arrives() -> None:
    """JSON has it as an escaped surrogate, which a strict parser refuses."""
    watching = b'{"jobs": 0, "ranks": 0, "agents": 0, "last_heard_s": null, "blind": []}'
    body = (
        b'{"at": "", "jobs": [{"job": "a\\udc80", "attempt": 0}], "warnings": [], "watching": '
        + watching
        + b', "ended": []}'
    )
    assert decode(body, Jobs)["jobs"] == [line("a\udc80")]
