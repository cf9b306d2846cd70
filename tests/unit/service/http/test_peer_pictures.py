"""What the web page asks for, of any replica of a cluster: health, timelines, filters, sessions and
events."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from frd.forms import utc_text
from frd.model import AlignedNs, Kind
from frd.service.http.peers.relay import FORWARDED
from frd.v1 import perfetto_pb2 as pb
from tests.world.http_api import closed, finding
from tests.world.http_cluster import Cluster, Script, cluster, job_of
from tests.world.timelines import bar, timeline
from tests.world.views import NOW, SECOND

OPERATOR, READER = "o" * 32, "r" * 32
A, B, C = job_of(3), job_of(30), job_of(50)
"""Jobs of frd-0, frd-1 and frd-2."""
OPEN_A, OPEN_B = finding(1, A), dataclasses.replace(finding(2, B), kind=Kind.OOM)
CLOSED_C = closed(finding(3, C))
SCRIPTS = {
    "frd-0": Script([A], [OPEN_A], [OPEN_B, CLOSED_C]),
    "frd-1": Script([B], [OPEN_B], [OPEN_A, CLOSED_C]),
    "frd-2": Script([C], [CLOSED_C], [OPEN_A, OPEN_B]),
}
TIMELINE = f"/api/v1/findings/{CLOSED_C.id}/timeline"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, SCRIPTS) as made:
        yield made


def asked(three: Cluster, name: str) -> list[str]:
    return [target for _, target, _ in three.members[name].asked]


# -- health ------------------------------------------------------------------------------------


def test_health_is_that_of_all_replicas(three: Cluster) -> None:
    """Whichever is asked, it comes first, and the nodes are those of all."""
    for name, order in (("frd-0", [0, 1, 2]), ("frd-1", [1, 0, 2])):
        found = three.ask(name, "/api/v1/health").json
        assert [one["replica"] for one in found["services"]] == [f"frd-{n}" for n in order]
        assert found["node_counts"]["connected"] == len(found["nodes"]) == 1
        assert found["incomplete"] == []


def test_health_without_a_replica(three: Cluster) -> None:
    """frd-1 has just died: the answer says that it is missing, and has the others."""
    three.stop("frd-1")
    found = three.ask("frd-0", "/api/v1/health").json
    assert [one["replica"] for one in found["services"]] == ["frd-0", "frd-2"]
    assert found["incomplete"] == ["frd-1"]


# -- timelines ---------------------------------------------------------------------------------


def keep(three: Cluster, name: str, ranks: int) -> None:
    """This replica has stored the timeline of the closed finding."""
    stored = timeline(9, *(bar(rank, 6, 1, 2) for rank in range(ranks)))
    three.members[name].service.timelines.save(CLOSED_C.id, NOW, stored.encode(), is_final=True)


def test_the_timeline_of_a_closed_finding_is_where_it_was_stored(three: Cluster) -> None:
    """frd-2 had the job; frd-0 and frd-1 have the finding and no timeline of it: they relay that of
    frd-2, with the ranks and the form that are asked for."""
    keep(three, "frd-2", 40)
    direct = three.ask("frd-2", f"{TIMELINE}?ranks=1-2")
    assert direct.json["ranks"] == "1-2"
    assert asked(three, "frd-0") == asked(three, "frd-1") == []
    for name in ("frd-0", "frd-1"):
        assert three.ask(name, f"{TIMELINE}?ranks=1-2").json == direct.json
    answer = three.ask("frd-0", f"{TIMELINE}?format=perfetto")
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    names = [one.track_descriptor.name for one in pb.Trace.FromString(answer.body).packet]
    assert "rank 3 on node3" in names
    packed = three.ask("frd-0", TIMELINE, headers={"Accept-Encoding": "gzip"})
    assert packed.headers.get("content-encoding") == "gzip"


def test_a_timeline_that_is_here_asks_no_replica(three: Cluster) -> None:
    """frd-0 took the job over before the finding closed, and has stored its own."""
    keep(three, "frd-0", 2)
    keep(three, "frd-2", 4)
    assert three.ask("frd-0", TIMELINE).json["ranks"] == "0-1"
    assert asked(three, "frd-1") == asked(three, "frd-2") == []


def test_a_timeline_that_no_replica_has(three: Cluster) -> None:
    """It was closed before this release, or its replica is gone: the own answer says that nothing
    is known. A replica that is asked by another one says 404, so that it is not taken for one that
    has it."""
    for stopped in (None, "frd-2"):
        if stopped is not None:
            three.stop(stopped)
        answer = three.ask("frd-0", TIMELINE)
        assert (answer.status, bool(answer.json["empty"])) == (200, True)
    forwarded = three.ask("frd-1", TIMELINE, headers={FORWARDED: "frd-0"})
    assert (forwarded.status, "not kept here" in forwarded.json["error"]) == (404, True)


def test_the_timeline_of_an_open_finding_is_that_of_its_owner(three: Cluster) -> None:
    """frd-0 has a copy of the finding: frd-1 answers, which has what its ranks do now."""
    stored = timeline(9, bar(5, 6, 1, 2)).encode()
    three.members["frd-1"].service.timelines.save(OPEN_B.id, NOW, stored)
    path = f"/api/v1/findings/{OPEN_B.id}/timeline"
    assert three.ask("frd-0", path).json["ranks"] == "5"
    unknown = three.ask("frd-0", "/api/v1/findings/ffff/timeline")
    assert (unknown.status, "unknown here" in unknown.json["error"]) == (404, True)
    bad = three.ask("frd-0", f"{path}?ranks=x")
    assert (bad.status, bad.json["error"].partition(":")[0]) == (400, "ranks")
    three.stop("frd-1")
    assert three.ask("frd-0", path).status == 503


# -- jobs and findings -------------------------------------------------------------------------


def test_forms_of_a_job_come_from_its_owner(three: Cluster) -> None:
    """Summary and map of a job of frd-2, asked of frd-0; a map that has not changed is 304 there,
    too."""
    path = f"/api/v1/jobs/{quote(C, safe='')}"
    assert three.ask("frd-0", f"{path}?view=summary").json["job"] == C
    first = three.ask("frd-0", f"{path}?view=map")
    again = three.ask("frd-0", f"{path}?view=map", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status, again.status, again.body) == (200, 304, b"")
    assert three.ask("frd-0", f"{path}?view=rank&rank=9").status == 404


def ids(three: Cluster, query: str) -> list[int]:
    found = three.ask("frd-0", f"/api/v1/findings?{query}").json["findings"]
    return [int(one["id"], 16) for one in found]


def test_filters_are_those_of_all_replicas(three: Cluster) -> None:
    """Kind and time go to the others, and hold for what they answer."""
    until = quote(utc_text(AlignedNs(NOW + 2 * SECOND)))
    assert ids(three, "kind=oom") == [2]
    assert ids(three, "kind=stall") == [3, 1]
    assert ids(three, f"until={until}") == [1]
    assert ids(three, f"kind=oom&until={until}") == []
    assert f"/api/v1/findings?state=open&limit=10000&kind=oom&until={until}" in [
        target.replace("2027-01-15T08%3A00%3A02.000000Z", until) for target in asked(three, "frd-1")
    ]


def test_filters_hold_for_copies(three: Cluster) -> None:
    """frd-1 has just died: the copy of its finding is shown if it is of the kind and the time."""
    three.stop("frd-1")
    until = quote(utc_text(AlignedNs(NOW + 2 * SECOND)))
    assert ids(three, "kind=oom") == [2]
    assert ids(three, "kind=stall") == [3, 1]
    assert ids(three, f"until={until}") == [1]
