"""What people say of findings, over HTTP: forms and errors, names, and whose page may ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from frd.do_now import shown_json
from frd.forms import utc_text
from frd.service.access.grants import Tokens
from frd.service.findings import people
from frd.service.http.routes import WebOptions
from tests.unit.service.http.three import CLOSED_C, OPEN_B, B, job_path
from tests.world.http_api import Client, Service, finding
from tests.world.http_cluster import Cluster
from tests.world.views import NOW, SECOND

ALICE, BOB, READER = "a" * 32, "b" * 32, "r" * 32
ONE, CLOSED = (f"/api/v1/findings/{finding(number).id}" for number in (1, 3))
SILENCES = "/api/v1/silences"
LATER = utc_text(NOW + 3600 * SECOND)


@pytest.fixture
def client(service: Service, tmp_path: Path) -> Client:
    """It has tokens: one with a name, one without."""
    path = tmp_path / "tokens"
    lines = (
        f"{ALICE} role=operator name=Alice%20B",
        f"{BOB} role=operator",
        f"{READER} role=reader",
    )
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return Client(service, WebOptions(Tokens(path)))


@pytest.fixture
def plain(service: Service) -> Client:
    """Without tokens."""
    return Client(service)


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_the_name_is_that_of_the_token(client: Client) -> None:
    """What the client calls itself does not count. The second who acknowledges learns who was
    first; a token without a name is an operator; a reader may say nothing."""
    alice, bob = ({"authorization": bearer(token)} for token in (ALICE, BOB))
    done = client.post(f"{ONE}/ack", {"by": "mallory"}, **alice)
    said = {"acknowledged_by": "Alice B", "acknowledged_at": utc_text(NOW)}
    assert (done.status, done.json) == (200, {**shown_json(finding(1)), **said})
    again = client.post(f"{ONE}/ack", {}, **bob)
    assert again.status == 409
    assert "acknowledged already: by Alice B at " in again.json["error"]
    note = client.post(f"{ONE}/note", {"text": "on it"}, **bob).json["notes"]
    assert note == [{"by": "operator", "written_at": utc_text(NOW), "text": "on it"}]
    closed = client.post(f"{ONE}/close", {"because": "known"}, **alice).json
    assert (closed["close_reason"], closed["acknowledged_by"]) == ("closed by Alice B: known",) + (
        "Alice B",
    )
    reader = {"authorization": bearer(READER)}
    for path in (f"{ONE}/note", SILENCES):
        assert client.post(path, {}, **reader).status == 403
    assert client.send("DELETE", f"{SILENCES}/x", headers=reader).status == 403
    assert client.get(SILENCES, **reader).json["silences"] == []


def test_without_tokens_names_are_unverified(plain: Client) -> None:
    """Whatever a client calls itself is one printable line, and is marked."""
    assert plain.post(f"{ONE}/ack", {}).json["acknowledged_by"] == "unknown (unverified)"
    note = plain.post(f"{ONE}/note", b'{"by": "x\\u001b[31m", "text": "a\\u0007\\n b"}').json[
        "notes"
    ]
    assert [(one["by"], one["text"]) for one in note] == [("x\ufffd[31m (unverified)", "a\ufffd b")]
    assigned = plain.post(f"{ONE}/assign", {"to": "<b>bob</b>"}).json
    assert assigned["assigned_to"] == "<b>bob</b>"  # text, which the page escapes
    assert "assigned_to" not in plain.post(f"{ONE}/assign", {"to": ""}).json
    assert "acknowledged_by" not in plain.post(f"{ONE}/ack", {"undo": True}).json


def test_silences(plain: Client) -> None:
    """A finding, a job and a node are silenced; the list has all three, the finding the last end;
    each is ended."""
    said = plain.post(f"{ONE}/silence", {"until": LATER, "by": "al"}).json
    assert (said["silenced_until"], said["silenced_by"]) == (LATER, "al (unverified)")
    longer = utc_text(NOW + 7200 * SECOND)
    of_job = plain.post(SILENCES, {"job": "train", "until": longer, "because": "moving"})
    of_node = plain.post(SILENCES, {"node": "n\u00e9", "until": LATER})
    assert (of_job.status, of_node.status) == (201, 201)
    listed = plain.get(SILENCES).json["silences"]
    assert [one.get("job") or one.get("node") or one.get("finding") for one in listed] == [
        *(finding(1).id, "train", "n\u00e9")
    ]
    note = plain.post(f"{ONE}/note", {"text": "x"}).json
    assert note["silenced_by"] == "unknown (unverified), for job train"
    assert plain.send("DELETE", f"{SILENCES}/{of_job.json['id']}").json == of_job.json
    assert plain.post(f"{ONE}/silence", {"until": None}).json.get("silenced_until") is None
    assert [one["id"] for one in plain.get(SILENCES).json["silences"]] == [of_node.json["id"]]
    for no_id in ("train", ""):
        assert plain.send("DELETE", f"{SILENCES}/{no_id}").status == 404
    assert [one["id"] for one in plain.get(SILENCES).json["silences"]] == [of_node.json["id"]]


def test_too_many_silences(plain: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "MAX_SILENCES", 0)
    for path, body in ((f"{ONE}/silence", {}), (SILENCES, {"job": "x"})):
        answer = plain.post(path, {**body, "until": LATER})
        assert (answer.status, answer.json["error"].partition(":")[0]) == (409, "silences")


@pytest.mark.parametrize(
    ("what", "body", "status", "says"),
    [
        ("ack", b"", 400, "body:"),
        ("ack", [], 400, "body:"),
        ("ack", {"undo": 1}, 400, "undo"),
        ("ack", {"by": "x" * 101}, 400, "by: 101 characters"),
        ("assign", {}, 400, "to"),
        ("assign", {"to": "x" * 101}, 400, "to: 101 characters"),
        ("note", {"text": "\n "}, 400, "text: 0 characters"),
        ("note", {"text": "x" * 1001}, 400, "text: 1001 characters"),
        ("note", {"text": "x", "to": "y"}, 400, "unknown field"),
        ("note", {"text": "x" * 70_000}, 413, "body"),
        ("silence", {}, 400, "until"),
        ("silence", {"until": "soon"}, 400, "until: 'soon'"),
        ("silence", {"until": utc_text(NOW)}, 400, "until: "),
        ("silence", {"until": utc_text(NOW + 91 * 86_400 * SECOND)}, 400, "90 days"),
        ("silence", {"until": LATER, "because": "x" * 1001}, 400, "because"),
    ],
)
def test_bad_requests(plain: Client, what: str, body: object, status: int, says: str) -> None:
    """Each is refused with what is wrong, and nothing is changed."""
    answer = plain.post(f"{ONE}/{what}", body)
    assert (answer.status, says in answer.json["error"]) == (status, True), answer.json
    assert plain.get(ONE).json == shown_json(finding(1))
    assert plain.get(SILENCES).json["silences"] == []


@pytest.mark.parametrize(
    "body",
    [{}, {"job": "a", "node": "b"}, {"job": "x" * 257}, {"finding": "a"}, {"job": 1}],
)
def test_bad_silences(plain: Client, body: dict[str, object]) -> None:
    """Neither job nor node, both, too long, of a finding, no text."""
    assert plain.post(SILENCES, {"until": LATER, **body}).status == 400
    assert plain.get(SILENCES).json["silences"] == []


def test_closed_and_unknown_findings(plain: Client) -> None:
    """A closed finding gets a note and an owner; acknowledging and silencing it is a conflict."""
    note, until = {"text": "a bad disk"}, {"until": LATER}
    for what, body, status in (
        ("note", note, 200),
        ("assign", {"to": "bob"}, 200),
        ("ack", {}, 409),
        ("silence", until, 409),
    ):
        assert plain.post(f"{CLOSED}/{what}", body).status == status
        assert plain.post(f"/api/v1/findings/none/{what}", body).status == 404
    found = plain.get(CLOSED).json
    assert (found["state"], found["assigned_to"], len(found["notes"])) == ("closed", "bob", 1)


@pytest.mark.parametrize(
    ("public_url", "host", "origin", "status"),
    [
        ("", "frd", "https://evil.example", 403),
        ("", "frd", "null", 403),
        ("", "evil.example", "http://evil.example", 403),  # its name resolves to the service
        ("", "localhost.evil.example", "http://localhost.evil.example", 403),
        ("", "127.0.0.1:9374", "http://127.0.0.1:9374", 200),
        ("", "[::1]:9374", "http://[::1]:9374", 200),
        ("", "localhost:9374", "http://localhost:9374", 200),
        ("", "127.0.0.1:9374", "http://127.0.0.1:9375", 403),
        ("https://frd.example", "10.0.0.1:9374", "https://frd.example", 200),
        ("https://frd.example", "evil.example", "http://evil.example", 403),
    ],
)
def test_only_the_services_own_page(
    service: Service, public_url: str, host: str, origin: str, status: int
) -> None:
    """Without tokens, a name that `public_url` does not have may belong to another site."""
    page = Client(service, WebOptions(public_url=public_url))
    note, of_job = {"text": "x"}, {"job": "j", "until": LATER}
    for path, body, done in ((f"{ONE}/note", note, 200), (SILENCES, of_job, 201)):
        answer = page.post(path, body, origin=origin, host=host)
        assert answer.status == (done if status == 200 else 403)
    ended = page.send("DELETE", f"{SILENCES}/x", headers={"origin": origin, "host": host})
    assert ended.status == (404 if status == 200 else 403)
    assert page.post(f"{ONE}/note", {"text": "x"}, content_type="text/plain").status == 400
    assert page.post("/api/v1/jobs/train/dumps", {}, origin=origin, host=host).status == 403


def test_the_page_of_one_replica_and_a_finding_of_another(fresh: Cluster) -> None:
    """The replica that a browser asks checks the origin; the owner of the finding records what was
    said, also of a closed one, of which others have a copy. A silence is known to the replica that
    takes it."""
    own = {"Origin": f"http://{fresh.members['frd-0'].address}"}
    for one in (OPEN_B, CLOSED_C):
        path = f"/api/v1/findings/{one.id}/note"
        answer = fresh.ask("frd-0", path, {"text": "x", "by": "al"}, headers=own)
        assert (answer.status, answer.json["notes"][0]["by"]) == (200, "al (unverified)")
        evil = {"Origin": "https://evil.example"}
        assert fresh.ask("frd-0", path, {"text": "x"}, headers=evil).status == 403
    for name, one in (("frd-1", OPEN_B), ("frd-2", CLOSED_C)):
        stored = fresh.members[name].service.store.get(one.id)
        assert stored is not None
        assert len(stored.notes) == 1
    assert fresh.ask("frd-0", f"{job_path(B)}/dumps", {}, headers=own).status == 403
