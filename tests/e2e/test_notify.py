"""A webhook of a real service: the story of a hang, over a restart and a reload."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_reload import Lines, daemon
from tests.world.streams import Peer, Service, peer, serve_command
from tests.world.webhook import Receiver

pytestmark = pytest.mark.timeout(120)


async def stand_still(peers: list[Peer], since_ns: int, until_true: Callable[[], bool]) -> None:
    """Ranks 0, 1 and 3 have waited in collective 7 since then, rank 2 never comes."""
    async with asyncio.timeout(40):
        while not await asyncio.to_thread(until_true):
            for at, one in enumerate(peers):
                await one.send(one.watermarks((6 if at == 1 else 7, 7), since_ns))
            await asyncio.sleep(0.1)


def test_a_hang_is_told_to_a_webhook_over_restart_and_reload(tmp_path: Path) -> None:
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

    async def scene() -> None:
        with Receiver() as receiver, Receiver() as second:
            receiver.status = 503
            url.write_text(receiver.url)
            async with daemon(command, lines.path) as process:
                assert process.stdout is not None
                ready = json.loads(await asyncio.to_thread(process.stdout.readline))
                service = Service(process, ready["grpc"], ready["http"])

                def failed() -> bool:
                    series = 'frd_notifications_total{result="failed",target="1"}'
                    return service.metric(series) > 0

                async with peer(service, 0, "a") as one, peer(service, 1, "b") as two:
                    for agent in (one, two):
                        await agent.introduce()
                    await stand_still([one, two], since_ns, failed)
                    receiver.status = 200
                    await stand_still([one, two], since_ns, lambda: bool(receiver.received))
                    (before,) = service.get("/api/v1/findings?state=open")["findings"]
                    assert "s3cret" not in json.dumps(service.get("/api/v1/jobs"))
            assert receiver.events()[0] == "opened"
            assert receiver.received[0]["id"] == before["id"]
            assert receiver.received[0]["runbook_url"].startswith(f"http://{ready['http']}/runb")
            first_log = lines.path.read_text()
            sent_before = receiver.events()
            async with daemon(command, lines.path) as process:
                assert process.stdout is not None
                ready = json.loads(await asyncio.to_thread(process.stdout.readline))
                service = Service(process, ready["grpc"], ready["http"])
                async with peer(service, 0, "c") as one, peer(service, 1, "d") as two:
                    for agent in (one, two):
                        await agent.introduce()
                    file.write_text(
                        policy.format(1)
                        + target
                        + f'[[notify]]\nname = "chat"\nurl = "{second.url}"\nformat = "slack"\n'
                        + 'on = ["critical"]\n'
                    )
                    process.send_signal(signal.SIGHUP)
                    await lines.tell("notify: changed")
                    await stand_still([one, two], since_ns, lambda: len(second.received) == 1)
                    text = second.received[0]["text"]
                    assert before["id"] in text
                    assert text.startswith("*now critical: stall in job ")
                    await stand_still([one, two], since_ns, lambda: "critical" in receiver.events())
            assert receiver.events()[len(sent_before) :].count("opened") == 0
            assert "s3cret" not in first_log + lines.path.read_text()

    asyncio.run(scene())
