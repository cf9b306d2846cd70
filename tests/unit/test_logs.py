"""Log lines: one for each event, whatever peers call themselves; and what systemd hears."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd import logs, usage
from frd.logs import READY, STOPPING, notifier
from frd.usage import priority

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


def test_json_lines_are_whole_objects(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault with its traceback is one line too, from which an odd name can be read back."""
    logs.configure("info", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("frd.service").exception("a fault of %s", ODD)
    logging.getLogger("frd").debug("below the level")
    (line,) = capsys.readouterr().err.splitlines()
    logged = json.loads(line)
    assert logged.pop("exception").endswith("ValueError: two\nlines")
    assert logged.pop("ts").endswith("Z")
    assert logged == {"level": "error", "logger": "frd.service", "message": f"a fault of {ODD}"}


# -- systemd's journal ---------------------------------------------------------------------------


@contextmanager
def journal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that is standard error meanwhile, and of which the environment says that it is the
    journal."""
    path = folder / "journal"
    with path.open("w", buffering=1) as file, monkeypatch.context() as patch:
        status = os.fstat(file.fileno())
        patch.setattr(sys, "stderr", file)
        patch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        yield path


def test_lines_in_the_journal_carry_their_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both formats, each line of a traceback too, and the line of an error before the log."""
    logger = logging.getLogger("frd")
    with journal(tmp_path, monkeypatch) as path:
        logs.configure("debug", "text")
        logger.warning("a")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("b")
        text = path.read_text().splitlines()
        logs.configure("debug", "json")
        logger.info("c")
        logger.debug("d")
        usage.complain("config: no: e", usage.USAGE)
        *lines, last = path.read_text().splitlines()[len(text) :]
    assert text[0].startswith("<4>20")
    assert len(text) > 3
    assert {line[:3] for line in text[1:]} == {"<3>"}
    assert [(line[:3], json.loads(line[3:])["message"]) for line in lines] == [
        ("<6>", "c"),
        ("<7>", "d"),
    ]
    assert last == "<3>frd: error: config: no: e"


def test_lines_elsewhere_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a unit inherits the variable, but its stderr may be a file, or none at all."""
    with journal(tmp_path, monkeypatch):
        assert priority(logging.WARNING) == "<4>"
        with (tmp_path / "other").open("w") as other:
            monkeypatch.setattr(sys, "stderr", other)
            assert priority(logging.WARNING) == ""
        assert priority(logging.WARNING) == "", "closed"
        monkeypatch.setattr(sys, "stderr", None)
        assert priority(logging.WARNING) == "", "none, as `2>&-` leaves it"


# -- states ---------------------------------------------------------------------------------------


@contextmanager
def supervisor(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(5)
        yield sock


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_supervisor_hears_the_states(is_abstract: bool, tmp_path: Path) -> None:
    """Over a socket in the file system or in the abstract namespace; children cannot send any."""
    path = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": f"@{path}" if is_abstract else path, "HOME": "/"}
    with supervisor(f"\0{path}" if is_abstract else path) as sock:
        notify = notifier(environ)
        assert environ == {"HOME": "/"}
        notify(READY)
        notify(STOPPING)
        assert [sock.recv(100), sock.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_without_a_supervisor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No address: nothing happens. A socket that is gone: a line, and the daemon goes on."""
    notifier({})(READY)
    assert not caplog.messages
    notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})(READY)
    assert caplog.messages == ["NOTIFY_SOCKET: No such file or directory: READY=1 not sent"]
