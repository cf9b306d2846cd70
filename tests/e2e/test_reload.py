"""SIGHUP: daemons read their files again, and what runs goes on."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd.service.journal.replay import replay
from frd.store.journal import read
from frd_agent.launch.run_lock import holder
from tests.world.collector import Collector, serving
from tests.world.daemons import agent_command, async_until, get, run_program, running
from tests.world.streams import both_nodes, stall
from tests.world.streams import serving as service_process
from tests.world.webhook import Receiver

pytestmark = pytest.mark.timeout(120)
JSON = ("--log-format", "json")


class Lines:
    """What a daemon logs, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def matching(self, words: str) -> list[dict[str, str]]:
        lines = self.path.read_text().splitlines()
        return [line for line in map(json.loads, lines) if words in line["message"]]

    async def wait_for(self, words: str) -> dict[str, str]:
        return (await async_until(lambda: self.matching(words), words))[0]


async def test_a_service_goes_on_by_another_policy(tmp_path: Path) -> None:
    """A hanging job is no finding under a patient policy; after SIGHUP loads another, it is.

    A file that is broken changes nothing, a key that needs a restart is logged, and the
    journal replays to the finding that the new policy gave.
    """
    file, data, lines = tmp_path / "frd.toml", tmp_path / "data", Lines(tmp_path / "log")
    file.write_text("[policy]\nstall_after_s = 600\n")
    with service_process(data, *JSON, "--config", file, log=lines.path) as service:
        since = time.time_ns()

        def hangs() -> bool:
            return bool(service.get("/api/v1/findings")["findings"])

        async with both_nodes(service) as peers:
            patient = time.monotonic() + 2
            await stall(peers, since, lambda: time.monotonic() > patient)
            file.write_text("[policy]\nstall_after_s = 0.5\n")
            service.process.send_signal(signal.SIGHUP)
            line = await lines.wait_for("nothing is changed")
            assert line["message"].startswith("policy.stall_after_s: 0.5: must be")
            assert not hangs()
            file.write_text(
                "[policy]\nstall_after_s = 1\n[limits]\nstreams_per_peer = 9\n"
                "[log]\nlevel = 'warning'\n"
            )
            service.process.send_signal(signal.SIGHUP)
            await lines.wait_for("limits.streams_per_peer: changed: takes effect after a restart")
            await stall(peers, since, hangs)
            assert not lines.matching("configuration read again"), "now below the level"
        service.terminate()
    (finding,) = replay(read(data / "journal", pytest.fail), pytest.fail).findings
    assert [suspect.rank for suspect in finding.suspects] == [2]


async def test_a_hang_is_sent_to_a_webhook_over_restart_and_reload(tmp_path: Path) -> None:
    """A receiver that is down while the finding opens gets it later. A restarted service does not
    open the finding again. SIGHUP adds a receiver, which gets later events. The URL, which is a
    secret, is in no line of the log and in no answer of the API."""
    file, url = tmp_path / "frd.toml", tmp_path / "url"
    lines = Lines(tmp_path / "log")
    # Nothing becomes critical before the reload says so.
    policy = "[policy]\nstall_after_s = 1\ncritical_after_s = {}\n"
    target = f'[[notify]]\nurl_file = "{url}"\n'
    file.write_text(policy.format(3600) + target)
    flags = (*JSON, "--config", file)

    since_ns = time.time_ns()
    with Receiver() as receiver, Receiver() as second:
        receiver.status = 503
        url.write_text(receiver.url)
        with service_process(tmp_path / "data", *flags, log=lines.path) as service:

            def failed() -> bool:
                series = 'frd_notifications_total{result="failed",target="1"}'
                return service.metric(series) > 0

            async with both_nodes(service) as peers:
                await stall(peers, since_ns, failed)
                receiver.status = 200
                await stall(peers, since_ns, lambda: bool(receiver.received))
                (before,) = service.get("/api/v1/findings?state=open")["findings"]
                assert "s3cret" not in json.dumps(service.get("/api/v1/jobs"))
            service.terminate()
        assert receiver.events()[0] == "opened"
        assert receiver.received[0]["id"] == before["id"]
        assert receiver.received[0]["runbook_url"].startswith(f"http://{service.http}/runb")
        sent_before = receiver.events()
        with service_process(tmp_path / "data", *flags, log=lines.path) as service:
            async with both_nodes(service, "c", "d") as peers:
                file.write_text(
                    policy.format(1)
                    + target
                    + f'[[notify]]\nname = "chat"\nurl = "{second.url}"\nformat = "slack"\n'
                    + 'on = ["critical"]\n'
                )
                service.process.send_signal(signal.SIGHUP)
                await lines.wait_for("notify: changed")
                await stall(peers, since_ns, lambda: len(second.received) == 1)
                text = second.received[0]["text"]
                assert before["id"] in text
                assert text.startswith("*now critical: stall in job ")
                await stall(peers, since_ns, lambda: "critical" in receiver.events())
            service.terminate()
        assert receiver.events()[len(sent_before) :].count("opened") == 0
        assert "s3cret" not in lines.path.read_text()


async def test_an_agent_goes_on_with_another_service(tmp_path: Path) -> None:
    """The file names another service: the agent says hello there; a broken file changes nothing."""
    file, lines = tmp_path / "agent.toml", Lines(tmp_path / "log")

    def configure(service: str, more: str = "") -> None:
        file.write_text(f'service = "{service}"\nlog_format = "json"\n{more}')

    async with serving(Collector()) as first, serving(Collector()) as second:
        configure(first.address)
        command = agent_command(tmp_path / "run", "--config", file)
        with running(command, log=lines.path) as process:
            await async_until(lambda: first.hellos, "the first hello")
            configure("nowhere")
            process.send_signal(signal.SIGHUP)
            line = await lines.wait_for("nothing is changed")
            assert line["message"].startswith("service: 'nowhere': ")
            configure(second.address, "outbox_bytes = 500000\n")
            process.send_signal(signal.SIGHUP)
            await lines.wait_for("outbox_bytes: changed: takes effect after a restart")
            await async_until(lambda: second.hellos, "the hello to the other")
            assert len(first.hellos) == 1
            assert first.hellos[0].session == second.hellos[0].session
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0


async def test_a_terminal_that_closes_is_a_goodbye(tmp_path: Path) -> None:
    """An agent that was started in a terminal ends with it and says goodbye, so no alert fires."""
    ours, theirs = pty.openpty()
    async with serving(Collector()) as service:
        command = agent_command(tmp_path / "run", "--service", service.address)
        with running(command, stderr=theirs) as process:
            await async_until(lambda: service.pings, "the clock stream, after the welcome")
            process.send_signal(signal.SIGHUP)
            assert await asyncio.to_thread(process.wait, 10) == 0
            assert service.goodbyes
    os.close(ours)
    os.close(theirs)


# -- supervised ------------------------------------------------------------------------------------
# Service and agent below a supervisor such as systemd: when they are ready, and what a reload
# checks first. tests/pods has systemd itself.


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
