"""`frd demo`: real torch ranks, a real agent and a real service.

Most scenarios run in this process. What a user sees and ends is typed as a command, whose processes
have real starts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from frd.cli import run
from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import Stage
from frd.model import Finding
from frd.usage import INTERRUPTED
from tests.world.daemons import frd, get, run_program, running
from tests.world.verdicts import accused, versions
from tests.world.warm import Process, warm_parents
from tests.world.webhook import Receiver

pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Shorter than `tmp_path`: the path of a unix socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="frd-") as name:
        yield Path(name)


WITH_TORCH = ("missing_rank", "starved")
"""Scenarios that `make test` plays with real ranks; `test_missing_rank_shows_the_line` plays the
first."""
OF_MEMORY = ("memory", "oom")


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in OF_MEMORY:
        return [pytest.mark.alone, pytest.mark.soak]
    return [] if name == "starved" else [pytest.mark.soak]


Check = Callable[..., str]


@pytest.fixture
def check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Check:
    """Plays a scenario by the command, here in this process, so that its processes start warm;
    returns what it wrote to stderr. No other rank than those of the scenario is ever `high`."""
    monkeypatch.setattr(Stage, "Process", Process)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before, seen, stop = children(), list[Finding](), Stage.stop

    def look_and_stop(stage: Stage) -> None:
        if not stage.scenario.is_replicated:  # whose journal is no file
            seen.extend(versions(stage))
        stop(stage)

    monkeypatch.setattr(Stage, "stop", look_and_stop)

    def check(name: str, *arguments: str) -> str:
        code = run(["demo", "--scenario", name, "--json", *arguments])
        printed = capfd.readouterr()
        assert code == 0, printed
        findings = json.loads(printed.out)["findings"]
        expected = SCENARIOS[name].expected
        if expected is None:
            assert findings == []
        else:
            (finding,) = (f for f in findings if f["kind"] not in expected.other_kinds)
            assert sorted(s["rank"] for s in finding["suspects"]) == expected.suspects(4)
            assert finding["victims"] == expected.victims(4)
            assert (finding["state"] == "closed") == SCENARIOS[name].recovers
        assert accused(seen, SCENARIOS[name].suspects(4)) == []
        assert_nothing_is_left(folder)
        assert children() <= before
        return printed.err

    return check


def children() -> set[int]:
    """Of this process, except for warm parents."""
    numbers: set[int] = set()
    for of_thread in Path("/proc/self/task").glob("*/children"):
        numbers |= set(map(int, of_thread.read_text().split()))
    return numbers - warm_parents()


@pytest.mark.recorder
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SCENARIOS])
def test_scenario_names_the_injected_ranks(name: str, check: Check) -> None:
    """Every scenario ends with exit 0, its JSON names exactly the injected ranks, and afterwards no
    folder and no process of it remains."""
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(SCENARIOS).difference(WITH_TORCH, OF_MEMORY)))
def test_scripted_ranks_stand_in_for_torch(name: str, check: Check) -> None:
    """Where torch is absent, scripted ranks take its place and the truth is the same."""
    assert "scripted" in check(name, "--scripted")


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.glob("frd-demo-*")) == []
    assert str(folder) not in run_program(["ps", "-eo", "args"], check=True).stdout


@contextmanager
def kept(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`frd demo --keep` with scripted ranks."""
    command = [sys.executable, "-m", "frd", "demo", "--keep", "--scripted", *options]
    with running(command, env={"TMPDIR": str(folder)}, stderr=subprocess.PIPE) as demo:
        yield demo


def lines_until(stream: IO[str] | None, last: str) -> list[str]:
    assert stream is not None
    lines: list[str] = []
    while last not in (lines or [""])[-1]:
        lines.append(stream.readline())
        assert lines[-1], lines  # not at its end
    return [line.rstrip("\n") for line in lines]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_kept_demo_runs_until_a_signal(number: signal.Signals, folder: Path) -> None:
    """The finding is there and its page has an address; service and job go on until Ctrl-C, SIGTERM
    or the end of the terminal, which leaves nothing, with exit code 0. Signals that follow do not
    disturb the cleaning up."""
    with kept(folder) as demo:
        *shown, ending = lines_until(demo.stdout, "Ctrl-C")
        assert ending == "service, agent and job run until Ctrl-C"
        page = re.fullmatch(r"page: http://(127\.0\.0\.1:\d+)/", shown[-3])
        assert page
        (finding,) = get(page[1], "/api/v1/findings?state=open")["findings"]
        assert shown[-1] == f"commands: export FRD_HTTP={page[1]}"
        assert shown[-2] == f"finding: http://{page[1]}/findings/{finding['id']}"
        assert Client(page[1]).has_page()
        assert get(page[1], f"/api/v1/jobs/{finding['job']}")["ranks"][2]["state"] == "live"
        for _ in range(3):
            demo.send_signal(number)
        assert demo.wait(30) == 0
    assert_nothing_is_left(folder)


def test_a_kept_demo_for_programs(folder: Path) -> None:
    """Standard output is the JSON object with the page's address; what people read is on standard
    error, from the start of the service on."""
    with kept(folder, "--json") as demo:
        said = lines_until(demo.stderr, "Ctrl-C")
        demo.terminate()
        answer = json.loads(demo.communicate(timeout=30)[0])
        assert demo.returncode == 0
    assert answer["matched"] is True
    assert said.count(f"page: {answer['page']}") == 2
    assert said[-3] == f"finding: {answer['page']}findings/{answer['findings'][0]['id']}"
    assert_nothing_is_left(folder)


def test_a_demo_that_is_ended_early_leaves_nothing(folder: Path) -> None:
    """SIGTERM while the ranks start: the exit code is that of Ctrl-C."""
    with kept(folder) as demo:
        lines_until(demo.stderr, "the ranks start")
        demo.terminate()
        assert demo.wait(30) == INTERRUPTED
    assert_nothing_is_left(folder)


@pytest.mark.recorder
def test_missing_rank_shows_the_line(folder: Path) -> None:
    """The default scenario shows a person the stuck rank and the line in which it is stuck; the
    page has an address while the demo runs. The first message of a webhook has the line, too."""
    with Receiver() as chat:
        notify = json.dumps([{"url": chat.url}])
        result = frd("demo", env=os.environ | {"TMPDIR": str(folder), "FRD_NOTIFY": notify})
    assert chat.received[0]["event"] == "opened"
    assert re.search(r"missing_rank\.py:\d+ load_batch", chat.received[0]["summary"])
    assert re.search(r"^page: http://127\.0\.0\.1:\d+/$", result.stderr, re.MULTILINE)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "rank 2" in result.stdout
    assert "in load_batch" in result.stdout
    assert "frd_suspect{" in result.stdout
    assert "frd dump" not in result.stdout  # of a service that is gone
    assert result.stdout.splitlines()[-1].startswith("next: `frd up` here, and in another")
    assert_nothing_is_left(folder)
