"""The map of a job and the form of one rank, and what cannot be answered."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from frd.engine.history.copies import Copies
from frd.engine.history.group_map import group_map
from frd.engine.views import CELL_STATES, GroupMap
from frd.forms import finding_json
from frd.model import AlignedNs
from frd.service.state import ServiceState
from tests.world.hang_api import PATH, HangApi, hang_api
from tests.world.http_api import Client, Service, finding, job_view
from tests.world.job import Job
from tests.world.views import NOW, SECOND


@pytest.fixture
def client(tmp_path: Path) -> Iterator[HangApi]:
    with hang_api(tmp_path) as made:
        yield made


# -- the map -----------------------------------------------------------------------------------


def test_a_map_of_a_hang(client: HangApi) -> None:
    """A byte for each row and rank, which the list of states explains."""
    found = client.get(PATH, "view=map").json
    assert found["rows"] == [
        {"group": "dp", "groups": 1, "ranks": 4},
        {"group": "tp", "groups": 1, "ranks": 2},
    ]
    assert [one["code"] for one in found["states"]] == [*range(7)]
    assert [one["name"] for one in found["states"]] == [*CELL_STATES]
    assert all(one["text"] for one in found["states"])
    cells = np.frombuffer(base64.b64decode(found["cells"]), np.uint8)
    cells = cells.reshape(len(found["rows"]), found["world_size"])
    assert [" ".join(CELL_STATES[code] for code in row) for row in cells.tolist()] == [
        "stuck stuck missing stuck",
        "ok ok none none",
    ]
    assert found["more_rows"] == 0


def test_a_map_that_has_not_changed(client: HangApi) -> None:
    """The next publication has the same map: 304. When a rank joins, there is another one."""
    first = client.get(PATH, "view=map")
    job, tag = client.job, first.headers["etag"]
    assert tag == f'W/"{first.json["map"]}"'
    job.now = AlignedNs(job.now + SECOND)
    job.report()
    client.show(job)
    again = client.get(PATH, "view=map", if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    job.now = AlignedNs(job.now + SECOND)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    client.show(job)
    other = client.get(PATH, "view=map", if_none_match=tag)
    assert (other.status, other.headers["etag"] == tag) == (200, False)
    assert client.get(PATH, "view=summary").json["map"] == other.json["map"]


def test_a_publication_is_reduced_once(client: HangApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many viewers ask for map and summary of one publication, whose map is computed once; and once
    more for the next publication."""
    made: list[int] = []

    def counted(copies: Copies, most: int) -> GroupMap:
        made.append(most)
        return group_map(copies, most)

    monkeypatch.setattr("frd.engine.history.group_map.group_map", counted)
    answers = [client.get(PATH, f"view={form}").json for form in ("map", "summary") * 5]
    assert len(made) == 1
    assert len({answer["map"] for answer in answers}) == 1
    client.job.now = AlignedNs(client.job.now + SECOND)
    client.show(client.job)
    assert client.get(PATH, "view=map").json["at"] != answers[0]["at"]
    assert len(made) == 2


@pytest.mark.parametrize("form", ["summary", "map"])
def test_large_answers_are_packed(client: HangApi, form: str) -> None:
    """With gzip the answer is smaller, and the same; a cache keeps both apart. A small answer is
    not worth it."""
    small = client.get(PATH, "view=rank&rank=0", accept_encoding="gzip")
    assert (small.status, "content-encoding" in small.headers) == (200, False)
    for n in range(40):
        client.job.group(f"g{n}", (0, 1)).all_reduce(f"g{n}", 0)
    client.show(client.job)
    plain = client.get(PATH, f"view={form}")
    packed = client.get(PATH, f"view={form}", accept_encoding="br, gzip")
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == (
        "gzip",
        "accept-encoding",
    )
    assert "content-encoding" not in plain.headers
    assert len(packed.body) < len(plain.body)
    assert json.loads(gzip.decompress(packed.body)) == plain.json


# -- one rank ----------------------------------------------------------------------------------


def test_one_rank(client: HangApi) -> None:
    """Its line, its groups with how far it and any member has come, and the findings that name
    it."""
    found = client.get(PATH, "view=rank&rank=2").json
    assert (found["rank"]["rank"], found["rank"]["node"]) == (2, "node1")
    assert found["rank"]["unwatched_since"] is not None
    assert found["groups"] == [
        {
            "group_id": client.job.groups["dp"].group_id,
            "group": "dp",
            "size": 4,
            "enqueued": 0,
            "completed": 0,
            "highest": 1,
            "state": "missing",
        }
    ]
    assert found["findings"] == [finding_json(client.job.only())]
    assert found["memory"] == {"ranks": 0, "recent_every_s": 0.0, "series": []} | {
        "recent_every_s": found["memory"]["recent_every_s"]
    }
    other = client.get(PATH, "view=rank&rank=0").json
    assert [(one["group"], one["state"]) for one in other["groups"]] == [
        ("dp", "stuck"),
        ("tp", "ok"),
    ]
    assert other["findings"] == []


def test_a_rank_in_many_groups(client: HangApi) -> None:
    """The 64 worst of a hundred groups."""
    job = client.job
    for n in range(100):
        job.group(f"g{n}", (0, 1)).all_reduce(f"g{n}", 0)
    job.join("g99", [0], 1)
    job.run(3)
    client.show(job)
    found = client.get(PATH, "view=rank&rank=0").json
    assert (len(found["groups"]), found["more_groups"]) == (64, 38)
    assert [one["group"] for one in found["groups"][:2]] == ["dp", "g99"]


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("view=everything", 400, "view: 'everything': write summary or map or rank"),
        ("view=", 400, "view: ''"),
        ("view=rank", 400, "rank: missing: write the number of a rank"),
        ("view=rank&rank=x", 400, "rank: 'x'"),
        ("view=rank&rank=-1", 400, "rank: '-1'"),
        ("view=rank&rank=4", 404, "rank: 4: unknown here: the job has ranks 0-3"),
        ("view=rank&rank=2147483648", 404, "rank: 2147483648: unknown here"),
        ("view=rank&rank=99999999999", 400, "rank: '99999999999'"),
        ("view=map&attempt=7", 404, "job: 'job' attempt 7: unknown here"),
    ],
)
def test_what_cannot_be_answered(client: HangApi, query: str, status: int, says: str) -> None:
    """An error of one line that says what to write."""
    answer = client.get(PATH, query)
    assert answer.status == status
    assert answer.json["error"].startswith(says)


def test_views_without_a_history(tmp_path: Path) -> None:
    """They were not made by an engine: forms without waits, groups and cells, and no fault."""
    service = Service(tmp_path, [job_view("job")], [finding(1, "job")])
    client = Client(service)
    assert client.get(PATH, "view=summary").json["waits"] == []
    assert client.get(PATH, "view=rank&rank=1").json["groups"] == []
    assert client.get(PATH, "view=map").json["rows"] == []
    service.close()


def test_a_job_without_ranks(client: HangApi) -> None:
    """It has just been declared: empty forms."""
    client.service.state = ServiceState(Job(0).engine.status_view(AlignedNs(NOW)), [])
    found = client.get(PATH, "view=summary").json
    assert (found["ranks"], found["notable_ranks"], found["groups"]) == ({}, [], [])
    assert client.get(PATH, "view=map").json["cells"] == ""
    assert client.get(PATH, "view=rank&rank=0").status == 404


def test_names_that_are_no_utf_8(client: HangApi) -> None:
    """The label of a group and the op are bytes of the program's: escaped JSON, not a fault."""
    job = Job(2).group("a\udcff", (0, 1))
    job.join("a\udcff", [0], 0, "b\udcff").run(3)
    client.show(job)
    assert client.get(PATH, "view=map").json["rows"][0]["group"] == "a\udcff"
    (wait,) = client.get(PATH, "view=summary").json["waits"]
    assert (wait["group"], wait["op"]) == ("a\udcff", "b\udcff")
