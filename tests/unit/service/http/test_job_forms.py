"""The summary of a job, whose size does not grow with the job, its map, and one of its ranks."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frd.cli.screens.job_tables import sparkline
from frd.do_now import shown_json
from frd.engine.history.group_map import group_map
from frd.engine.state.snapshot_parts import StateAt
from frd.engine.views import CELL_STATES, GroupMap, Histogram, MemoryView
from frd.forms import bytes_text, utc_text
from frd.model import AlignedNs, AttemptKey, RankState, SeriesInfo, SeriesKind
from frd.service.http.json_api import MAX_WORST, memory_json
from frd.service.state import ServiceState
from tests.world.hang_api import PATH, HangApi, hang_api
from tests.world.http_api import Client, Service, finding, job_view
from tests.world.job import Job
from tests.world.views import NOW, SECOND, attempt_view, group_view, node_view, rank_view, rise


@pytest.fixture
def client(tmp_path: Path) -> Iterator[HangApi]:
    with hang_api(tmp_path) as made:
        yield made


# -- the summary -------------------------------------------------------------------------------


def test_a_summary_of_a_hang(client: HangApi) -> None:
    """Counts, the wait with its ranks, the suspect first, nodes, and the finding."""
    found = client.get(PATH, "view=summary").json
    assert (found["job"], found["attempt"], found["world_size"]) == ("job", 0, 4)
    assert (found["state"], found["ended"], found["gap_entries"]) == ("stalled", False, 0)
    assert found["pace"] == {"per_s": 2.0, "every_s": 5.0, "recent": [None, 2.0]}
    assert found["ranks"] == {"live": 2, "unwatched": 2}
    (wait,) = found["waits"]
    waited = wait.pop("waiting_s")
    assert wait == {
        "group_id": client.job.groups["dp"].group_id,
        "group": "dp",
        "seq": 1,
        "op": "all_reduce",
        "since": wait["since"],
        "stalled": True,
        "waiting": "0-1,3",
        "waiting_count": 3,
        "missing": "2",
        "missing_count": 1,
        "unknown": "",
        "unknown_count": 0,
    }
    assert waited == pytest.approx(8)
    assert [one["rank"] for one in found["notable_ranks"]] == [2, 3, 0, 1]
    assert [(one["group"], one["stalled"]) for one in found["groups"]] == [("dp", 1), ("tp", 0)]
    assert found["node_counts"] == {
        "connected": 1, "silent": 1, "gone": 0, "unsynchronized": 2,
    }  # fmt: skip
    assert [(one["node"], one["reporting"]) for one in found["nodes"]] == [
        ("node1", False),
        ("node0", True),
    ]
    assert (found["more_waits"], found["more_groups"], found["more_nodes"]) == (0, 0, 0)
    assert found["map"] == client.get(PATH, "view=map").json["map"]


def test_a_summary_of_a_large_job(client: HangApi) -> None:
    """Three hundred ranks, groups and nodes, of which many are in trouble: the worst 64 of each."""
    states = [RankState.LIVE] * 100 + [RankState.EXITED] * 200
    ranks = [rank_view(rank, state, world=300) for rank, state in enumerate(states)]
    groups = [group_view(f"g{n}", stall_s=float(n % 3), open_collectives=n) for n in range(300)]
    view = attempt_view(ranks, groups=groups, key=AttemptKey("job", 0))
    nodes = [
        node_view(f"n{n:03}", {view.key: (n,)}, connected=n != 7, reporting=n != 9)
        for n in range(300)
    ]
    state = client.service.state
    status_view = dataclasses.replace(state.status_view, attempts=[view], findings=[])
    client.service.state = ServiceState(status_view, nodes)
    found = client.get(PATH, "view=summary").json
    assert [one["rank"] for one in found["notable_ranks"]] == [*range(100, 164)]
    assert [one["group"] for one in found["groups"][:2]] == ["g299", "g298"]
    assert (len(found["groups"]), found["more_groups"]) == (64, 236)
    assert [one["node"] for one in found["nodes"][:3]] == ["n007", "n009", "n000"]
    assert (len(found["nodes"]), found["more_nodes"]) == (50, 250)
    assert found["node_counts"] == {
        "connected": 298, "silent": 1, "gone": 1, "unsynchronized": 299,
    }  # fmt: skip
    assert (found["waits"], found["map"]) == ([], client.get(PATH, "view=map").json["map"])


def test_quantiles_of_ops(client: HangApi) -> None:
    """The bound of the bucket in which each quantile falls; null beyond the last bucket, and for
    what has no values."""
    (view,) = client.service.state.status_view.attempts
    skew = {
        "all_reduce": Histogram((0.1, 1.0, 10.0), (90, 9, 0, 1), 0.0),
        "barrier": Histogram((0.1, 1.0, 10.0), (0, 0, 0, 0), 0.0),
    }
    duration = {"reduce": Histogram((0.1, 1.0), (0, 1, 1), 0.0)}
    view = dataclasses.replace(view, skew=skew, duration=duration)
    state = client.service.state
    status_view = dataclasses.replace(state.status_view, attempts=[view])
    client.service.state = dataclasses.replace(state, status_view=status_view)
    ops = {one["op"]: one for one in client.get(PATH, "view=summary").json["ops"]}
    assert ops["all_reduce"]["skew"] == {"count": 100, "p50_s": 0.1, "p90_s": 0.1, "p99_s": 1.0}
    assert ops["all_reduce"]["duration"] is ops["barrier"]["skew"] is None
    assert ops["reduce"]["duration"] == {"count": 2, "p50_s": 1.0, "p90_s": None, "p99_s": None}


@pytest.mark.parametrize(
    ("states", "watched", "ended", "word"),
    [
        ("live live", True, False, "running"),
        ("live live", False, False, "unwatched"),
        ("live finished", True, False, "running"),
        ("finished finished", True, True, "ended"),
        ("exited finished", False, True, "ended"),
    ],
)
def test_the_state_of_a_job(
    client: HangApi, states: str, watched: bool, ended: bool, word: str
) -> None:
    """It runs, no agent reports it, or it has ended; the list of jobs says the same."""
    ranks = [rank_view(rank, RankState(name)) for rank, name in enumerate(states.split())]
    view = attempt_view(ranks, key=AttemptKey("job", 0), ended=ended)
    node = node_view("n", {view.key: (0, 1)}, reporting=watched)
    state = client.service.state
    status_view = dataclasses.replace(state.status_view, attempts=[view], findings=[])
    client.service.state = ServiceState(status_view, [node])
    assert client.get(PATH, "view=summary").json["state"] == word
    assert client.get("/api/v1/jobs").json["jobs"][0]["state"] == word


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

    def counted(at: StateAt, late_s: float, world_size: int, most: int) -> GroupMap:
        made.append(most)
        return group_map(at, late_s, world_size, most)

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
    assert found["findings"] == [shown_json(client.job.only())]
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


# -- which memory series people see, and how they are drawn ----------------------------------------


GIB = 1 << 30


def memory(*series: tuple[SeriesInfo, int, list[int]]) -> MemoryView:
    """Each with its capacity and recent values in GiB, the last of which is the newest."""
    recent = np.array([[v * GIB if v >= 0 else -1 for v in r] for _, _, r in series], np.int64)
    capacity = np.array([c * GIB for _, c, _ in series], np.int64)
    return MemoryView([info for info, _, _ in series], recent[:, -1], capacity, recent, 2.0)


def test_the_worst_are_one_series_a_rank_and_few() -> None:
    """Ten ranks with two series each: the fullest series of the fullest ranks are listed."""
    view = memory(
        *(
            (SeriesInfo(rank, kind, "GPU-1"), 80, [used, used])
            for rank in range(10)
            for kind, used in (
                (SeriesKind.DEVICE_USED, 30 + rank),
                (SeriesKind.TORCH_RESERVED, 20 + rank),
            )
        )
    )
    listed = memory_json(view, None)
    assert listed["ranks"] == 10
    assert [(row["rank"], row["kind"]) for row in listed["series"]] == [
        (rank, "device_used") for rank in range(9, 9 - MAX_WORST, -1)
    ]


def test_a_rank_that_rises_is_worse_than_one_that_is_full_and_still() -> None:
    """60 of 80 GiB and standing against 30 GiB that were 2 a moment ago."""
    view = memory(
        (SeriesInfo(0, SeriesKind.DEVICE_USED), 80, [-1, 57, 57]),
        (SeriesInfo(1, SeriesKind.DEVICE_USED), 80, [-1, 2, 30]),
        (SeriesInfo(2, SeriesKind.DEVICE_USED), 0, [-1, 2, 70]),
    )
    assert [row["rank"] for row in memory_json(view, None)["series"]] == [1, 0, 2]


def test_what_the_ranks_of_a_node_share_orders_no_ranks() -> None:
    """The cgroup of two ranks is fuller than either: their own memory orders them."""
    view = memory(
        (SeriesInfo(0, SeriesKind.CGROUP_USED), 32, [30, 31]),
        (SeriesInfo(0, SeriesKind.HOST_USED), 32, [4, 4]),
        (SeriesInfo(1, SeriesKind.CGROUP_USED), 32, [30, 31]),
        (SeriesInfo(1, SeriesKind.HOST_USED), 32, [25, 26]),
        (SeriesInfo(2, SeriesKind.CGROUP_USED), 32, [30, 31]),
    )
    listed = memory_json(view, None)["series"]
    assert [(row["rank"], row["kind"]) for row in listed] == [
        (1, "host_used"),
        (0, "host_used"),
        (2, "cgroup_used"),
    ]


def test_ranks_asked_for_come_with_all_they_have() -> None:
    """All series of rank 1, in the order of the view; what is unknown is null."""
    view = memory(
        (SeriesInfo(0, SeriesKind.HOST_USED), 8, [1, 1]),
        (SeriesInfo(1, SeriesKind.DEVICE_USED, "GPU-1"), 80, [7, 8]),
        (SeriesInfo(1, SeriesKind.HOST_USED), 0, [-1, -1]),
    )
    listed = memory_json(view, {1})
    assert listed["ranks"] == 1
    assert listed["series"] == [
        {
            "rank": 1,
            "kind": "device_used",
            "device": "GPU-1",
            "used_bytes": 8 * GIB,
            "capacity_bytes": 80 * GIB,
            "recent_bytes": [7 * GIB, 8 * GIB],
        },
        {
            "rank": 1,
            "kind": "host_used",
            "device": "",
            "used_bytes": None,
            "capacity_bytes": None,
            "recent_bytes": [None, None],
        },
    ]


def test_every_rise_is_in_both_forms_of_a_job(tmp_path: Path) -> None:
    """By onset, in UTC, each suspect with its node; the summary folds sets of ranks."""
    rises = [rise(1, alarming=True), rise(ranks=(0, 1, 2), common_cause=True)]
    job = replace(job_view("train", world_size=3), memory=MemoryView(rises=rises))
    service = Service(tmp_path, [job])
    service.state = replace(
        service.state, status_view=replace(service.state.status_view, utc_ahead_ns=SECOND)
    )
    client = Client(service)
    found, together = client.get("/api/v1/jobs/train").json["rises"]
    assert found["suspects"] == [{"rank": 1, "confidence": "high", "node": "node0"}]
    assert found["onset"]["earliest"] == utc_text(AlignedNs(NOW - SECOND))
    assert (found["bytes"], found["alarming"], found["series"]) == (GIB, True, "host_used")
    assert (together["suspects"], together["ranks"]) == ([], [0, 1, 2])
    folded = client.get("/api/v1/jobs/train", "view=summary").json["rises"]
    assert folded == [
        {**found, "ranks": "1", "unknown": ""},
        {**together, "ranks": "0-2", "unknown": ""},
    ]
    service.close()


def test_a_sparkline_shows_a_rise_and_not_the_noise() -> None:
    """From the lowest bar to the highest; a flutter below what counts as still is level."""
    assert sparkline([0, 50, 100], still=1) == "▁▄█"
    assert sparkline([1000, 1001, 999], still=100) == "▁▁▁"
    assert sparkline([], still=1) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1 << 20, "1.0 MiB"),
        (1536 << 20, "1.5 GiB"),
        (240 << 20, "240 MiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Three digits at most, in binary units."""
    assert bytes_text(count) == text
