"""`frd findings`: exit codes, what is watched, one finding, closing by hand, terminals, pipes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from frd.cli import BLIND, FAILED, FINDINGS_PRESENT
from frd.cli.commands.findings.people import said_by
from frd.cli.screens.records import watching_text
from tests.unit.cli.shell import Shell
from tests.world.daemons import run_program, until
from tests.world.http_service import (
    BLIND_NOW,
    ENDED,
    FINDING,
    GONE,
    Service,
    answer,
    jobs_answer,
    says_status,
)


def test_findings_present_is_exit_3(service: Service, ask: Shell) -> None:
    """The exit code alone is enough for a script; the last line says what is watched."""
    service.says("/api/v1/findings?state=open", answer())
    said = "no findings\nwatching 1 job, 4 ranks, 2 agents; last heard 0.4 s ago\n"
    assert ask.drawn("findings").out == said
    service.says("/api/v1/findings?state=open", answer(FINDING, watching=BLIND_NOW))
    text = ask.drawn("findings", code=FINDINGS_PRESENT, columns=100).out
    assert "it hangs" in text
    assert text.splitlines()[-2:] == [
        f"blind: {GONE}",
        "watching 1 job, 2 ranks, 1 agent; last heard 0.4 s ago",
    ]


def test_closed_by_hand_and_going_on_is_exit_3(service: Service, ask: Shell) -> None:
    """The list, the finding itself and the status say that it goes on; once it is over, the code
    is 0."""
    said = "closed by hand: a known pause"
    going_on = {**FINDING, "state": "closed", "close_reason": said, "goes_on": True}
    says_status(service, findings=[going_on])
    service.says("/api/v1/findings?state=open", answer(going_on))
    assert f"{said}, goes on" in ask.drawn("findings", code=FINDINGS_PRESENT).out
    assert ask("findings", code=FINDINGS_PRESENT).out.split("\t")[2] == "goes on"
    service.says("/api/v1/findings/ab12", going_on)
    assert f"{said}, goes on" in ask("findings", "ab12", code=FINDINGS_PRESENT).out
    assert f"{said}, goes on: " in ask.drawn("status").out
    service.says("/api/v1/findings/ab12", {**going_on, "goes_on": False})
    assert "goes on" not in ask("findings", "ab12").out


def test_a_report_is_what_the_service_writes(service: Service, ask: Shell, tmp_path: Path) -> None:
    """As it comes, on stdout or in a file."""
    service.says("/api/v1/findings/ab12", FINDING)
    service.says("/api/v1/findings/ab12?format=markdown", b"# Rank 1 \xc3\xa9\n")
    assert ask("report", "ab12").out == "# Rank 1 é\n"
    ask("report", "ab12", "-o", str(tmp_path / "incident.md"))
    assert (tmp_path / "incident.md").read_text("utf-8") == "# Rank 1 é\n"


def test_blind_is_exit_4(service: Service, ask: Shell) -> None:
    """No findings while an agent is gone: the output says why, and so does the code."""
    service.says("/api/v1/findings?state=open", answer(watching=BLIND_NOW))
    assert ask.drawn("findings", code=BLIND).lines[:2] == [
        "no findings, but frd does not see everything",
        f"blind: {GONE}",
    ]
    assert ask("findings", "--json", code=BLIND).json["watching"]["blind"] == [GONE]


def test_warnings_are_shown(service: Service, ask: Shell) -> None:
    """What the service warns of comes before what it watches; it is no finding."""
    warning = {"job": "train", "text": "two running jobs on vm are called train"}
    service.says("/api/v1/findings?state=open", answer(warnings=[warning]))
    assert "\nwarning: two running jobs on vm are called train\nwatching" in ask("findings").err


def test_an_idle_agent_is_not_silent() -> None:
    """A connected agent without ranks reports nothing; one that is gone was heard some time ago."""
    watching = {"jobs": 0, "ranks": 0, "agents": 1, "last_heard_s": 1200.0, "blind": []}
    assert watching_text(watching) == "watching 0 jobs, 0 ranks, 1 agent"
    gone = watching_text({**watching, "agents": 0})
    assert gone == "watching 0 jobs, 0 ranks, 0 agents; last heard 20 min ago"


def test_an_unknown_job_is_an_error(service: Service, ask: Shell) -> None:
    """A typo must not read as all is well; a job of which only old findings are left is known."""
    says_status(service, ENDED)
    for name in ("typo", "gone"):
        service.says(f"/api/v1/findings?job={name}&state=open", answer())
    service.says("/api/v1/findings?job=typo&limit=1", answer())
    service.says("/api/v1/findings?job=gone&limit=1", answer({**FINDING, "job": "gone"}))
    for command in ("findings", "status"):
        error = ask(command, "--job", "typo", code=FAILED).error
        assert "job: 'typo': unknown to this service: it knows 'a/b', 'old'" in error
    ask("findings", "--job", "gone")
    service.says("/api/v1/jobs", jobs_answer())
    assert "it has seen no job yet" in ask("findings", "--job", "typo", code=FAILED).err


def test_findings_as_json_are_the_services_own(service: Service, ask: Shell) -> None:
    """--all asks for closed ones too, --job is passed on, and nothing is reshaped."""
    service.says("/api/v1/findings?job=a%2Fb", answer(FINDING))
    printed = ask("findings", "--all", "--job", "a/b", "--json", code=FINDINGS_PRESENT)
    assert printed.json == answer(FINDING)


def test_findings_since(service: Service, ask: Shell) -> None:
    """Closed ones too."""
    since = "since=2026-11-20T00%3A00%3A00.000000Z"
    service.says(f"/api/v1/findings?{since}", answer({**FINDING, "state": "closed"}))
    ask("findings", "--since", "2026-11-20", code=FINDINGS_PRESENT)


def test_one_finding_by_id(service: Service, ask: Shell, shell: Shell) -> None:
    """The id or the beginning of it, options before or behind; exit 3 while it is open."""
    service.says("/api/v1/findings/ab12", FINDING)
    for words in (("ab12",), ("show", "ab12")):
        text = ask("findings", *words, code=FINDINGS_PRESENT).out
        assert "it hangs" in text
        assert "opened 2026-11-20 10:00:00 UTC" in text
    printed = shell("findings", "--http", service.address, "ab12", "--json", code=FINDINGS_PRESENT)
    assert printed.json == FINDING
    long = {**FINDING, "id": "ab12cd34ef567890", "state": "closed"}
    service.says(
        "/api/v1/findings?limit=10000", answer(long, {**FINDING, "id": "ab99cd34ef567890"})
    )
    assert ask("findings", "ab12c", "--json").json == long
    for unknown in ("ab1", "zzzz"):
        says = f"frd: error: finding: '{unknown}': unknown: list them with `frd findings --all`\n"
        assert ask("findings", unknown, code=FAILED).error == says
    for typed, meant in (("ab12cd34ef567891", long["id"]), ("exprot", "export")):
        assert f", did you mean {meant}" in ask("findings", typed, code=FAILED).error


def test_one_finding_ends_in_the_address_of_its_page(service: Service, ask: Shell) -> None:
    """Only for people, and only if the service has the page."""
    odd = {**FINDING, "id": "a/b ?"}
    service.says("/api/v1/findings/a%2Fb%20%3F", odd)
    assert "page:" not in ask("findings", "a/b ?", code=FINDINGS_PRESENT).out
    service.says("/", b"<!doctype html>")
    last = ask("findings", "a/b ?", code=FINDINGS_PRESENT).lines[-1]
    assert last == f"page: http://{service.address}/findings/a%2Fb%20%3F"
    assert ask("findings", "a/b ?", "--json", code=FINDINGS_PRESENT).json == odd


def test_what_a_suspect_logged_last(service: Service, ask: Shell) -> None:
    """Or why there is nothing; and nothing that a log says reaches the terminal as it is."""
    log = {"rank": 1, "node": "node7", "path": "/logs/1.err", "lines": ["Killed\x07"], "why": ""}
    none = {"rank": 2, "node": "node7", "path": "", "lines": [], "why": "its process is gone"}
    service.says("/api/v1/findings/ab12", FINDING)
    service.says("/api/v1/findings/ab12/log", {"ranks": [log, none]})
    assert ask("findings", "ab12", "--log", code=FINDINGS_PRESENT).lines == [
        "==> rank 1 on node7: /logs/1.err",
        "Killed\\x07",
        "==> rank 2 on node7: its process is gone",
    ]
    printed = ask("findings", "ab12", "--log", "--json", code=FINDINGS_PRESENT)
    assert printed.json == {"ranks": [log, none]}


def test_the_beginning_of_an_id_must_be_of_one_only(service: Service, ask: Shell) -> None:
    """Two findings begin alike: both are named, and none is closed."""
    twins = [{**FINDING, "id": f"abcd{n}"} for n in range(2)]
    service.says("/api/v1/findings?limit=10000", answer(*twins))
    error = ask("findings", "close", "abcd", "--because", "x", code=FAILED).error
    assert "finding: 'abcd': 2 ids begin with it: write more of it: abcd0, abcd1" in error


def test_closing_by_hand(service: Service, ask: Shell) -> None:
    """The reason is sent."""
    service.says("/api/v1/findings/ab12", FINDING)
    service.says("/api/v1/findings/ab12/close", {**FINDING, "state": "closed"})
    closed = ask("findings", "close", "ab12", "--because", "a known pause")
    path, body = service.asked[-1]
    assert path == "/api/v1/findings/ab12/close"
    assert json.loads(body) == {"because": "a known pause", "by": said_by()}
    assert closed.out == "closed ab12: it hangs\n"


def looked_again(service: Service) -> None:
    """The watch has seen what the service says now."""
    first = len(service.asked)
    until(lambda: len(service.asked) > first + 1, "two more looks")


def test_a_watch_into_a_pipe_tells_each_change_once(service: Service) -> None:
    """A new finding is a line, its closing another, going blind a third; a longer wait is not. An
    interrupt ends the watch well."""
    service.says("/api/v1/findings?state=open", answer(FINDING))
    old = {**FINDING, "id": "old", "state": "closed"}
    service.says("/api/v1/findings", answer(FINDING, old))
    watch = subprocess.Popen(
        [sys.executable, "-m", "frd", "findings", "--watch", "--json", "--http", service.address],
        stdout=subprocess.PIPE,
    )
    with watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline()) == FINDING
        lasts = {**FINDING, "summary": "it hangs for 3 s"}
        service.says("/api/v1/findings", answer(lasts, old))
        looked_again(service)
        closed = {**FINDING, "state": "closed"}
        service.says("/api/v1/findings", answer(closed, old, watching=BLIND_NOW))
        assert json.loads(watch.stdout.readline()) == closed
        assert json.loads(watch.stdout.readline()) == {"watching": BLIND_NOW}
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 0
        assert watch.stdout.read() == b""


LONG = {
    **FINDING,
    "severity": "critical",
    "job": "a\tb\nc",
    "suspects": [{"rank": 1, "node": "node7", "reason": "cpu_stuck", "confidence": "high"}],
    "headline": "Rank 1 (node7): its loader worker is stuck in open(" + "/data" * 40 + ")",
    "acknowledged_by": "ann",
}


def test_in_a_pipe_a_finding_is_a_line(service: Service) -> None:
    """A real pipe: columns separated by tabs, whatever is in them, nothing cut or wrapped; what is
    no finding goes to stderr."""
    service.says("/api/v1/findings?state=open", answer(LONG, FINDING))
    command = [sys.executable, "-m", "frd", "findings", "--http", service.address]
    done = run_program(command, env=os.environ | {"COLUMNS": "40"})
    assert done.returncode == FINDINGS_PRESENT
    headline = str(LONG["headline"])
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["ab12", "stall", "open", "critical", "3 min", r"a\tb\nc", "1", headline],
        ["ab12", "stall", "open", "", "3 min", "train", "", "it hangs"],
    ]
    assert done.stderr == "watching 1 job, 4 ranks, 2 agents; last heard 0.4 s ago\n"


def test_other_forms(service: Service, ask: Shell) -> None:
    """Ids alone for scripts, more columns for people, the service's own JSON."""
    found = answer(LONG, FINDING)
    service.says("/api/v1/findings?state=open", found)
    code = FINDINGS_PRESENT
    assert ask("findings", "-o", "name", code=code).out == "ab12\nab12\n"
    assert ask("findings", "-o", "json", code=code).json == found
    first = ask("findings", "-o", "wide", code=code).lines[0].split("\t")
    assert first[8:] == ["node7", "", "ann", "", ""]
    head, *rows = ask.drawn("findings", "-o", "wide", code=code).lines[:3]
    assert head.split()[:5] == ["id", "kind", "state", "severity", "age"]
    assert {row.index("stall") for row in rows} == {head.index("kind")}


def test_a_watch_into_a_pipe_prints_what_people_care_for(service: Service) -> None:
    """Opened, then critical, then acknowledged: a line each; a longer wait is not."""
    service.says("/api/v1/findings?state=open", answer())
    service.says("/api/v1/findings", answer())
    watch = subprocess.Popen(
        [sys.executable, "-m", "frd", "findings", "--watch", "-o", "wide"],
        env=os.environ | {"FRD_HTTP": service.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    finding = {**FINDING, "severity": "warning"}
    seen = []
    with watch:
        assert watch.stdout is not None
        for news in ({}, {"severity": "critical"}, {"acknowledged_by": "ann"}):
            finding |= news
            service.says("/api/v1/findings", answer({**finding, "effect": "for 1 s"}))
            seen.append(watch.stdout.readline().split("\t"))
            service.says("/api/v1/findings", answer({**finding, "effect": "for 2 s"}))
            looked_again(service)
        watch.send_signal(signal.SIGINT)
        assert watch.stdout.read() == ""
    assert [(row[3], row[10]) for row in seen] == [
        ("warning", ""),
        ("critical", ""),
        ("critical", "ann"),
    ]


def test_a_command_on_a_terminal_is_one_line(service: Service, ask: Shell) -> None:
    """It is longer than the window, and neither broken nor cut."""
    command = "kubectl exec --namespace ml trainer-0 -- py-spy dump --pid 7 " + "x" * 100
    step = {"text": "Look at its stack.", "command": command}
    service.says("/api/v1/findings?state=open", answer({**FINDING, "do_now": [step]}))
    lines = ask.drawn("findings", code=FINDINGS_PRESENT).lines
    assert command in [line.strip() for line in lines]


def on_a_terminal(service: Service, rows: int, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command in a window of 100 columns; what it shows is read from the descriptor."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
    command = [sys.executable, "-m", "frd", *words, "--http", service.address]
    environment = os.environ | {"TERM": "xterm-256color"}
    for size in ("LINES", "COLUMNS"):  # they would speak for the window
        environment.pop(size, None)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    return process, ours


def shown(terminal: int, until: bytes) -> str:
    """All that came up to `until`."""
    got = b""
    while until not in got:
        got += os.read(terminal, 65536)
    return got.decode()


def test_a_terminal_shows_the_newest_last(service: Service) -> None:
    """In colour, the newest finding next to the prompt; in a pipe it comes first."""
    newer = {**FINDING, "id": "cd34", "opened_at": "2026-11-20T10:02:00.000000Z"}
    service.says("/api/v1/findings?state=open", answer(newer, FINDING))
    process, terminal = on_a_terminal(service, 50, "findings")
    text = shown(terminal, b"last heard 0.4 s ago")
    assert process.wait(20) == FINDINGS_PRESENT
    os.close(terminal)
    assert text.index("ab12") < text.index("cd34")
    assert "\x1b[1;31m" in text
    piped = run_program([sys.executable, "-m", "frd", "findings", "--http", service.address])
    assert [line.split("\t")[0] for line in piped.stdout.splitlines()] == ["cd34", "ab12"]
    assert "\x1b" not in piped.stdout


@pytest.mark.parametrize("command", ["findings", "status"])
def test_a_live_picture_keeps_its_last_line(service: Service, command: str) -> None:
    """A low window cuts what is long and says so, but never the line of what is watched; when the
    service goes away the picture stays, and says that it is old."""
    says_status(service)
    process, terminal = on_a_terminal(service, 8, command, "--watch")
    try:
        text = shown(terminal, b"last heard 0.4 s ago")
        snapshot = text.partition("last heard 0.4 s ago")[0]  # the first of several
        assert "more lines: enlarge the window" in snapshot
        assert len(snapshot.splitlines()) <= 8
        service.stop()
        shown(terminal, b"nothing listens there")
        shown(terminal, b"is old")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
