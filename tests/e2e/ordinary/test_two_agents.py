"""Two agents on one node: both run if they can, otherwise the second ends with a clear error."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frd_agent.launch.run_lock import holder
from tests.world.daemons import free_port, run_program, until


@contextmanager
def agent(log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as stderr:
        command = [sys.executable, "-m", "frd_agent", "run", *flags]
        process = subprocess.Popen(command, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_second_agent_on_a_node(tmp_path: Path) -> None:
    """The second agent finds the metrics port taken: it warns and watches its own directory. A
    third one on the first one's directory ends and names the pid of the agent that is there."""
    service = ("--service", f"127.0.0.1:{free_port()}")
    metrics = ("--metrics", f"127.0.0.1:{free_port()}")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    log = tmp_path / "log"
    with (
        agent(log, "--run-dir", str(one), *service, *metrics) as first,
        agent(tmp_path / "of_second", "--run-dir", str(two), *service, *metrics) as second,
    ):
        until(lambda: (found := holder(one)) and found.pid == first.pid, log.read_text)
        until(lambda: "watching" in (tmp_path / "of_second").read_text())
        until(lambda: "watching" in log.read_text())
        said = log.read_text() + (tmp_path / "of_second").read_text()
        assert f"{metrics[1]}: Address already in use: this agent serves no /metrics" in said
        assert "--metrics HOST:PORT" in said
        assert "`frd serve`" in said  # what to do about a service that is not reachable
        assert "failed to connect to all addresses" not in said
        third = run_program(
            [sys.executable, "-m", "frd_agent", "run", "--run-dir", str(one), *service]
        )
        assert third.returncode == 1
        last = third.stderr.strip().splitlines()[-1]
        assert last.startswith(f"frd: error: run_dir: {one}: agent pid {first.pid} on ")
        assert "--run-dir" in last
        assert first.poll() is None
        assert second.poll() is None


def test_an_agent_that_is_replaced(tmp_path: Path) -> None:
    """An agent gets SIGTERM, and its successor starts at the same moment: it waits its turn."""
    flags = ("--run-dir", str(tmp_path), "--metrics", "off", "--service", "127.0.0.1:9")
    with agent(tmp_path / "log", *flags) as first:
        until(lambda: (found := holder(tmp_path)) and found.pid == first.pid)
        with agent(tmp_path / "log", *flags) as second:
            first.send_signal(signal.SIGTERM)
            until(lambda: (found := holder(tmp_path)) and found.pid == second.pid)
            assert first.wait(10) == 0
            assert second.poll() is None
