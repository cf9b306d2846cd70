"""A webhook of a real service: the story of a hang, over a restart and a reload."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.test_reload import Lines, daemon
from tests.world.streams import both_nodes, ready, serve_command, stall
from tests.world.webhook import Receiver

pytestmark = pytest.mark.timeout(120)


async def test_a_hang_is_sent_to_a_webhook_over_restart_and_reload(tmp_path: Path) -> None:
    """One receiver is down while the finding opens and gets it later. The service starts again:
    no second opening. SIGHUP brings another receiver, which hears what comes. The URL, which is a
    secret, is in no line of the log and in no answer of the API."""
    file, url = tmp_path / "frd.toml", tmp_path / "url"
    lines = Lines(tmp_path / "log")
    # Nothing becomes critical before the reload says so.
    policy = "[policy]\nstall_after_s = 1\ncritical_after_s = {}\n"
    target = f'[[notify]]\nurl_file = "{url}"\n'
    file.write_text(policy.format(3600) + target)
    command = [*serve_command(tmp_path / "data", "--log-format", "json"), "--config", str(file)]

    since_ns = time.time_ns()
    with Receiver() as receiver, Receiver() as second:
        receiver.status = 503
        url.write_text(receiver.url)
        async with daemon(command, lines.path) as process:
            service = await asyncio.to_thread(ready, process)

            def failed() -> bool:
                series = 'frd_notifications_total{result="failed",target="1"}'
                return service.metric(series) > 0

            async with both_nodes(service) as peers:
                await stall(peers, since_ns, failed)
                receiver.status = 200
                await stall(peers, since_ns, lambda: bool(receiver.received))
                (before,) = service.get("/api/v1/findings?state=open")["findings"]
                assert "s3cret" not in json.dumps(service.get("/api/v1/jobs"))
        assert receiver.events()[0] == "opened"
        assert receiver.received[0]["id"] == before["id"]
        assert receiver.received[0]["runbook_url"].startswith(f"http://{service.http}/runb")
        first_log = lines.path.read_text()
        sent_before = receiver.events()
        async with daemon(command, lines.path) as process:
            service = await asyncio.to_thread(ready, process)
            async with both_nodes(service, "c", "d") as peers:
                file.write_text(
                    policy.format(1)
                    + target
                    + f'[[notify]]\nname = "chat"\nurl = "{second.url}"\nformat = "slack"\n'
                    + 'on = ["critical"]\n'
                )
                process.send_signal(signal.SIGHUP)
                await lines.wait_for("notify: changed")
                await stall(peers, since_ns, lambda: len(second.received) == 1)
                text = second.received[0]["text"]
                assert before["id"] in text
                assert text.startswith("*now critical: stall in job ")
                await stall(peers, since_ns, lambda: "critical" in receiver.events())
        assert receiver.events()[len(sent_before) :].count("opened") == 0
        assert "s3cret" not in first_log + lines.path.read_text()
