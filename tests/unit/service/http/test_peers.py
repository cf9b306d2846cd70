"""Any replica answers: three real listeners in one process, with scripted states."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from frd.config import TlsFiles
from frd.do_now import shown_json
from frd.errors import ConfigError
from frd.model import AlignedNs, Change, FindingEvent
from frd.service.http.peers.client import PeerClient
from frd.service.http.peers.questions import CELLS_HEADER, FORWARDED
from frd.service.state import CellState
from tests.unit.service.http.three import (
    CLOSED_C,
    OPEN_A,
    OPEN_B,
    OPERATOR,
    READER,
    SCRIPTS,
    A,
    B,
    C,
    job_path,
    token_file,
)
from tests.world.certs import Authority
from tests.world.http_api import finding
from tests.world.http_cluster import Cluster, Script, cluster
from tests.world.http_server import Reply, answering
from tests.world.views import NOW, SECOND


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """A URL where connections are accepted and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def saying(*chunks: bytes, every_s: float = 0.0) -> Iterator[str]:
    """A URL where one request gets these parts of a chunked answer, and then the end of the
    connection instead of that of the answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for chunk in chunks:
                    connection.sendall(chunk)
                    time.sleep(every_s)

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


# -- one job -----------------------------------------------------------------------------------


def test_a_job_is_answered_by_its_owner(three: Cluster) -> None:
    """frd-0 is asked for a job of frd-2: the answer is that of frd-2, with query and headers."""
    direct = three.ask("frd-2", f"{job_path(C)}?memory=all&attempt=0")
    relayed = three.ask("frd-0", f"{job_path(C)}?memory=all&attempt=0")
    assert relayed.status == 200
    assert relayed.json == direct.json
    assert relayed.json["job"] == C
    assert relayed.headers == {**direct.headers, "date": relayed.headers["date"]}
    method, path, headers = three.members["frd-2"].asked[-1]
    assert (method, path) == ("GET", f"{job_path(C)}?memory=all&attempt=0")
    assert headers["frd-forwarded"] == "frd-0"
    assert three.members["frd-1"].asked == []


def test_a_job_with_an_odd_name_is_found(tmp_path: Path) -> None:
    """A job called `..` is one of the owner, not the folder above."""
    dots = ["..", "../..", "a b?c#d", "é\n"]
    with cluster(tmp_path, {name: Script(dots) for name in ("frd-0", "frd-1", "frd-2")}) as made:
        for name in made.members:
            for job in dots:
                path = job_path(job) if "/" in job else f"/api/v1/jobs/{quote(job)}"
                assert made.ask(name, path).json["job"] == job


def test_a_dump_is_taken_by_the_owner_and_fetched_anywhere(fresh: Cluster) -> None:
    """frd-0 is asked for a dump of a job of frd-1: frd-1 asks its agents; frd-2 finds the tar."""
    body = {"ranks": "0-1", "timeout_s": 7}
    answer = fresh.ask("frd-0", f"{job_path(B)}/dumps", body)
    assert (answer.status, answer.json["answered"]) == (201, [0])
    ((key, ranks, _, timeout_s),) = fresh.members["frd-1"].service.asked
    assert (key.job, ranks, timeout_s) == (B, (0, 1), 7.0)
    for name in fresh.members:
        tar = fresh.ask(name, f"/api/v1/dumps/{answer.json['id']}")
        assert tar.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(tar.body)) as archive:
            assert "summary.json" in archive.getnames()


def test_what_no_replica_can_use_is_not_forwarded(three: Cluster) -> None:
    """The replica that receives a body that is too large, or a list's bad parameter, refuses it."""
    answer = three.ask("frd-0", f"{job_path(B)}/dumps", {"ranks": "0" * 70_000})
    assert answer.status == 413
    assert three.ask("frd-0", "/api/v1/findings?state=ajar").status == 400
    assert three.members["frd-1"].asked == []


def test_headers_of_one_connection_stay(three: Cluster) -> None:
    """What `Connection` names does not reach the owner; other headers do."""
    sent = {"Connection": "close, X-Mine", "X-Mine": "1", "X-Other": "2", "TE": "trailers"}
    assert three.ask("frd-0", job_path(C), headers=sent).status == 200
    headers = three.members["frd-2"].asked[-1][2]
    assert headers["x-other"] == "2"
    assert not {"x-mine", "te"} & headers.keys()
    assert headers["host"] == three.members["frd-2"].address


def test_two_replicas_that_disagree_make_no_loop(fresh: Cluster) -> None:
    """frd-0 believes that frd-1 has the job, frd-1 that frd-0 has it: 503, after one request."""
    fresh.members["frd-1"].cells.discard(30)
    answer = fresh.ask("frd-0", job_path(B))
    assert answer.status == 503
    assert answer.json["error"] == f"job: {B!r}: another replica has it now: try again"
    assert [len(member.asked) for member in fresh.members.values()] == [1, 1, 0]


def test_an_answer_that_breaks_off_is_not_whole(three: Cluster) -> None:
    """The owner dies in the middle of its answer: the client does not get a shorter one."""
    with saying(b"3\r\nabc\r\n") as url:
        three.show({**three.urls(), "frd-1": url})
        with pytest.raises(http.client.IncompleteRead):
            three.ask("frd-0", job_path(B))


def test_a_dump_does_not_wait_for_a_replica_that_hangs(tmp_path: Path) -> None:
    """frd-2 has it, and frd-1 says nothing: the tar comes as soon as frd-2 answers."""
    with cluster(tmp_path, SCRIPTS, within_s=20.0) as three, hanging() as url:
        taken = three.ask("frd-2", f"{job_path(C)}/dumps", {}).json["id"]
        three.show({**three.urls(), "frd-1": url})
        began = time.monotonic()
        assert three.ask("frd-0", f"/api/v1/dumps/{taken}").status == 200
        assert time.monotonic() - began < 10


# -- findings ----------------------------------------------------------------------------------


def test_a_finding_is_answered_by_the_owner_of_its_job(fresh: Cluster) -> None:
    """An open finding comes from its owner, a closed one from the local store, also when its
    owner is gone."""
    fresh.members["frd-1"].service.state.open_findings()
    assert fresh.ask("frd-0", f"/api/v1/findings/{OPEN_B.id}").json == shown_json(OPEN_B)
    assert len(fresh.members["frd-1"].asked) == 1
    fresh.stop("frd-2")
    assert fresh.ask("frd-0", f"/api/v1/findings/{CLOSED_C.id}").json == shown_json(CLOSED_C)


def test_a_finding_is_closed_by_its_owner(fresh: Cluster) -> None:
    """frd-0 is asked to close a finding of frd-1: frd-1 closes it; again is a conflict there. The
    copy of frd-0 is older, but its lists do not show the finding as open."""
    path = f"/api/v1/findings/{OPEN_B.id}/close"
    answer = fresh.ask("frd-0", path, {"because": "seen"})
    assert (answer.status, answer.json["close_reason"]) == (200, "closed by hand: seen")
    assert fresh.members["frd-1"].service.state.open_findings() == []
    assert fresh.ask("frd-0", path, {"because": "seen"}).status == 409
    for query in ("", "?state=open"):
        found = fresh.ask("frd-0", f"/api/v1/findings{query}").json["findings"]
        assert OPEN_B.id not in [one["id"] for one in found if one["state"] == "open"]


def test_a_finding_that_is_not_copied_yet(fresh: Cluster) -> None:
    """It has just opened on frd-1: frd-0 asks the others, and frd-1 answers."""
    opened = finding(7, B)
    fresh.members["frd-1"].service.store.save([FindingEvent(Change.OPENED, opened)])
    assert fresh.ask("frd-0", f"/api/v1/findings/{opened.id}").json == shown_json(opened)
    answer = fresh.ask("frd-0", f"/api/v1/findings/{opened.id}/close", {"because": "seen"})
    assert answer.status == 200


def test_an_id_is_unknown_only_if_all_say_so(fresh: Cluster) -> None:
    """An unknown id is 404; when a replica is silent, it may be that replica's: 503."""
    assert fresh.ask("frd-0", "/api/v1/findings/ffff").status == 404
    assert fresh.ask("frd-0", "/api/v1/dumps/ffff").status == 404
    fresh.stop("frd-2")
    for path in ("/api/v1/findings/ffff", "/api/v1/dumps/ffff"):
        answer = fresh.ask("frd-0", path)
        assert (answer.status, "no answer from frd-2" in answer.json["error"]) == (503, True)


# -- lists -------------------------------------------------------------------------------------


def test_all_replicas_make_one_list_of_jobs(three: Cluster) -> None:
    """Whichever is asked, the jobs are the same, by name; what is watched is added up."""
    answers = [three.ask(name, "/api/v1/jobs").json for name in three.members]
    for answer in answers:
        assert [line["job"] for line in answer["jobs"]] == sorted([A, B, C])
        assert answer["incomplete"] == []
        watching = answer["watching"]
        assert (watching["jobs"], watching["ranks"], watching["agents"]) == (3, 6, 3)
        assert watching["last_heard_s"] == 0.5
    assert all("frd-cells" not in three.ask(name, "/api/v1/jobs").headers for name in three.members)


def test_all_replicas_make_one_list_of_findings(three: Cluster) -> None:
    """Open ones live on their owners, closed ones in every store; newest first, each once."""
    for name in three.members:
        found = three.ask(name, "/api/v1/findings?state=open").json
        assert [one["id"] for one in found["findings"]] == [OPEN_B.id, OPEN_A.id]
        every = three.ask(name, "/api/v1/findings").json
        assert [one["id"] for one in every["findings"]] == [CLOSED_C.id, OPEN_B.id, OPEN_A.id]
        old = three.ask(name, "/api/v1/findings?state=closed").json
        assert [one["id"] for one in old["findings"]] == [CLOSED_C.id]
        assert len(three.ask(name, "/api/v1/findings?limit=2").json["findings"]) == 2
        assert three.ask(name, "/api/v1/history").json.keys() == {
            "api_version",
            "findings",
            "next",
        }


def test_one_job_is_asked_of_its_owner_only(fresh: Cluster) -> None:
    """With `job`, the other replicas are not asked, and their silence does not matter."""
    fresh.stop("frd-2")
    found = fresh.ask("frd-0", f"/api/v1/findings?job={quote(B)}").json
    assert [one["id"] for one in found["findings"]] == [OPEN_B.id]
    assert found["incomplete"] == []
    assert found["watching"]["jobs"] == 1


def test_a_dead_replica_makes_a_list_incomplete(
    fresh: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """frd-1 has just died: its jobs are missing and the list says so; its open finding is shown
    from the copy, and its job is 503. One line in the log, however often it is asked for."""
    fresh.stop("frd-1")
    with caplog.at_level(logging.INFO, "frd"):
        for _ in range(3):
            jobs = fresh.ask("frd-0", "/api/v1/jobs").json
            assert [line["job"] for line in jobs["jobs"]] == sorted([A, C])
            assert jobs["incomplete"] == ["frd-1"]
        found = fresh.ask("frd-0", "/api/v1/findings?state=open").json
        answer = fresh.ask("frd-0", job_path(B))
    assert [one["id"] for one in found["findings"]] == [OPEN_B.id, OPEN_A.id]
    assert found["incomplete"] == ["frd-1"]
    assert answer.status == 503
    assert f"job: {B!r}: replica frd-1 has its cell 30 and does not" in answer.json["error"]
    assert len([line for line in caplog.messages if "frd-1" in line]) == 1


@pytest.mark.parametrize("asked", ["frd-0", "frd-1"])
def test_a_replica_that_is_not_sure_of_its_jobs(tmp_path: Path, asked: str) -> None:
    """Another replica may have taken over the jobs of frd-1: people see them, and the list names
    it; Prometheus gets none of them, and frd-1 does not say that it has its cells."""
    with cluster(tmp_path, SCRIPTS) as three:
        three.unsure.add("frd-1")
        three.show(three.urls())
        for path in ("jobs", "findings?state=open", "health", "cluster"):
            assert three.ask(asked, f"/api/v1/{path}").json["incomplete"] == ["frd-1"]
        jobs = three.ask(asked, "/api/v1/jobs").json["jobs"]
        assert [line["job"] for line in jobs] == sorted([A, B, C])
        found = three.ask(asked, "/api/v1/findings?state=open").json["findings"]
        assert [one["id"] for one in found] == [OPEN_B.id, OPEN_A.id]
        ready = three.ask("frd-1", "/-/ready", headers={FORWARDED: "frd-0"})
        assert ready.headers[CELLS_HEADER] == ""
        for name, is_shown in (("frd-0", True), ("frd-1", False)):
            for path in ("/metrics", "/metrics/findings"):
                text = three.ask(name, path).body.decode()
                assert ("training_job=" in text) is is_shown
        assert "frd_cluster_sure 0" in three.ask("frd-1", "/metrics").body.decode()


def test_a_replica_that_hangs_costs_a_bounded_time(tmp_path: Path) -> None:
    """It accepts connections and says nothing: the list comes without it, after the limit."""
    with cluster(tmp_path, SCRIPTS, within_s=1.5) as three, hanging() as url:
        three.show({**three.urls(), "frd-1": url})
        began = time.monotonic()
        answer = three.ask("frd-0", "/api/v1/jobs").json
        assert 1.5 <= time.monotonic() - began < 20
        assert answer["incomplete"] == ["frd-1"]
        dump = three.ask("frd-0", "/api/v1/dumps/x")
        assert (dump.status, "no answer from frd-1" in dump.json["error"]) == (503, True)


def test_a_replica_that_drips_costs_a_bounded_time(tmp_path: Path) -> None:
    """The limit is for the whole answer, not for each read of it."""
    with (
        cluster(tmp_path, SCRIPTS, within_s=1.5) as three,
        saying(*[b"1\r\n \r\n"] * 300, every_s=0.1) as url,
    ):
        three.show({**three.urls(), "frd-1": url})
        began = time.monotonic()
        assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == ["frd-1"]
        assert time.monotonic() - began < 20  # of the 30 s that the answer takes


GOOD = {"at": "", "jobs": [], "warnings": [], "findings": [], "replica": "frd-1", "replicas": []}
WATCHING: dict[str, object] = {
    **dict.fromkeys(("jobs", "ranks", "agents"), 0),
    "last_heard_s": None,
    "blind": [],
}


NONSENSE = (
    Reply(200, b"<html>it works</html>"),
    Reply(200, b"{"),
    Reply(200, b"\xff"),
    Reply(200, b"[1, 2]"),
    Reply(200, b'{"jobs": 3, "findings": 3}'),
    Reply(200, json.dumps({**GOOD, "watching": {**WATCHING, "jobs": "many"}}).encode()),
    Reply(200, json.dumps({**GOOD, "watching": WATCHING, "jobs": [{}]}).encode()),
    Reply(200, json.dumps(GOOD).encode(), {"frd-cells": "all"}),
    Reply(401, b'{"error": "authorization: missing"}'),
    Reply(302, b"", {"Location": "http://127.0.0.1:1/"}),
    Reply(500, b"oops"),
)


def test_a_replica_that_answers_nonsense_did_not_answer(three: Cluster) -> None:
    """Another server at the address: the list is incomplete, not an error."""
    for reply in NONSENSE:
        with answering(lambda *_, reply=reply: reply) as port:
            three.show({**three.urls(), "frd-1": f"http://127.0.0.1:{port}"})
            answer = three.ask("frd-0", "/api/v1/jobs")
            assert (answer.status, answer.json["incomplete"]) == (200, ["frd-1"]), reply


def test_an_answer_that_is_too_large_is_none(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that sends without end fills no memory."""
    monkeypatch.setattr("frd.service.http.peers.client._MAX_ANSWER_BYTES", 100)
    assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == ["frd-1", "frd-2"]


def test_an_address_that_is_none_is_not_asked(three: Cluster) -> None:
    """What a replica advertises by mistake is a replica that does not answer."""
    for url in ("frd-1:9374", "ftp://frd-1", "http://u:p@127.0.0.1:1", "http://", "x"):
        three.show({**three.urls(), "frd-1": url})
        assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == ["frd-1"], url
        assert three.ask("frd-0", job_path(B)).status == 503, url


def test_cells_without_an_owner_are_blind(three: Cluster) -> None:
    """frd-1 is gone and no replica has its cells yet, so that their jobs are not watched: every
    list says so, and a question about one of these jobs gets 503."""
    urls = three.urls()
    del urls["frd-1"]
    three.show(urls)
    blind = three.ask("frd-0", "/api/v1/jobs").json["watching"]["blind"]
    assert blind == [
        "21 cells have no owner (21, 22, 23, 24, 25, 26, 27, 28, ...), no replica watches their "
        "jobs: see frd status"
    ]
    of_job = three.ask("frd-0", f"/api/v1/findings?state=open&job={quote(B)}").json
    assert of_job["watching"]["blind"] == [f"{B}: no replica has its cell 30: see frd status"]
    assert [one["id"] for one in of_job["findings"]] == [OPEN_B.id]
    answer = three.ask("frd-0", job_path(B))
    assert answer.status == 503
    assert f"job: {B!r}: no replica has its cell 30 at present: try again" in answer.json["error"]


def test_a_cluster_without_agents_is_blind_once(tmp_path: Path) -> None:
    """No agent is connected to any replica: one sentence, not one for each replica."""
    with cluster(tmp_path, {}) as made:
        for member in made.members.values():
            object.__setattr__(member.service.state, "nodes", ())
        blind = made.ask("frd-0", "/api/v1/findings?state=open").json["watching"]["blind"]
        assert [text.partition(":")[0] for text in blind] == ["no agent is connected"]


# -- the cluster itself ------------------------------------------------------------------------


def test_the_cluster_is_shown(fresh: Cluster) -> None:
    """Replicas with version, addresses, cells, and whether each is sure of them."""
    said = fresh.ask("frd-0", "/api/v1/cluster").json
    assert (said["replica"], said["durable"], said["incomplete"]) == ("frd-0", True, [])
    assert [(one["replica"], one["cells"]) for one in said["replicas"]] == [
        ("frd-0", 21),
        ("frd-1", 21),
        ("frd-2", 22),
    ]
    assert [one["sure"] for one in said["replicas"]] == [True, True, True]
    assert said["cells"] == {"owned": 21, "unowned": 0}
    fresh.stop("frd-1")
    said = fresh.ask("frd-0", "/api/v1/cluster").json
    assert [one["sure"] for one in said["replicas"]] == [True, None, True]
    assert said["incomplete"] == ["frd-1"]


def test_readiness(fresh: Cluster) -> None:
    """Ready with NATS or with cells; alive in any case."""
    assert fresh.ask("frd-0", "/-/ready").status == 200
    fresh.show(fresh.urls(), connected=False)
    assert fresh.ask("frd-0", "/-/ready").status == 200
    member = fresh.members["frd-0"]
    shown = member.service.state.cluster
    assert shown is not None
    object.__setattr__(shown, "cells", {CellState.FOREIGN: 64})
    answer = fresh.ask("frd-0", "/-/ready")
    assert (answer.status, b"NATS does not answer" in answer.body) == (503, True)
    assert fresh.ask("frd-0", "/-/healthy").status == 200
    object.__setattr__(shown.view, "connected", True)
    member.service.now = AlignedNs(NOW + 60 * SECOND)  # without cells nothing is evaluated
    assert fresh.ask("frd-0", "/-/ready").status == 200


# -- credentials -------------------------------------------------------------------------------


def test_a_token_is_checked_before_anything_is_forwarded(tmp_path: Path) -> None:
    """Without a token, or with one that may not do it, no other replica hears of the request; with
    the right one, the owner gets the same."""
    with cluster(tmp_path, SCRIPTS, token_file=token_file(tmp_path)) as three:
        reader = {"Authorization": f"Bearer {READER}"}
        operator = {"Authorization": f"Bearer {OPERATOR}"}
        assert three.ask("frd-0", job_path(B)).status == 401
        assert three.ask("frd-0", f"{job_path(B)}/dumps", {}, headers=reader).status == 403
        assert three.ask("frd-0", "/api/v1/cluster").status == 401
        forged = {"frd-forwarded": "frd-2"}
        assert three.ask("frd-0", "/api/v1/jobs", headers=forged).status == 401
        assert three.members["frd-1"].asked == []
        assert three.ask("frd-0", job_path(B), headers=reader).status == 200
        assert three.ask("frd-0", f"{job_path(B)}/dumps", {}, headers=operator).status == 201
        assert three.ask("frd-0", "/api/v1/jobs", headers=reader).json["incomplete"] == []
        for _, _, headers in three.members["frd-1"].asked:
            assert headers["authorization"] in (*reader.values(), *operator.values())


def test_replicas_with_certificates(tmp_path: Path) -> None:
    """HTTP needs TLS and a client certificate: answers as in clear. A replica that is not encrypted
    gets no request, and no token."""
    authority = Authority(tmp_path)
    files = authority.issue("frd")
    tls = TlsFiles(files.cert, files.key, http_client_ca_file=authority.ca)
    with cluster(tmp_path, SCRIPTS, tls=tls, ca_file=authority.ca) as three:
        assert three.ask("frd-0", job_path(B)).json["job"] == B
        assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == []
        asked: list[str] = []

        def heard(path: str, headers: object, body: bytes) -> Reply:
            asked.append(path)
            return Reply(200, b"{}")

        with answering(heard) as port:
            three.show({**three.urls(), "frd-1": f"http://127.0.0.1:{port}"})
            answer = three.ask("frd-0", job_path(B))
            assert (answer.status, "is not encrypted" in answer.json["error"]) == (503, True)
            assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == ["frd-1"]
        assert asked == []


def test_certificates_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The replicas trust another authority: none answers, and the log says why. It is replaced
    while they run: the next request trusts the new one."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    files = new.issue("frd")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.ca.read_bytes())
    tls = TlsFiles(files.cert, files.key)
    with (
        caplog.at_level(logging.WARNING, "frd"),
        cluster(tmp_path, SCRIPTS, tls=tls, ca_file=new.ca, peers_ca_file=trusted) as three,
    ):
        assert three.ask("frd-0", "/api/v1/jobs").json["incomplete"] == ["frd-1", "frd-2"]
        assert any("CERTIFICATE_VERIFY_FAILED" in line for line in caplog.messages)
        assert three.ask("frd-0", job_path(B)).status == 503
        trusted.write_bytes(new.ca.read_bytes())
        assert three.ask("frd-0", job_path(B)).status == 200


def test_a_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    """An error at the start, which names the key."""
    for path in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        if path.name == "empty.pem":
            path.write_text("nothing")
        with pytest.raises(ConfigError, match=r"^cluster\.peers_ca_file: .*give PEM certificates"):
            PeerClient(TlsFiles(), path)
