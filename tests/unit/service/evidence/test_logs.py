"""What the suspects of a finding logged last: kept with its dump, for operators."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.model import AttemptKey, Change, FindingEvent
from frd.service.access.grants import Tokens
from frd.service.http.routes import WebOptions
from frd.service.http.web.session import HttpGuard
from frd.wire.messages import Part
from tests.unit.service.http.three import CLOSED_C, OPERATOR, READER, SCRIPTS, A, token_file
from tests.world.http_api import Client, Service, closed, finding, job_view
from tests.world.http_cluster import cluster
from tests.world.views import NOW

LOG = {"path": "/logs/rank0.err", "lines": ["loading", "Killed"], "why": ""}
PATH = f"/api/v1/findings/{finding(1).id}/log"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, [job_view("train")], [])
    yield made
    made.close()


def keep(service: Service, said: bytes | None, job: str = "train", **changes: Any) -> None:
    """A closed finding of the service, with a dump in which an agent has said this of rank 0."""
    writer = service.dumps.create(AttemptKey(job, 0), NOW)
    if said is not None:
        writer.add(0, Part.IDENTITY, said, last=True)
    found = dataclasses.replace(closed(finding(1, job)), **{"dump": writer.finish({}), **changes})
    service.store.save([FindingEvent(Change.OPENED, found)])


def identity(log: object) -> bytes:
    return json.dumps({"rank": 0, "log": log}).encode()


def test_the_log_of_a_suspect(service: Service) -> None:
    """With its path; not in the finding itself."""
    keep(service, identity(LOG))
    client = Client(service)
    assert client.get(PATH).json == {"ranks": [{"rank": 0, "node": "node0", **LOG}]}
    assert "Killed" not in client.get(PATH.removesuffix("/log")).body.decode()
    assert client.get("/api/v1/findings/unknown/log").status == 404


def test_why_there_is_none(service: Service) -> None:
    """The agent says why; it says nothing; no dump was taken, or it was evicted."""
    client = Client(service)

    def said(by_agent: bytes | None, **changes: Any) -> Any:
        keep(service, by_agent, **changes)
        (rank,) = client.get(PATH).json["ranks"]
        assert (rank["path"], rank["lines"]) == ("", [])
        return rank["why"]

    why = "its stderr goes to pipe:[1]"
    assert said(identity({"path": "", "lines": [], "why": why})) == why
    assert said(b'{"rank": 0}') == "its agent has sent none"
    none = "no dump with it has been taken, or it is evicted"
    assert said(None) == none
    assert said(identity(LOG), dump=None) == none
    assert said(identity(LOG), dump="gone") == none


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 100_000,
        b"\xff",
        identity("text"),
        identity({**LOG, "lines": "text"}),
        identity({**LOG, "lines": [1]}),
        identity({**LOG, "path": None}),
    ],
)
def test_an_agent_that_sends_nonsense(service: Service, said: bytes) -> None:
    """It has sent no log."""
    keep(service, said)
    answer = Client(service).get(PATH)
    assert answer.status == 200
    assert answer.json["ranks"][0]["why"].startswith("its agent has sent none")


def test_hostile_lines(service: Service) -> None:
    """An agent is not believed to have cleaned them, nor to have sent few."""
    lines = ["\x1b]0;x\x07\x1b[31m<b>red</b>\x1b[0m\u202e", "y" * 1_000] * 50
    keep(service, identity({"path": "/a\x1b[2J\nb" * 99, "lines": lines, "why": "\x07no"}))
    (found,) = Client(service).get(PATH).json["ranks"]
    assert found["lines"] == ["<b>red</b>", "y" * 500] * 10
    assert (found["path"], found["why"]) == ("b", "no")


def test_only_operators_read_logs(service: Service, tmp_path: Path) -> None:
    """A reader's token gets the finding, and not what its ranks logged."""
    keep(service, identity(LOG))
    client = Client(service, WebOptions(Tokens(token_file(tmp_path))))
    assert isinstance(client._app, HttpGuard)
    for path in (PATH, PATH.replace("/log", "//log"), f"{PATH}\n"):  # %0A of a URL
        answer = client.get(path, "x=1", authorization=f"Bearer {READER}")
        assert (answer.status, "Killed" in answer.body.decode()) == (403, False)
    assert client.get(PATH).status == 401
    assert client.get(PATH, authorization=f"Bearer {OPERATOR}").json["ranks"][0]["lines"]
    finding_itself = client.get(PATH.removesuffix("/log"), authorization=f"Bearer {READER}")
    assert finding_itself.status == 200


def test_any_replica_of_a_cluster_answers(tmp_path: Path) -> None:
    """The dump is where it was taken: on frd-2, which has the job no more. That no replica has one
    is an answer, too."""
    with cluster(tmp_path, SCRIPTS) as made:
        path = f"/api/v1/findings/{CLOSED_C.id}/log"
        for name in made.members:
            (rank,) = made.ask(name, path).json["ranks"]
            assert rank["why"].startswith("no dump")
        keeper = made.members["frd-2"].service
        keep(keeper, identity(LOG), CLOSED_C.job, id=CLOSED_C.id)
        for name in made.members:
            (rank,) = made.ask(name, path).json["ranks"]
            assert rank["lines"] == LOG["lines"], name
        assert made.ask("frd-0", "/api/v1/findings/unknown/log").status == 404
        assert made.ask("frd-1", f"/api/v1/findings/{finding(1, A).id}/log").status == 200
