"""`frd findings ack`, `assign`, `note`, `silence`: what is sent, what is printed, and usage."""

from __future__ import annotations

import getpass
import json
import socket
import time

import pytest

from frd.cli import FAILED
from frd.cli.commands.findings.people import said_by
from frd.forms import utc_ns
from tests.unit.cli.shell import Shell
from tests.world.http_service import FINDING, Service

USAGE = 2
ME = f"{getpass.getuser()}@{socket.gethostname()}"[:100]
PATH = "/api/v1/findings/ab12"
OF_JOB = {"id": "s1", "job": "a\x1b[31m", "until": "2026-11-20T12:00:00Z"}
SILENCES = [
    {**OF_JOB, "by": "alice", "because": "moving"},
    {"id": "s2", "finding": "ab12", "until": "2026-11-20T13:00:00Z", "by": "bob", "because": ""},
]


def sent(service: Service) -> tuple[str, object]:
    """The last request."""
    path, body = service.asked[-1]
    return path, json.loads(body) if body else None


def test_acknowledging(service: Service, ask: Shell) -> None:
    """The beginning of an id is enough elsewhere, too; the service's refusal says who has it."""
    service.says(PATH, FINDING)
    service.says(f"{PATH}/ack", {**FINDING, "headline": "Rank 1 is stuck"})
    assert ask("findings", "ack", "ab12").out == "acknowledged ab12: Rank 1 is stuck\n"
    assert sent(service) == (f"{PATH}/ack", {"undo": False, "by": ME})
    printed = ask("findings", "ack", "ab12", "--undo").out
    assert printed == "took back the acknowledgement of ab12: Rank 1 is stuck\n"
    assert sent(service) == (f"{PATH}/ack", {"undo": True, "by": ME})
    service.says(f"{PATH}/ack", {"error": "finding: ab12: acknowledged already: by bob"}, 409)
    assert "by bob" in ask("findings", "ack", "ab12", code=FAILED).error


def test_assigning_and_noting(service: Service, ask: Shell) -> None:
    """Without a headline, the summary is shown; what the service says is escaped."""
    service.says(PATH, FINDING)
    service.says(f"{PATH}/assign", {**FINDING, "assigned_to": "bob\x1b[1m"})
    assert (
        ask("findings", "assign", "ab12", "bob").out == "assigned to bob\\x1b[1m: ab12: it hangs\n"
    )
    assert sent(service) == (f"{PATH}/assign", {"to": "bob", "by": ME})
    service.says(f"{PATH}/assign", FINDING)
    assert ask("findings", "assign", "ab12", "").out == "assigned to no one: ab12: it hangs\n"
    service.says(f"{PATH}/note", FINDING)
    assert ask("findings", "note", "ab12", "a disk").out == "noted: ab12: it hangs\n"
    assert sent(service) == (f"{PATH}/note", {"text": "a disk", "by": ME})
    assert ask("findings", "note", "ab12", "x", "--json").json == FINDING


def test_silencing(service: Service, ask: Shell) -> None:
    """For a time from now, or until a time; a finding, a job or a node."""
    service.says(PATH, FINDING)
    service.says(f"{PATH}/silence", {**FINDING, "silenced_until": "2026-11-20T12:00:00Z"})
    printed = ask("findings", "silence", "ab12", "--for", "2h").out
    assert printed == "silenced until 2026-11-20T12:00:00Z: ab12: it hangs\n"
    path, body = sent(service)
    assert path == f"{PATH}/silence"
    assert isinstance(body, dict)
    assert abs(utc_ns(body.pop("until")) - time.time_ns() - 7200e9) < 60e9
    assert body == {"because": "", "by": ME}
    service.says("/api/v1/silences", SILENCES[0], 201)
    words = ("--job", "a", "--until", "2026-11-20T12:00+01:00", "--because", "moving")
    printed = ask("findings", "silence", *words).out
    line = "s1  job a\\x1b[31m  until 2026-11-20T12:00:00Z by alice: moving\n"
    assert printed == f"silenced: {line}"
    expected = {"job": "a", "until": "2026-11-20T11:00:00.000000Z", "because": "moving", "by": ME}
    assert sent(service) == ("/api/v1/silences", expected)
    service.says("/api/v1/silences", {"api_version": 1, "silences": SILENCES})
    listed = ask("findings", "silence", "--list")
    assert listed.out == line + "s2  finding ab12  until 2026-11-20T13:00:00Z by bob\n"
    service.says("/api/v1/silences/s%2F1", SILENCES[0])
    assert ask("findings", "silence", "--end", "s/1").out == f"ended: {line}"
    service.says("/api/v1/silences", {"api_version": 1, "silences": []})
    assert ask("findings", "silence", "--list").out == "no silences\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "ID, --job, --node, --list, --end: write one of them"),
        (("ab12", "--job", "a"), "write one of them"),
        (("ab12",), "--for / --until: missing"),
        (
            ("ab12", "--for", "2x"),
            "'2x': write a time such as 2026-11-20T10:00:00Z, or 7d, 12h, 30m",
        ),
        (("--node", "n", "--until", "soon"), "'soon': write a time"),
    ],
)
def test_usage(words: tuple[str, ...], says: str, service: Service, ask: Shell) -> None:
    """Nothing is asked of the service."""
    assert says in ask("findings", "silence", *words, code=USAGE).error
    assert service.asked == []


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, the user id may have no name."""

    def getuser() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", getuser)
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 200)
    assert said_by() == f"unknown@{'h' * 92}"
