"""The commands against a cluster of three replicas with real listeners."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from frd.cli import BLIND, FAILED, FINDINGS_PRESENT, USAGE
from frd.cli.client import Client
from frd.cli.commands import doctor
from frd.errors import ServiceUnavailable
from frd_agent.launch.checks import State
from tests.unit.cli.shell import Printed, Shell
from tests.world.http_api import closed, finding
from tests.world.http_cluster import Cluster, Script, cluster, job_of

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


AskReplica: TypeAlias = Callable[..., Printed]
"""Types a command on a terminal that asks the replica `at`."""


@pytest.fixture
def frd(three: Cluster, shell: Shell) -> AskReplica:
    def ask(*words: str | Path, at: str = "frd-0", code: int = 0) -> Printed:
        return shell.drawn(*words, "--http", three.members[at].address, code=code, columns=200)

    return ask


# -- several addresses -------------------------------------------------------------------------


def test_the_first_address_that_answers_is_used(three: Cluster, nowhere: str, shell: Shell) -> None:
    """Nothing listens at the first address: the second one answers, and is asked from then on."""
    where = f"{nowhere}, http://{three.members['frd-2'].address},127.0.0.1:1"
    assert OPEN.id in shell("findings", "--http", where, code=FINDINGS_PRESENT).out
    client = Client(nowhere, others=[three.members["frd-1"].address])
    client.get("/api/v1/jobs")
    assert client.address == three.members["frd-1"].address


@pytest.mark.parametrize("count", [1, 2])
def test_no_address_answers(nowhere: str, shell: Shell, count: int) -> None:
    """One line with all addresses, and how to start or name the service."""
    error = shell("status", "--http", ",".join([nowhere] * count), code=FAILED).error
    where = ", ".join([nowhere] * count)
    assert f"service: {where}: nothing listens there: start `frd serve`" in error


def test_a_replica_that_hangs_is_left(three: Cluster) -> None:
    """The first address accepts connections and says nothing: a GET goes to the next one; a POST,
    which may have had its effect, does not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging = f"127.0.0.1:{listener.getsockname()[1]}"
        client = Client(hanging, 1.5, others=[three.members["frd-0"].address])
        with pytest.raises(ServiceUnavailable, match=r"no answer within 1\.5 s"):
            client.post("/api/v1/jobs/x/dumps", {})
        assert client.get("/api/v1/cluster")["replica"] == "frd-0"


def test_a_post_goes_on_when_nothing_listens(three: Cluster, nowhere: str) -> None:
    """It has not been sent, so that the next address may have it."""
    client = Client(nowhere, others=[three.members["frd-0"].address])
    path = f"/api/v1/findings/{OPEN.id}/close"
    assert client.post(path, {"because": "seen"})["state"] == "closed"


@pytest.mark.parametrize("where", ["frd.invalid:1", "127.0.0.1:1,frd.invalid:1"])
def test_a_token_is_not_sent_in_clear(tmp_path: Path, shell: Shell, where: str) -> None:
    """A token for another machine needs TLS, or an option that accepts that it is readable."""
    (tmp_path / "token").write_text("t" * 32)
    command = ("status", "--http", where, "--token-file", tmp_path / "token")
    assert "would be sent unencrypted" in shell(*command, code=USAGE).error
    assert "frd.invalid:1" in shell(*command, "--insecure", code=FAILED).error


# -- what is shown -----------------------------------------------------------------------------


def test_status_shows_replicas_and_jobs_of_all(three: Cluster, frd: AskReplica) -> None:
    """Any replica shows all jobs, and a table with the cells, versions and addresses."""
    lines = frd("status", at="frd-2").lines
    assert any(line.startswith(f"{OPEN.id}  stall in {B}") for line in lines)
    assert {A, B} <= {line.partition("  attempt")[0] for line in lines}
    rows = [line.split() for line in lines if line.lstrip().startswith("frd-")]
    assert [row[:2] for row in rows] == [["frd-0", "21"], ["frd-1", "21"], ["frd-2", "*"]]
    assert three.members["frd-0"].address in rows[0]
    assert not [line for line in lines if line.startswith(("cluster:", "incomplete:"))]


def test_status_says_what_is_missing(three: Cluster, frd: AskReplica) -> None:
    """frd-1 has just died: its open finding is shown from a copy, its job is not; exit code 0."""
    three.stop("frd-1")
    out = frd("status").out
    assert OPEN.id in out
    assert "no open findings" not in out
    why = "did not answer, or is not sure of its jobs: they may be missing"
    assert f"incomplete: frd-1 {why}\n" in out
    said = frd("status", "--json").json
    assert (said["incomplete"], [job["job"] for job in said["jobs"]]) == (["frd-1"], [A])
    assert [one["replica"] for one in said["cluster"]["replicas"]] == ["frd-0", "frd-1", "frd-2"]
    error = frd("status", "--job", B, code=FAILED).error
    assert f"job: {B!r}: unknown to this service" in error
    assert "frd-1 did not answer: try again" in error


def test_a_job_that_moves_is_not_the_end_of_status(three: Cluster, frd: AskReplica) -> None:
    """A job is in the list, and its owner has lost it a moment later: the others are shown."""
    moved = three.members["frd-1"]
    listed = moved.service.state
    moved.cells.discard(30)
    assert listed.latest_attempts().keys() == {B}
    out = frd("status").out
    assert f"not shown: job: {B!r}: another replica has it now: try again" in out
    assert f"{A}  attempt 0" in out
    assert list(frd("status", "--json").json["missing"]) == [B]


def test_status_says_what_is_wrong_with_the_cluster(three: Cluster, frd: AskReplica) -> None:
    """Cells without an owner, NATS that does not answer, that is not durable, a replica
    that is not sure."""
    urls = three.urls()
    del urls["frd-2"]
    three.show(urls, durable=False, connected=False)
    state = three.members["frd-1"].service.state
    assert state.cluster is not None
    three.members["frd-1"].service.state = replace(
        state, cluster=replace(state.cluster, sure=False)
    )
    lines = [line for line in frd("status").lines if line.startswith("cluster:")]
    assert lines == [
        "cluster: 22 cells have no owner: no replica watches their jobs",
        "cluster: NATS does not answer frd-0",
        "cluster: NATS does not answer frd-1",
        "cluster: frd-1 does not know whether it still has its jobs: it is silent",
        "cluster: NATS is not durable: set `sync_interval: always` on its servers",
    ]


def test_no_findings_of_some_replicas(three: Cluster, frd: AskReplica) -> None:
    """A replica is silent: the output does not say that there are no findings; the exit code is
    the same. Of a job of another replica, it is complete."""
    frd("findings", "close", OPEN.id, "--because", "seen")
    three.stop("frd-2")
    first = frd("status", at="frd-1").lines[0]
    assert first == "no open findings of the replicas that answered"
    out = frd("findings", at="frd-1").out
    assert out.startswith("no findings of the replicas that answered\nincomplete: frd-2 did not")
    assert frd("findings", "--json", at="frd-1").json["incomplete"] == ["frd-2"]
    assert frd("findings", "--job", A, at="frd-1").out.startswith("no findings\n")


def test_a_job_without_an_owner_is_blind(three: Cluster, frd: AskReplica) -> None:
    """No replica has its cell: that is no all-clear, nor is the job unknown."""
    urls = three.urls()
    del urls["frd-0"]
    three.show(urls)
    for job in (A, job_of(3, 1)):
        out = frd("findings", "--job", job, at="frd-2", code=BLIND).out
        assert f"blind: {job}: no replica has its cell 3" in out


def test_a_dump_through_another_replica(three: Cluster, tmp_path: Path, frd: AskReplica) -> None:
    """frd-2 is asked for a dump of a job of frd-1, while frd-0 is silent: a note on stderr when the
    job is not named."""
    folder = str(tmp_path / "dumps")
    frd("dump", "--job", B, "-o", folder, at="frd-2")
    assert (tmp_path / "dumps/summary.json").exists()
    three.stop("frd-0")
    said = frd("dump", "-o", folder + "2", at="frd-2").err
    assert said.startswith("frd: warning: incomplete: frd-0 did not answer, or is not sure of")


def test_doctor_finds_the_node_at_any_replica(three: Cluster) -> None:
    """The agent's job is at frd-1, and frd-2 is asked: the node is connected. A node without ranks
    is a warning, because its agent may be connected to any replica."""
    client = Client(three.members["frd-2"].address)
    known = {check.name: check for check in doctor._service(client, "node0")}
    assert known["service hears the agent"].state is State.OK
    unknown = {check.name: check for check in doctor._service(client, "node9")}
    assert unknown["service hears the agent"].state is State.WARNING
