"""Log lines: one for each event, whatever peers call themselves."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from frd import logs

ODD = "node\n2026-01-01 forged\x1b[2J"


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_peer_can_forge_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An agent's host name holds a line break and an escape code: both are shown as text."""
    logs.configure("info", "text")
    logging.getLogger("frd").info("agent of %s connected", ODD)
    error = capsys.readouterr().err
    assert error.endswith(r"INFO frd: agent of node\n2026-01-01 forged\x1b[2J connected" + "\n")
    assert error.count("\n") == 1


def test_json_lines_carry_the_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON: one line, from which the name can be read back."""
    logs.configure("info", "json")
    logging.getLogger("frd").info("%s", ODD)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == ODD


def test_json_lines_are_whole_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault with its traceback is one line too, with the same keys as any other."""
    logs.configure("info", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("frd.service").exception("a fault")
    logging.getLogger("frd").debug("below the level")
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert logged.pop("exception").endswith("ValueError: two\nlines")
    assert logged.pop("ts").endswith("Z")
    assert logged == {"level": "error", "logger": "frd.service", "message": "a fault"}
