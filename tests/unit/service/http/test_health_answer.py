"""How well frd itself sees, as one answer, and as that of several replicas."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from frd.model import AlignedNs
from frd.service.http.peers.merging import Gathered, Health, Heard, decode, merge_health
from frd.service.metrics.collector import render
from frd.service.state import Counters, ServiceState
from tests.world.http_api import Client, Service, job_view
from tests.world.views import NOW, SECOND, TRAIN, node_view


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    service = Service(tmp_path, [job_view("train")], [])
    yield Client(service)
    service.close()


def change(client: Client, **fields: Any) -> None:
    client.service.state = dataclasses.replace(client.service.state, **fields)


def test_a_service_that_is_well(client: Client) -> None:
    """One service, without a name; its agent, and nothing that is refused or lost. Before its first
    evaluation there was no age, and no agent."""
    before = client.service.state
    client.service.state = ServiceState(before.status_view)
    (service,) = client.get("/api/v1/health").json["services"]
    assert (service["evaluated_age_s"], service["agents"]) == (None, 0)
    client.service.state = before
    change(client, version="1.2", ingest_lag_s=0.25, loop_lag_s=0.01)
    answer = client.get("/api/v1/health")
    found = answer.json
    assert answer.headers["frd-api-version"] == "1"
    assert found["services"] == [
        {
            "replica": None,
            "version": "1.2",
            "not_ready": None,
            "evaluated_age_s": 0.0,
            "ingest_lag_s": 0.25,
            "loop_lag_s": 0.01,
            "agents": 1,
            "agents_silent": 0,
            "gap_entries": 0,
            "refused": {},
            "store_errors": {},
            "evicted": {},
        }
    ]
    assert found["node_counts"] == {"connected": 1, "silent": 0, "gone": 0, "unsynchronized": 1}
    assert [one["node"] for one in found["nodes"]] == ["node0"]
    assert found["more_nodes"] == 0
    assert "incomplete" not in found


def test_ranks_that_the_agent_may_not_read(client: Client) -> None:
    """frd is blind there, whatever their jobs are; of one job it is blind where its ranks are."""
    text = "/run/frd/run: the agent of uid 1000 may not read what ranks of uid 2000 publish"
    nodes = [
        node_view("a", {TRAIN: (0, 1)}),
        dataclasses.replace(node_view("b", {}), unreadable=(text,)),
    ]
    change(client, nodes=nodes)
    for path in ("/api/v1/findings", "/api/v1/jobs"):
        assert f"b: {text}" in client.get(path).json["watching"]["blind"]
    assert client.get("/api/v1/findings", "job=train").json["watching"]["blind"] == []
    metrics = render(client.service.state).decode()
    assert 'frd_node_unreadable{node="b"} 1.0' in metrics
    assert 'frd_node_unreadable{node="a"}' not in metrics


def test_agents_whose_metrics_prometheus_can_scrape(client: Client) -> None:
    """Each once, by name; an agent that says nothing, as old ones, or no address is left out."""
    said = (
        "node7:9375",
        "[fe80::7]:9375",
        "",
        "node7:9375",
        "n:1/../?x",
        "a b:1",
        "http://n:1",
        ":1",
    )
    nodes = [
        dataclasses.replace(node_view(f"node{at}", {}), metrics=metrics)
        for at, metrics in enumerate(said)
    ]
    change(client, nodes=nodes)
    assert client.get("/api/v1/targets").json == [
        {"targets": ["[fe80::7]:9375"], "labels": {"node": "node1"}},
        {"targets": ["node7:9375"], "labels": {"node": "node3"}},
    ]


def test_a_service_in_trouble(client: Client) -> None:
    """It evaluates no more, agents are silent or gone, rows are missing, and things are refused."""
    view = dataclasses.replace(job_view("train"), gap_entries=7)
    status_view = dataclasses.replace(
        client.service.state.status_view, attempts=[view, view], evicted={"collectives": 2}
    )
    nodes = [
        node_view("a", {TRAIN: (0,)}),
        node_view("b", {TRAIN: (1,)}, reporting=False),
        node_view("c", {TRAIN: (2,)}, connected=False, reporting=False),
    ]
    counters = Counters(
        refused={"order": 3, "limit": 0, "token": 3},
        http_refused={"role": 2, "token": 2},
        store_errors={"timelines": 4, "findings": 0},
        evicted={"dumps": 1, "collectives": 5},
    )
    change(client, status_view=status_view, nodes=nodes, counters=counters)
    client.service.now = AlignedNs(NOW + 60 * SECOND)
    found = client.get("/api/v1/health").json
    (service,) = found["services"]
    assert "the last evaluation is stale" in service["not_ready"]
    assert service["evaluated_age_s"] == 60.0
    assert (service["agents"], service["agents_silent"], service["gap_entries"]) == (2, 1, 14)
    assert service["refused"] == {"order": 3, "role": 2, "token": 5}
    assert service["store_errors"] == {"timelines": 4}
    assert service["evicted"] == {"collectives": 7, "dumps": 1}
    assert found["node_counts"] == {"connected": 1, "silent": 1, "gone": 1, "unsynchronized": 2}
    assert [one["node"] for one in found["nodes"]] == ["c", "b", "a"]


def test_nodes_without_a_job_that_runs(client: Client) -> None:
    """A job has ended and its agents say nothing any more: a connected one is well, and one that
    has gone is of no interest. The other job's nodes count as before."""
    ended = dataclasses.replace(job_view("old"), ended=True)
    state = client.service.state
    status_view = dataclasses.replace(
        state.status_view, attempts=[*state.status_view.attempts, ended]
    )
    nodes = [
        node_view("a", {ended.key: (0,)}, reporting=False),
        node_view("b", {ended.key: (1,)}, connected=False, reporting=False),
        node_view("c", {}, reporting=False),
        node_view("d", {ended.key: (1,), TRAIN: (0,)}, reporting=False),
    ]
    change(client, status_view=status_view, nodes=nodes)
    found = client.get("/api/v1/health").json
    assert found["node_counts"] == {"connected": 2, "silent": 1, "gone": 0, "unsynchronized": 3}
    assert [one["node"] for one in found["nodes"]] == ["d", "a", "c"]
    assert found["services"][0]["agents_silent"] == 1


# -- of several replicas -----------------------------------------------------------------------


def node(name: str, *, up: bool = True, reporting: bool = True, clock: str = "synchronized") -> Any:
    return {"node": name, "connected": up, "reporting": reporting, "clock_state": clock}


def said(replica: str, *nodes: Any, more: int = 0) -> dict[str, Any]:
    return {
        "services": [{"replica": replica}],
        "node_counts": {
            "connected": sum(one["connected"] for one in nodes) + more,
            "gone": sum(not one["connected"] for one in nodes),
        },
        "nodes": list(nodes),
        "more_nodes": more,
    }


def merged_health(*parts: dict[str, Any], incomplete: Sequence[str] = ()) -> dict[str, Any]:
    own, *others = map(Heard, parts)
    return merge_health(Gathered(own, others, incomplete))


def test_all_replicas_make_one_answer() -> None:
    """Services in the order of the answers, nodes of all, the worst first; counts are added up."""
    merged = merged_health(
        {"at": "now", **said("a", node("a1"), node("a2", up=False))},
        said("b", node("b1", reporting=False), node("b2")),
        said("c", node("c1", clock="unsynchronized"), more=5),
        incomplete=["d"],
    )
    assert [one["replica"] for one in merged["services"]] == ["a", "b", "c"]
    assert [one["node"] for one in merged["nodes"]] == ["a2", "b1", "c1", "a1", "b2"]
    assert merged["node_counts"] == {"connected": 9, "gone": 1}
    assert (merged["more_nodes"], merged["incomplete"], merged["at"]) == (5, ["d"], "now")


def test_an_agent_of_several_replicas_is_one_node() -> None:
    """It has streams to two replicas, or has gone from one of them: the best one counts. Another
    boot of the host is another agent, and so is another process."""
    moved = node("n1", up=False), node("n1", clock="unsynchronized"), node("n1")
    parts = [said(name, one) for name, one in zip("abc", moved, strict=True)]
    merged = merged_health(*parts)
    assert (merged["nodes"], merged["more_nodes"]) == ([node("n1")], 0)
    assert +Counter(merged["node_counts"]) == {"connected": 1}
    boots = [said("a", {**node("n1"), "boot_id": "x"}), said("b", {**node("n1"), "boot_id": "y"})]
    assert len(merged_health(*boots)["nodes"]) == 2
    other = {**node("n1", up=False), "session": "other"}
    twice = said("b", other, node("n1"))
    merged = merged_health(said("a", node("n1")), twice)
    assert merged["nodes"] == [other, node("n1")]
    assert +Counter(merged["node_counts"]) == {"connected": 1, "gone": 1}


def test_agents_that_are_not_listed_count_once_per_replica() -> None:
    """Two replicas list the same node and have five more each, which may be the same ones."""
    parts = [said(name, node("n1", up=False), more=5) for name in "ab"]
    merged = merged_health(*parts)
    assert (len(merged["nodes"]), merged["more_nodes"]) == (1, 10)
    assert merged["node_counts"] == {"connected": 10, "gone": 1}


def test_many_nodes_are_bounded() -> None:
    """Three replicas show fifty nodes each: the worst fifty of all stay, others are counted."""
    parts = [
        said(name, *(node(f"{name}{n}", up=n > 0) for n in range(50)), more=9) for name in "abc"
    ]
    merged = merged_health(*parts)
    assert [one["node"] for one in merged["nodes"][:3]] == ["a0", "b0", "c0"]
    assert (len(merged["nodes"]), merged["more_nodes"]) == (50, 27 + 100)


@pytest.mark.parametrize("missing", ["services", "node_counts", "nodes", "more_nodes"])
def test_an_answer_that_is_none(missing: str) -> None:
    """A replica whose answer lacks something counts as one that did not answer; what a newer
    release adds stays."""
    whole = {**said("b", {**node("b1"), "colour": "red"}), "mood": "fine"}
    assert decode(json.dumps(whole).encode(), Health) == whole
    del whole[missing]
    with pytest.raises(ValueError, match=missing):
        decode(json.dumps(whole).encode(), Health)
