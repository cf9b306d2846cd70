"""Two agents on one node: both run if they can, otherwise the second ends with a clear error."""

from __future__ import annotations

import signal
from pathlib import Path

from frd_agent.launch.run_lock import holder
from tests.world.daemons import agent_command, free_address, run_program, running, until


def test_a_second_agent_on_a_node(tmp_path: Path) -> None:
    """The second agent finds the metrics port taken: it warns and watches its own directory. A
    third one on the first one's directory ends and names the pid of the agent that is there."""
    service = ("--service", free_address())
    metrics = ("--metrics", free_address())
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    logs = [tmp_path / "log", tmp_path / "log of second"]
    with (
        running(agent_command(one, *service, *metrics), log=logs[0]) as first,
        running(agent_command(two, *service, *metrics), log=logs[1]) as second,
    ):
        until(lambda: (found := holder(one)) and found.pid == first.pid, logs[0].read_text)
        until(lambda: all("watching" in log.read_text() for log in logs))
        # What to do about a service that is not reachable:
        until(lambda: any("`frd serve`" in log.read_text() for log in logs), logs[1].read_text)
        logged = "".join(log.read_text() for log in logs)
        assert f"{metrics[1]}: Address already in use: this agent serves no /metrics" in logged
        assert "--metrics HOST:PORT" in logged
        assert "failed to connect to all addresses" not in logged
        third = run_program(agent_command(one, *service))
        assert third.returncode == 1
        last = third.stderr.strip().splitlines()[-1]
        assert last.startswith(f"frd: error: run_dir: {one}: agent pid {first.pid} on ")
        assert "--run-dir" in last
        assert first.poll() is None
        assert second.poll() is None


def test_an_agent_that_is_replaced(tmp_path: Path) -> None:
    """An agent gets SIGTERM and its successor starts at the same moment: the successor waits."""
    command = agent_command(tmp_path, "--service", "127.0.0.1:9")
    with running(command) as first:
        until(lambda: (found := holder(tmp_path)) and found.pid == first.pid)
        with running(command) as second:
            first.send_signal(signal.SIGTERM)
            until(lambda: (found := holder(tmp_path)) and found.pid == second.pid)
            assert first.wait(10) == 0
            assert second.poll() is None
