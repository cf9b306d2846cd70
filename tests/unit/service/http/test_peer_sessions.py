"""Sessions, files and events of any replica of a cluster."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from frd.address import split_address
from frd.cluster.lease import Replica
from frd.model import Change, FindingEvent
from frd.service.http.peers.client import Forwarded, PeerClient
from frd.service.http.web import events as module
from tests.world.http_api import closed, finding
from tests.world.http_cluster import Cluster, Script, cluster, job_of

OPERATOR, READER = "o" * 32, "r" * 32
A, B, C = job_of(3), job_of(30), job_of(50)
"""Jobs of frd-0, frd-1 and frd-2."""
SCRIPTS = {"frd-0": Script([A]), "frd-1": Script([B]), "frd-2": Script([C])}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, SCRIPTS) as made:
        yield made


# -- sessions ----------------------------------------------------------------------------------


def test_a_session_holds_on_all_replicas(tmp_path: Path) -> None:
    """One signs in on frd-0. frd-1 takes the cookie; what it asks of frd-2 carries the token in the
    header that commands use, also if frd-2 should know no cookies yet."""
    file = tmp_path / "tokens"
    file.write_text(f"{OPERATOR} role=operator\n{READER} role=reader\n")
    file.chmod(0o600)
    with cluster(tmp_path, SCRIPTS, token_file=file) as three:
        assert three.ask("frd-1", "/api/v1/jobs").status == 401
        answer = three.ask("frd-0", "/api/v1/session", {"token": READER})
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        path = f"/api/v1/jobs/{quote(C, safe='')}"
        assert three.ask("frd-1", "/api/v1/jobs", headers=cookie).json["incomplete"] == []
        assert three.ask("frd-1", "/api/v1/health", headers=cookie).json["incomplete"] == []
        assert three.ask("frd-1", path, headers=cookie).json["job"] == C
        assert len(three.members["frd-2"].asked) == 3
        for _, _, headers in three.members["frd-2"].asked:
            assert headers["authorization"] == f"Bearer {READER}"


# -- health ------------------------------------------------------------------------------------


def test_a_replica_of_an_older_release_is_missing(
    three: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """frd-2 does not know /api/v1/health: the answer says that it lacks its services and nodes. It
    answers other questions, so the log does not say that it is silent."""
    real = PeerClient.ask

    async def ask(self: PeerClient, replica: Replica, request: Forwarded) -> httpx.Response:
        if replica.name == "frd-2" and request.target == b"/api/v1/health":
            return httpx.Response(404)
        return await real(self, replica, request)

    monkeypatch.setattr(PeerClient, "ask", ask)
    found = three.ask("frd-0", "/api/v1/health").json
    assert [one["replica"] for one in found["services"]] == ["frd-0", "frd-1"]
    assert found["incomplete"] == ["frd-2"]
    assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == []
    assert "did not answer" not in caplog.text


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/web/../../../etc/passwd",
        "/web/%2e%2e/%2e%2e/etc/passwd",
        "/web/..%2f..%2fetc/passwd",
        "/web//etc/passwd",
        "/web/%2fetc%2fpasswd",
        "/web/..%5c..%5cetc",
        "/web/%00",
        "/web/%ff",
    ],
)
def test_no_other_file_is_served(three: Cluster, path: str) -> None:
    """A path that leads out of the folder, plain or encoded, as a real listener decodes it."""
    answer = three.ask("frd-0", path)
    assert (answer.status, answer.json["error"].partition(":")[0]) == (404, "file")


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


def test_events_are_of_all_replicas(three: Cluster, quick: None) -> None:
    """The lists of a stream of frd-0 have what frd-1 and frd-2 have."""
    with following(three, "frd-0") as events:
        assert [one["job"] for one in first(events, "jobs")["jobs"]] == sorted([A, B, C])
        assert len(first(events, "health")["services"]) == 3


def test_events_about_a_job_of_another_replica(three: Cluster, quick: None) -> None:
    """A stream of frd-0 about a job of frd-2 has its summary; about one that frd-2 does not know,
    its error; and about one whose owner is gone, why there is no answer."""
    for job in (A, C):
        with following(three, "frd-0", f"?job={quote(job, safe='')}") as events:
            assert first(events, "job")["job"] == job
    for job, says in ((job_of(50, 1), "unknown here"), (B, "does not answer")):
        if job == B:
            three.stop("frd-1")
        with following(three, "frd-0", f"?job={quote(job, safe='')}") as events:
            assert says in first(events, "job")["error"]
            assert first(events, "jobs")["jobs"]


def test_findings_of_other_replicas_are_events(three: Cluster, quick: None) -> None:
    """One opens on frd-1 and its copy arrives in the store of frd-0; then it closes there."""
    store = three.members["frd-0"].service.store
    with following(three, "frd-0") as events:
        first(events, "jobs")
        for state, one in (("open", finding(7, B)), ("closed", closed(finding(7, B)))):
            store.save([FindingEvent(Change.UPDATED, one)])
            found = first(events, "finding")
            assert (found["id"], found["state"]) == (one.id, state)
