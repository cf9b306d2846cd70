"""SIGHUP: daemons read their files again, and what runs goes on."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from frd.service.journal.replay import replay
from frd.store.journal import read
from tests.world.collector import Collector, serving, until
from tests.world.daemons import free_port
from tests.world.streams import both_nodes, ready, serve_command, stall

pytestmark = pytest.mark.timeout(90)


class Lines:
    """What a daemon logs, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def matching(self, words: str) -> list[dict[str, str]]:
        lines = self.path.read_text().splitlines()
        return [line for line in map(json.loads, lines) if words in line["message"]]

    async def wait_for(self, words: str) -> dict[str, str]:
        await until(lambda: bool(self.matching(words)), words)
        return self.matching(words)[0]


@asynccontextmanager
async def daemon(command: list[str], log: Path) -> AsyncIterator[subprocess.Popen[str]]:
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield process
    finally:
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0
        process.communicate()


async def test_a_service_goes_on_by_another_policy(tmp_path: Path) -> None:
    """A hanging job is no finding under a patient policy; after SIGHUP brings another, it is.

    A file that is broken changes nothing, a key that needs a restart is logged, and the
    journal replays to the finding that the new policy gave.
    """
    file, data, lines = tmp_path / "frd.toml", tmp_path / "data", Lines(tmp_path / "log")
    command = [*serve_command(data, "--log-format", "json"), "--config", str(file)]
    file.write_text("[policy]\nstall_after_s = 600\n")
    async with daemon(command, lines.path) as process:
        service = await asyncio.to_thread(ready, process)
        since = time.time_ns()

        def hangs() -> bool:
            return bool(service.get("/api/v1/findings")["findings"])

        async with both_nodes(service) as peers:
            patient = time.monotonic() + 2
            await stall(peers, since, lambda: time.monotonic() > patient)
            file.write_text("[policy]\nstall_after_s = 0.5\n")
            process.send_signal(signal.SIGHUP)
            line = await lines.wait_for("nothing is changed")
            assert line["message"].startswith("policy.stall_after_s: 0.5: must be")
            assert not hangs()
            file.write_text(
                "[policy]\nstall_after_s = 1\n[limits]\nstreams_per_peer = 9\n"
                "[log]\nlevel = 'warning'\n"
            )
            process.send_signal(signal.SIGHUP)
            await lines.wait_for("limits.streams_per_peer: changed: takes effect after a restart")
            await stall(peers, since, hangs)
            assert not lines.matching("configuration read again"), "now below the level"
    (finding,) = replay(read(data / "journal", pytest.fail), pytest.fail).findings
    assert [suspect.rank for suspect in finding.suspects] == [2]


def agent_command(run_dir: Path, file: Path) -> list[str]:
    flags = ["--run-dir", str(run_dir), "--metrics", "off", "--config", str(file)]
    return [sys.executable, "-m", "frd_agent", "run", *flags]


async def test_an_agent_goes_on_with_another_service(tmp_path: Path) -> None:
    """The file names another service: the agent says hello there; a broken file changes nothing."""
    ports = free_port(), free_port()
    file, lines = tmp_path / "agent.toml", Lines(tmp_path / "log")

    def configure(service: str, more: str = "") -> None:
        file.write_text(f'service = "{service}"\nlog_format = "json"\n{more}')

    configure(f"127.0.0.1:{ports[0]}")
    async with (
        serving(Collector("one"), ports[0]) as first,
        serving(Collector("two"), ports[1]) as second,
        daemon(agent_command(tmp_path / "run", file), lines.path) as process,
    ):
        await until(lambda: bool(first.hellos), "the first hello")
        configure("nowhere")
        process.send_signal(signal.SIGHUP)
        line = await lines.wait_for("nothing is changed")
        assert line["message"].startswith("service: 'nowhere': ")
        configure(f"127.0.0.1:{ports[1]}", "outbox_rows = 5000\n")
        process.send_signal(signal.SIGHUP)
        await lines.wait_for("outbox_rows: changed: takes effect after a restart")
        await until(lambda: bool(second.hellos), "the hello to the other")
        assert len(first.hellos) == 1
        assert first.hellos[0].session == second.hellos[0].session


async def test_a_terminal_that_closes_is_a_goodbye(tmp_path: Path) -> None:
    """An agent that was started in a terminal ends with it, and says so: no alert cries blind."""
    port, (ours, theirs) = free_port(), pty.openpty()
    (tmp_path / "agent.toml").write_text(f'service = "127.0.0.1:{port}"\n')
    async with serving(Collector("one"), port) as service:
        command = agent_command(tmp_path / "run", tmp_path / "agent.toml")
        process = subprocess.Popen(command, stderr=theirs)
        try:
            await until(lambda: bool(service.hellos), "the hello")
            process.send_signal(signal.SIGHUP)
            assert await asyncio.to_thread(process.wait, 10) == 0
            assert service.goodbye
        finally:
            process.kill()
            process.wait()
    os.close(ours)
    os.close(theirs)
