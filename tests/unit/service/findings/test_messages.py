"""Messages as Slack, Teams and PagerDuty take them, sent to a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from frd.config import NotifyTarget
from frd.model import Confidence
from tests.world.daemons import until
from tests.world.notified import Scene
from tests.world.webhook import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def test_a_chat_gets_text_with_suspects_and_a_command(tmp_path: Path, receiver: Receiver) -> None:
    """Slack's form; characters that would be a mention or a link are escaped."""
    target = NotifyTarget(
        url=receiver.url, format="slack", on=("opened",), runbook_url="https://wiki/frd/"
    )
    scene = Scene(tmp_path, target)
    scene.hang()
    (event,) = scene.published
    hostile = replace(event.finding, id="f2", job="<!channel>")
    scene.send([replace(event, finding=hostile)])
    until(lambda: len(receiver.received) == 2, "two messages")
    scene.close()
    texts = [message["text"] for message in receiver.received]
    assert [list(message) for message in receiver.received] == [["text"]] * 2
    assert event.finding.summary in texts[0]
    assert "• rank 2 on " in texts[0]
    assert f"`frd findings {event.finding.id}`" in texts[0]
    assert texts[0].splitlines()[-2:] == [
        f"http://127.0.0.1:9374/findings/{event.finding.id}",
        "https://wiki/frd/FrdCollectiveStalled.md",
    ]
    assert "<!channel>" not in texts[1]
    assert "&lt;!channel&gt;" in texts[1]


def test_a_chat_gets_equally_likely_suspects_in_one_line(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Ranks 0 and 1 of a circle, and what each of them left out; JSON has both."""
    scene = Scene(tmp_path, NotifyTarget(url=receiver.url, format="slack", on=("opened",)))
    scene.hang()
    (event,) = scene.published
    suspects = tuple(
        replace(event.finding.suspects[0], rank=rank, confidence=Confidence.MEDIUM, evidence=words)
        for rank, words in enumerate(("is in a", "is in b"))
    )
    scene.send([replace(event, finding=replace(event.finding, id="f2", suspects=suspects))])
    until(lambda: len(receiver.received) == 2, "two messages")
    scene.close()
    lines = receiver.received[1]["text"].splitlines()
    (line,) = (line for line in lines if line.startswith("• "))
    assert line.startswith("• ranks 0-1 (cpu_stuck, confidence medium): rank 0")
    assert "is in a; rank 1" in line


@pytest.mark.parametrize("form", ["json", "slack"])
def test_without_the_page_messages_lead_to_the_runbook_only(
    form: Literal["json", "slack"], tmp_path: Path, receiver: Receiver
) -> None:
    """The page is switched off: no message links to it."""
    target = NotifyTarget(url=receiver.url, format=form, on=("opened",))
    scene = Scene(tmp_path, target, has_pages=False)
    scene.hang()
    until(lambda: receiver.received, "a message")
    scene.close()
    text = json.dumps(receiver.received)
    assert "http://127.0.0.1:9374/runbooks/FrdCollectiveStalled.md" in text
    assert "9374/findings/" not in text
    assert "page_url" not in text
