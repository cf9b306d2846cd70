"""`frd notify test`: a message to one webhook, and its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.shell import Shell
from tests.world import receivers
from tests.world.daemons import free_port
from tests.world.webhook import Receiver

KEY = "0123456789abcdef0123456789ABCDEF"


def config(folder: Path, receiver: Receiver) -> Path:
    (folder / "key").write_text(KEY)
    targets = {
        "hook": "",
        "chat": 'format = "slack"',
        "team": 'format = "teams"',
        "pager": f'format = "pagerduty"\nrouting_key_file = "{folder}/key"',
    }
    path = folder / "frd.toml"
    path.write_text(
        "\n".join(
            f'[[notify]]\nname = "{name}"\nurl = "{receiver.url}"\n{more}'
            for name, more in targets.items()
        )
    )
    return path


@pytest.mark.parametrize("name", ["hook", "chat", "team"])
def test_a_message_that_is_accepted(shell: Shell, tmp_path: Path, name: str) -> None:
    """It says that it is a test, and what to do is nothing; the answer and its time are printed."""
    with Receiver() as receiver:
        out = shell("notify", "test", name, "--config", config(tmp_path, receiver)).out
    (message,) = receiver.received
    assert out.startswith(f"notify {name}: HTTP 200 after 0.")
    assert out.endswith(" s: accepted\n")
    if name == "hook":
        assert (message["event"], "do_now" in message) == ("test", False)
    text: Any = {"hook": lambda: message["summary"], "chat": lambda: message["text"]}
    said = text.get(name, lambda: " ".join(receivers.texts(message)))()
    assert "Test of frd: nothing is wrong" in said


def test_an_alert_that_ends(shell: Shell, tmp_path: Path) -> None:
    """PagerDuty opens an alert that says that it is a test, and resolves it."""
    with Receiver(check=receivers.pagerduty) as receiver:
        out = shell("notify", "test", "pager", "--config", config(tmp_path, receiver)).out
    assert len(out.splitlines()) == 2
    trigger, resolve = receiver.received
    assert trigger["payload"]["summary"] == "test: Test of frd: nothing is wrong"
    assert resolve["event_action"] == "resolve"
    assert resolve["dedup_key"] == trigger["dedup_key"]


def test_a_message_that_is_refused(shell: Shell, tmp_path: Path) -> None:
    """The exit code is 1; neither the URL nor the routing key is printed."""
    with Receiver() as receiver:
        path, receiver.status = config(tmp_path, receiver), 404
        error = shell("notify", "test", "pager", "--config", path, code=1).error
    assert error.startswith("frd: error: notify pager: HTTP 404 after 0.")
    receiver.port = free_port()
    down = shell("notify", "test", "chat", "--config", config(tmp_path, receiver), code=1).error
    assert down.startswith("frd: error: notify chat: Connection refused after 0.")
    assert not any(secret in error + down for secret in ("s3cret", KEY))


def test_a_name_that_is_not_configured(shell: Shell, tmp_path: Path) -> None:
    """The error has the names that are."""
    with Receiver() as receiver:
        path = config(tmp_path, receiver)
        error = shell("notify", "test", "chaat", "--config", path, code=2).error
        assert "notify: 'chaat': not configured: known are hook, chat, team, pager" in error
        path.write_text("")
        assert "add a [[notify]] section" in shell("notify", "test", "x", code=2).error
    assert receiver.asked == 0


def test_a_key_that_cannot_be_one(shell: Shell, tmp_path: Path) -> None:
    """The routing key is checked before anything is sent, and not printed."""
    with Receiver() as receiver:
        path = config(tmp_path, receiver)
        (tmp_path / "key").write_text("s3cret")
        error = shell("notify", "test", "pager", "--config", path, code=2).error
    assert "notify pager: routing_key_file: " in error
    assert "not 32 letters and digits" in error
    assert (receiver.asked, "s3cret" in error) == (0, False)
