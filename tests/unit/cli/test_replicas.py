"""The commands against a cluster of three replicas with real listeners."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.cli import BLIND, FAILED, FINDINGS_PRESENT, USAGE, run
from frd.cli.client import Client
from frd.cli.commands import doctor
from frd.errors import ServiceUnavailable
from frd_agent.launch.checks import State
from tests.world.http_api import closed, finding
from tests.world.http_cluster import Cluster, Script, cluster, job_of
from tests.world.http_server import Reply, answering
from tests.world.http_service import error_of

A, B = job_of(3), job_of(30)
"""Jobs of frd-0 and frd-1."""
OPEN, OLD = finding(1, B), closed(finding(2, A))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    scripts = {
        "frd-0": Script([A], [], [OPEN, OLD]),
        "frd-1": Script([B], [OPEN], [OLD]),
        "frd-2": Script([], [], [OPEN, OLD]),
    }
    with cluster(tmp_path, scripts) as made:
        yield made


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def frd(three: Cluster, *arguments: str, at: str = "frd-0") -> int:
    return run([*arguments, "--http", three.members[at].address])


# -- several addresses -------------------------------------------------------------------------


def test_the_first_address_that_answers_is_used(
    three: Cluster, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens at the first address: the second one answers, and is asked from then on."""
    where = f"{nowhere}, http://{three.members['frd-2'].address},127.0.0.1:1"
    assert run(["findings", "--http", where]) == FINDINGS_PRESENT
    assert OPEN.id in capsys.readouterr().out
    client = Client(nowhere, others=[three.members["frd-1"].address])
    client.get("/api/v1/jobs")
    assert client.address == three.members["frd-1"].address


def test_no_address_answers(nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with all addresses, and why each did not answer."""
    assert run(["status", "--http", f"{nowhere},{nowhere}"]) == FAILED
    said = error_of(capsys)
    assert f"service: {nowhere}, {nowhere}: nothing listens there" in said


def test_a_replica_that_hangs_is_left(three: Cluster) -> None:
    """The first address accepts connections and says nothing: a GET goes to the next one; a POST,
    which may have had its effect, does not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging = f"127.0.0.1:{listener.getsockname()[1]}"
        client = Client(hanging, 0.5, others=[three.members["frd-0"].address])
        with pytest.raises(ServiceUnavailable, match=r"no answer within 0\.5 s"):
            client.post("/api/v1/jobs/x/dumps", {})
        assert client.get("/api/v1/cluster")["replica"] == "frd-0"


def test_a_post_goes_on_when_nothing_listens(three: Cluster, nowhere: str) -> None:
    """It has not been sent, so that the next address may have it."""
    client = Client(nowhere, others=[three.members["frd-0"].address])
    path = f"/api/v1/findings/{OPEN.id}/close"
    assert client.post(path, {"because": "seen"})["state"] == "closed"


def test_addresses_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    """With and without TLS, an empty one: one line says what to write."""
    for typed in ("https://a:1,http://b:1", "https://a:1,b:1", "a:1,", "a:1,,b:1"):
        assert run(["status", "--http", typed]) == USAGE
        assert "write" in error_of(capsys)


def test_a_token_goes_to_none_of_them_in_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the addresses is another machine, without TLS: refused before anything is sent."""
    (tmp_path / "token").write_text("t" * 32)
    command = ["status", "--http", "127.0.0.1:1,frd.invalid:1", "--token-file"]
    assert run([*command, str(tmp_path / "token")]) == USAGE
    assert "would be sent unencrypted" in error_of(capsys)


# -- what is shown -----------------------------------------------------------------------------


def test_status_shows_replicas_and_jobs_of_all(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any replica shows all jobs, and a table with the cells, versions and addresses."""
    assert frd(three, "status", at="frd-2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{OPEN.id}  stall in {B}") for line in lines)
    assert {A, B} <= {line.partition("  attempt")[0] for line in lines}
    rows = [line.split() for line in lines if line.lstrip().startswith("frd-")]
    assert [row[:2] for row in rows] == [["frd-0", "21"], ["frd-1", "21"], ["frd-2", "*"]]
    assert three.members["frd-0"].address in rows[0]
    assert not [line for line in lines if line.startswith(("cluster:", "incomplete:"))]


def test_status_says_what_is_missing(three: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """frd-1 has just died: its open finding is shown from a copy, its job is not; exit code 0."""
    three.stop("frd-1")
    assert frd(three, "status") == 0
    out = capsys.readouterr().out
    assert OPEN.id in out
    assert "no open findings" not in out
    assert "incomplete: frd-1 did not answer: its jobs are missing\n" in out
    assert frd(three, "status", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["incomplete"], [job["job"] for job in said["jobs"]]) == (["frd-1"], [A])
    assert [one["replica"] for one in said["cluster"]["replicas"]] == ["frd-0", "frd-1", "frd-2"]
    assert frd(three, "status", "--job", B) == FAILED
    assert f"job: {B!r}: unknown to this service" in (said := error_of(capsys))
    assert "frd-1 did not answer: try again" in said


def test_a_job_that_moves_is_not_the_end_of_status(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is in the list, and its owner has lost it a moment later: the others are shown."""
    moved = three.members["frd-1"]
    listed = moved.service.state
    moved.cells.discard(30)
    assert listed.latest_attempts().keys() == {B}
    assert frd(three, "status") == 0
    out = capsys.readouterr().out
    assert f"not shown: job: {B!r}: another replica has it now: try again" in out
    assert f"{A}  attempt 0" in out
    assert frd(three, "status", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["missing"]) == [B]


def test_status_says_what_is_wrong_with_the_cluster(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells without an owner, NATS that does not answer, a slow log that is not durable."""
    urls = three.urls()
    del urls["frd-2"]
    three.show(urls, durable=False, connected=False)
    for member in three.members.values():
        assert member.service.state.cluster is not None
        object.__setattr__(member.service.state.cluster, "append_s", 5.0)
    assert frd(three, "status") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cluster:")]
    assert lines == [
        "cluster: 22 cells have no owner: no replica watches their jobs",
        "cluster: NATS does not answer frd-0",
        "cluster: the log of frd-0 is slow: 5.0 s for an append, 100 B not stored",
        "cluster: NATS does not answer frd-1",
        "cluster: the log of frd-1 is slow: 5.0 s for an append, 101 B not stored",
        "cluster: the log is not durable: set `sync_interval: always` on the NATS servers",
    ]


def test_no_findings_of_some_replicas(three: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica is silent: the output does not say that there are no findings; the exit code is
    the same. Of a job of another replica, it is complete."""
    frd(three, "findings", "close", OPEN.id, "--because", "seen")
    three.stop("frd-2")
    capsys.readouterr()
    assert frd(three, "status", at="frd-1") == 0
    assert capsys.readouterr().out.startswith("no open findings of the replicas that answered\n")
    assert frd(three, "findings", at="frd-1") == 0
    out = capsys.readouterr().out
    assert out.startswith("no findings of the replicas that answered\nincomplete: frd-2 did not")
    assert frd(three, "findings", "--json", at="frd-1") == 0
    assert json.loads(capsys.readouterr().out)["incomplete"] == ["frd-2"]
    assert frd(three, "findings", "--job", A, at="frd-1") == 0
    assert capsys.readouterr().out.startswith("no findings\n")


def test_a_job_without_an_owner_is_blind(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """No replica has its cell: that is no all-clear, nor is the job unknown."""
    urls = three.urls()
    del urls["frd-0"]
    three.show(urls)
    for job in (A, job_of(3, 1)):
        assert frd(three, "findings", "--job", job, at="frd-2") == BLIND
        assert f"blind: {job}: no replica has its cell 3" in capsys.readouterr().out


def test_a_finding_is_shown_and_closed_through_any_replica(
    three: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the beginning of its id; the owner closes it."""
    assert frd(three, "findings", OPEN.id, at="frd-2") == FINDINGS_PRESENT
    assert frd(three, "findings", "close", OPEN.id, "--because", "seen", at="frd-2") == 0
    assert three.members["frd-1"].service.state.open_findings() == []


def test_a_dump_through_another_replica(
    three: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """frd-2 is asked for a dump of a job of frd-1, while frd-0 is silent: a note on stderr when the
    job is not named."""
    folder = str(tmp_path / "dumps")
    assert frd(three, "dump", "--job", B, "-o", folder, at="frd-2") == 0
    assert (tmp_path / "dumps/summary.json").exists()
    three.stop("frd-0")
    assert frd(three, "dump", "-o", folder + "2", at="frd-2") == 0
    said = capsys.readouterr().err
    assert said == "frd: warning: incomplete: frd-0 did not answer: its jobs are missing\n"


def test_doctor_finds_the_node_at_any_replica(three: Cluster) -> None:
    """The agent's job is at frd-1, and frd-2 is asked: the node is connected. A node without ranks
    is a warning, because its agent may be connected to any replica."""
    client = Client(three.members["frd-2"].address)
    known = {check.name: check for check in doctor._service(client, "node0")}
    assert known["service hears the agent"].state is State.OK
    unknown = {check.name: check for check in doctor._service(client, "node9")}
    assert unknown["service hears the agent"].state is State.WARNING


def test_a_service_that_is_alone_is_not_asked_for_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An older service, or one without a cluster: its list has no `incomplete`, and `frd status`
    asks for nothing that it does not know."""
    asked: list[str] = []
    watching: dict[str, object] = {
        "jobs": 0,
        "ranks": 0,
        "agents": 0,
        "last_heard_s": None,
        "blind": [],
    }
    said = {"jobs": [], "findings": [], "watching": watching, "warnings": []}

    def heard(path: str, headers: object, body: bytes) -> Reply:
        asked.append(path)
        return Reply(200, json.dumps(said).encode())

    with answering(heard) as port:
        assert run(["status", "--http", f"127.0.0.1:{port}"]) == 0
        assert run(["status", "--json", "--http", f"127.0.0.1:{port}"]) == 0
    assert not [path for path in asked if "cluster" in path]
    assert '"cluster"' not in capsys.readouterr().out
