"""The first minute of five incidents, as the engineer on call has it: the message, the page, the
terminal, and the commands that can be pasted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from frd.cli import FINDINGS_PRESENT
from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.e2e.web.browser import Watched, overflow_px
from tests.world.daemons import Stage, finding_with, findings, metric, until
from tests.world.terminal import on_terminal
from tests.world.webhook import Receiver

pytestmark = [
    pytest.mark.torch,
    pytest.mark.recorder,
    pytest.mark.soak,
    pytest.mark.xdist_group("web"),  # one Chromium for all
]
HELD_S: Final = 5.0
"""How long a message waits for what was asked."""
SENT_WITHIN_S: Final = 1.0
"""From the decision to the receiver, with an evaluation between."""
SIZES: Final = ((1280, 800), (390, 844))
ELSEWHERE: Final = ("ssh", "kubectl", "scontrol")
"""Commands that need another host: a recorder takes their place."""


@dataclass(frozen=True, slots=True)
class Incident:
    scenario: str
    headline: str
    """A pattern of the whole."""
    said: tuple[str, ...]
    """Patterns that the first message has: line, wait."""
    commands: tuple[str, ...]
    """Patterns of commands of do-now."""
    key: str = "suspects"
    """Of the finding, present when it is complete."""


INCIDENTS: Final = (
    Incident(
        "starved",
        r"Rank 2 \(\S+\): its loader worker .*shard-17\.tar.*",
        (r"starved\.py:\d+", r"shard-17\.tar"),
        (r"^ls -l \S*shard-17\.tar$",),
    ),
    Incident("killed", r"Rank 2 \(\S+\) was killed by SIGKILL.*", (r"SIGKILL",), ()),
    Incident(
        "wrong_order", r"Ranks 0.1 .*order.*", (r"wrong_order\.py:\d+",), (r"^frd findings ",)
    ),
    Incident("memory", r"Rank 2 \(\S+\): .*host memory.*", (r"host memory",), ()),
)


@contextlib.contextmanager
def incident(scenario: str) -> Iterator[tuple[Stage, Client, Receiver]]:
    """A job of the demo, its service with a receiver of messages, and its agent."""
    with Receiver() as chat, Stage(SCENARIOS[scenario], 3, 3.0) as stage:
        service = stage.start_service(environment={"FRD_NOTIFY": json.dumps([{"url": chat.url}])})
        stage.start_agent(service)
        stage.start_job()
        yield stage, Client(service.http), chat


def once(text: str, cause: str) -> None:
    """The cause is on it, and is not said twice."""
    assert text.count(cause) == 1, f"{text.count(cause)} times {cause!r}:\n{text}"


@pytest.mark.parametrize("case", INCIDENTS, ids=lambda case: case.scenario)
def test_the_first_minute(case: Incident, watched: Watched, tmp_path: Path) -> None:
    """The first message comes at most 5 s after the finding has opened, with headline, line, wait
    and do-now. The first screen of page and terminal has headline, effect and do-now, and the cause
    once. What can be pasted works."""
    with incident(case.scenario) as (stage, client, chat):
        if SCENARIOS[case.scenario].signal is not None:
            until(lambda: _matched(client) > 50, "a job that trains")
            stage.inject()
        finding = finding_with(client, case.key)
        the_message(case, chat)
        finding = until(lambda: _whole(client, finding["id"]), "do-now")
        assert re.fullmatch(case.headline, finding["headline"]), finding["headline"]
        assert len(finding["headline"]) <= 100
        the_terminal(client, finding)
        the_page(watched, client, finding)
        the_commands(case, client, finding, tmp_path)
        watched.page.goto("about:blank")  # before the service ends


def _matched(client: Client) -> float:
    """Collectives that jobs have completed."""
    return metric(client.url.removeprefix("http://"), "frd_collectives_matched_total")


def _whole(client: Client, finding_id: str) -> Any:
    one = client.get(f"/api/v1/findings/{finding_id}")
    return one if one.get("do_now") and one.get("headline") else None


def the_message(case: Incident, chat: Receiver) -> None:
    until(lambda: chat.received, "a message")
    message, came_at = chat.received[0], chat.times[0]
    finding = message["finding"]
    assert message["event"] == "opened"
    waited_s = came_at - _epoch(finding["opened_at"])
    assert waited_s < HELD_S + SENT_WITHIN_S, f"{waited_s:.1f} s"
    said = json.dumps(message)
    assert re.fullmatch(case.headline, message["headline"]), message["headline"]
    for pattern in case.said:
        assert re.search(pattern, said), pattern
    assert message["do_now"]
    assert message["effect"]


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def the_terminal(client: Client, finding: Mapping[str, Any]) -> None:
    """80 columns and 24 lines."""
    lines = on_terminal("findings", "--http", client.url.removeprefix("http://"))
    assert max(map(len, lines)) <= 80 or any(
        step.get("command", "") in line for step in finding["do_now"] for line in lines
    )
    screen = " ".join(" ".join(lines[:24]).replace("│", " ").split())
    once(screen, finding["headline"])
    assert finding["effect"].split(" for ")[0] in screen
    for step in finding["do_now"]:
        if step.get("command"):
            assert any(step["command"] in line for line in lines), step["command"]


def the_page(watched: Watched, client: Client, finding: Mapping[str, Any]) -> None:
    """Overview and finding, on a wide screen and on a telephone, without scrolling."""
    address = client.url.removeprefix("http://")
    for width, height in SIZES:
        watched.page.set_viewport_size({"width": width, "height": height})
        for path in ("/", f"/findings/{finding['id']}"):
            page = watched.open(address, path)
            headline = page.get_by_text(finding["headline"], exact=False).first
            expect(headline).to_be_visible()
            shown = on_first_screen(page, height)
            once(shown, finding["headline"])
            assert finding["effect"].split(" for ")[0] in shown
            assert finding["do_now"][0]["text"] in shown
            assert overflow_px(page) <= 0
            picture(page, finding, path, width)


def on_first_screen(page: Page, height: int) -> str:
    """The text of all that is visible without scrolling."""
    text: str = page.evaluate(
        """(height) => {
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const said = [];
          while (walker.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(walker.currentNode);
            const box = range.getBoundingClientRect();
            const seen = walker.currentNode.parentElement.checkVisibility();
            if (seen && box.height > 0 && box.top < height)
              said.push(walker.currentNode.textContent);
          }
          return said.join(" ");
        }""",
        height,
    )
    return " ".join(text.split())


def picture(page: Page, finding: Mapping[str, Any], path: str, width: int) -> None:
    """Kept in the folder that FRD_TEST_PICTURES names."""
    if folder := os.environ.get("FRD_TEST_PICTURES"):
        name = f"{finding['kind']}-{'finding' if len(path) > 1 else 'overview'}-{width}"
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(700)
            page.screenshot(path=Path(folder) / f"{name}-{scheme}.png")


def the_commands(case: Incident, client: Client, finding: Mapping[str, Any], folder: Path) -> None:
    """Each is pasted into a shell that knows the service. Those that need another host reach a
    recorder, with exactly the arguments that the API gives."""
    steps = [step for step in finding["do_now"] if step.get("command")]
    commands = [step["command"] for step in steps]
    for pattern in case.commands:
        assert any(re.search(pattern, command) for command in commands), (pattern, commands)
    record = folder / "record"
    for name in ELSEWHERE:
        script = folder / name
        script.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(record)!r}, 'w').write(json.dumps(['{name}', *sys.argv[1:]]))\n"
        )
        script.chmod(0o755)
    environment = os.environ | {"FRD_HTTP": client.url}
    environment["PATH"] = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in steps:
        assert shlex.split(step["command"]) == step["args"]
        done = subprocess.run(
            ["bash", "-c", step["command"]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        may_end = (0, FINDINGS_PRESENT) if step["args"][0] == "frd" else (0,)
        assert done.returncode in may_end, (step, done.stderr)
        if step["args"][0] in ELSEWHERE:
            assert json.loads(record.read_text()) == step["args"]


def test_an_interrupt_of_a_healthy_job(watched: Watched) -> None:
    """Ctrl-C reaches all ranks: no finding, no message, nothing red, and the job has ended."""
    with incident("healthy") as (stage, client, chat):
        until(lambda: _matched(client) > 50, "a job that trains")
        page = watched.open(client.url.removeprefix("http://"))
        for rank in stage.ranks:
            os.killpg(rank.pid, signal.SIGINT)
        until(lambda: client.get("/api/v1/jobs")["jobs"][0].get("ended"), "its end")
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_contain_text("No open findings", timeout=10_000)
        expect(page.locator(".bad")).to_have_count(0, timeout=10_000)
        assert findings(client) == []
        lines = on_terminal("findings", "--http", client.url.removeprefix("http://"))
        assert "no findings" in " ".join(lines)
        assert chat.received == []
        page.goto("about:blank")
