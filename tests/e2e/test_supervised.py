"""Service and agent below a supervisor such as systemd: when they are ready, and what a reload
checks first. tests/pods has systemd itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd_agent.launch.run_lock import holder
from tests.world.collector import Collector, serving
from tests.world.daemons import agent_command, async_until, get, run_program, running
from tests.world.streams import serving as service_process

pytestmark = pytest.mark.timeout(120)


@contextmanager
def supervisor(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Daemons that start meanwhile send their states to this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield sock


def test_a_service_is_ready_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY=1 comes when HTTP answers and agents can connect, STOPPING=1 on SIGTERM."""
    with (
        supervisor(tmp_path / "notify", monkeypatch) as sock,
        service_process(tmp_path / "data") as service,
    ):
        assert sock.recv(100) == b"READY=1"
        assert get(service.http, "/api/v1/jobs")["jobs"] == []
        socket.create_connection(service.grpc.split(":")).close()  # type: ignore[arg-type]
        service.terminate()
        assert sock.recv(100) == b"STOPPING=1"


async def test_an_agent_is_ready_when_it_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY=1 comes when it holds the lock of its run directory, also without a service; and the
    processes that it starts do not inherit the address."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with (
        supervisor(tmp_path / "notify", monkeypatch) as sock,
        running(agent_command(run_dir, "--service", "127.0.0.1:1")) as agent,
    ):
        assert sock.recv(100) == b"READY=1"
        held = holder(run_dir)
        assert held is not None
        assert held.pid == agent.pid
        agent.terminate()
        assert sock.recv(100) == b"STOPPING=1"
        assert agent.wait(10) == 0


async def test_the_first_configuration_that_exists(tmp_path: Path) -> None:
    """An agent of one user has its file, else that of all; --check reads the same one."""
    own, common = tmp_path / "agent-alice.toml", tmp_path / "agent.toml"
    files = ("--config", own, "--config", common)

    def check() -> tuple[int, str]:
        done = run_program([*agent_command(tmp_path / "run", *files), "--check"])
        return done.returncode, done.stderr

    assert check() == (
        2,
        f"frd: error: config: {common}: No such file or directory: "
        "name a TOML file that can be read\n",
    )
    common.write_text("servic = 1\n")
    assert check() == (2, "frd: error: servic: unknown key: did you mean service?\n")
    async with serving(Collector()) as first, serving(Collector()) as second:
        common.write_text(f'service = "{first.address}"\n')
        assert check() == (0, "")
        assert not (tmp_path / "run").exists(), "nothing is watched"
        own.write_text(f'service = "{second.address}"\n')
        with running(agent_command(tmp_path / "run", *files)):
            await async_until(lambda: second.hellos, "the hello")
        assert not first.hellos
