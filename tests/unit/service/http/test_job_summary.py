"""The summary of a job, whose size does not grow with the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.engine.views import Histogram
from frd.model import AttemptKey, RankState
from frd.service.state import ServiceState
from tests.world.hang_api import PATH, HangApi, hang_api
from tests.world.views import attempt_view, group_view, node_view, rank_view


@pytest.fixture
def client(tmp_path: Path) -> Iterator[HangApi]:
    with hang_api(tmp_path) as made:
        yield made


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
