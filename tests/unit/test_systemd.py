"""What the daemons say to systemd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd.systemd import READY, STOPPING, notifier


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
