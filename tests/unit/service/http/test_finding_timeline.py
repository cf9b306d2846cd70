"""The timeline of a finding by HTTP: as JSON or as a file, while it is open and afterwards."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.model import AlignedNs, Change, Finding, FindingEvent
from frd.service.state import ServiceState
from frd.v1 import perfetto_pb2 as pb
from tests.world import timelines
from tests.world.http_api import Client, Service, closed, finding, job_view
from tests.world.job import Job, hanging
from tests.world.timelines import bar, gap, timeline


@pytest.fixture(scope="module")
def job() -> Job:
    return hanging(8)


@pytest.fixture
def client(tmp_path: Path, job: Job) -> Iterator[Client]:
    """The service watches a job of which rank 2 hangs."""
    service = Service(tmp_path, [], job.open())
    service.state = ServiceState(job.engine.status_view(job.now), [])
    yield Client(service)
    service.close()


def path(of: Finding) -> str:
    return f"/api/v1/findings/{of.id}/timeline"


def store(client: Client, one: Finding) -> Finding:
    client.service.store.save([FindingEvent(Change.OPENED, one)])
    return one


def keep(client: Client, one: Finding, ranks: int) -> None:
    """A timeline is stored: each rank has an op, and the last one is missing in the next."""
    bars = [bar(rank, 6, 1, 2) for rank in range(ranks)]
    stored = timeline(9, *bars, gap(ranks - 1, 7, 5))
    client.service.timelines.save(one.id, one.opened_at, stored.encode())


def test_an_open_finding(client: Client, job: Job) -> None:
    """As of now, with the version of the form; compressed for a client that unpacks."""
    answer = client.get(path(job.only()))
    found = answer.json
    assert (answer.status, found["api_version"], found["id"]) == (200, 1, job.only().id)
    assert [(one["rank"], one["role"]) for one in found["lanes"]] == [
        (2, "suspect"),
        (0, "waiting"),
        (1, "waiting"),
        (3, "waiting"),
    ]
    assert [found["lanes"][place]["rank"] for place in found["missing"]["lane"]] == [2]
    packed = client.get(path(job.only()), accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.body)) == found


def test_ranks_that_are_asked_for(client: Client, job: Job) -> None:
    """Just these, suspects first; one that the job does not have is left out."""
    found = client.get(path(job.only()), "ranks=0,2,200").json
    assert (found["ranks"], found["all_ranks"]) == ("0,2", 4)
    assert [one["rank"] for one in found["lanes"]] == [2, 0]


def test_a_closed_finding(client: Client) -> None:
    """What was stored, of the ranks that matter most, whatever its job does now."""
    done = store(client, closed(timelines.finding(31, missing=(31,), waiting=range(31))))
    keep(client, done, 32)
    found = client.get(path(done)).json
    assert 31 in [one["rank"] for one in found["lanes"]]
    assert (len(found["lanes"]), found["all_ranks"]) == (16, 32)
    assert found["missing"]["until_s"] != [None]
    assert client.get(path(done), "ranks=3-4").json["ranks"] == "3-4"
    assert client.get(path(done), "ranks=0-255").json["ranks"] == "0-31"


def test_a_closed_finding_of_which_nothing_is_stored(client: Client) -> None:
    """It says so, and is no error: the finding exists."""
    done = store(client, closed(finding(3)))
    found = client.get(path(done)).json
    assert (found["lanes"], found["bars"]["lane"]) == ([], [])
    assert found["empty"].startswith("No ops of these ranks are known.")


def test_a_finding_of_a_job_that_is_gone(client: Client) -> None:
    """It is open, and the engine has forgotten its attempt: what was stored is shown."""
    other = finding(7, "other")
    store(client, other)
    state = client.service.state
    status_view = dataclasses.replace(state.status_view, findings=[other])
    client.service.state = dataclasses.replace(state, status_view=status_view)
    assert client.get(path(other)).json["empty"]
    keep(client, other, 2)
    later = dataclasses.replace(status_view, at=AlignedNs(status_view.at + 1))
    client.service.state = dataclasses.replace(state, status_view=later)
    assert client.get(path(other)).json["ranks"] == "0-1"


def test_a_view_without_a_history(tmp_path: Path) -> None:
    """It was not made by an engine: nothing to draw."""
    service = Service(tmp_path, [job_view("train")])
    found = Client(service).get(path(finding(1))).json
    assert (found["lanes"], found["all_ranks"], bool(found["empty"])) == ([], 2, True)
    service.close()


# -- as a file ---------------------------------------------------------------------------------


def test_a_file_for_perfetto(client: Client, job: Job) -> None:
    """A download whose name is that of the finding; it has a track for each rank."""
    of = job.only()
    answer = client.get(path(of), "format=perfetto")
    assert (answer.status, answer.content_type) == (200, "application/octet-stream")
    assert answer.headers["content-disposition"] == f'attachment; filename="frd-{of.id}.pftrace"'
    trace = pb.Trace.FromString(answer.body)
    names = [packet.track_descriptor.name for packet in trace.packet]
    assert "rank 2 on node1 (first cause)" in names
    assert "rank 3 on node1" in names
    few = pb.Trace.FromString(client.get(path(of), "format=perfetto&ranks=3").body)
    assert not any("rank 2 on" in packet.track_descriptor.name for packet in few.packet)


def test_a_finding_with_a_hostile_id(client: Client) -> None:
    """Its id would end the header, or name another folder: only letters and digits are left."""
    hostile = 'a"; x=/../b\r\nSet-Cookie: c=1\u2603é'
    done = store(client, dataclasses.replace(closed(finding(3)), id=hostile))
    answer = client.get(path(done), "format=perfetto")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == (
        'attachment; filename="frd-axbSetCookiec1.pftrace"'
    )
    assert "set-cookie" not in answer.headers
    assert client.get(path(done)).json["id"] == hostile


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ranks=0-256", "ranks: 257: ask for at most 256 at a time"),
        ("ranks=0-999999", "ranks: 1000000: ask for at most 256"),
        ("ranks=3-1", "ranks: '3-1': the range must run upwards"),
        ("ranks=x", "ranks: 'x'"),
        ("ranks=", "ranks: ''"),
        ("ranks=-1", "ranks: '-1'"),
        ("format=svg", "format: 'svg': write json or perfetto"),
    ],
)
def test_parameters_that_cannot_be_used(client: Client, job: Job, query: str, says: str) -> None:
    """400 that says what to write; in either form."""
    for more in ("", "&format=perfetto") if "format" not in query else ("",):
        answer = client.get(path(job.only()), query + more)
        assert (answer.status, answer.json["error"].startswith(says)) == (400, True)


@pytest.mark.parametrize("finding_id", ["unknown", "a/b", "", "\udcff", "../../etc/passwd"])
def test_a_finding_that_is_unknown(client: Client, finding_id: str) -> None:
    """404 as JSON, whatever the id looks like."""
    answer = client.get(f"/api/v1/findings/{finding_id}/timeline")
    assert answer.status == 404
    assert answer.json["error"].startswith("finding: ")


def test_a_store_that_fails(client: Client, job: Job) -> None:
    """503 with the store's error, which names the file; other answers go on."""
    client.service.timelines.close()
    answer = client.get(path(job.only()))
    assert answer.status == 503
    assert answer.json["error"].startswith(f"timelines: {client.service.timelines.path}: ")
    assert client.get(f"/api/v1/findings/{job.only().id}").status == 200
