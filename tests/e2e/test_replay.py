"""The journal of a real service, replayed: the claims of `frd replay` against the live ones."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from frd.cli import FINDINGS_PRESENT
from tests.world.streams import Service, peer, serve_command


def started(data_dir: Path) -> Service:
    process = subprocess.Popen(
        serve_command(data_dir, "--stall-after", "1"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    return Service(process, ready["grpc"], ready["http"])


def ended(service: Service, how: signal.Signals) -> None:
    service.process.send_signal(how)
    service.process.communicate(timeout=20)


async def stalled_for(service: Service, since: int, seconds: float) -> list[dict[str, Any]]:
    """Rank 2 does not come for `seconds`; the findings at their end."""
    async with (
        peer(service, node=0, session="a") as first,
        peer(service, node=1, session="b") as second,
    ):
        await first.introduce()
        await second.introduce()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await first.send(first.watermarks((7, 7), since))
            await second.send(second.watermarks((6, 7), since))
            await asyncio.sleep(0.1)
        found = await asyncio.to_thread(service.get, "/api/v1/findings")
    findings: list[dict[str, Any]] = found["findings"]
    return findings


def claim(finding: dict[str, Any]) -> tuple[Any, ...]:
    suspects = [(s["rank"], s["reason"], s["node"]) for s in finding["suspects"]]
    collective = finding["collective"]
    return (
        finding["id"],
        finding["kind"],
        finding["opened_at"],
        suspects,
        finding["victims"],
        (collective["group_id"], collective["seq"]),
    )


def test_replay_says_what_the_service_said(tmp_path: Path) -> None:
    """A stall, the service killed in it and started again: the journal gives the same finding."""
    since = time.time_ns()
    service = started(tmp_path)
    try:
        (live,) = asyncio.run(stalled_for(service, since, 4))
        ended(service, signal.SIGKILL)
        service = started(tmp_path)
        (later,) = asyncio.run(stalled_for(service, since, 3))
        ended(service, signal.SIGTERM)
    finally:
        service.process.kill()
        service.process.communicate()
    assert claim(later) == claim(live)

    command = [sys.executable, "-m", "frd", "replay", str(tmp_path / "journal"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (FINDINGS_PRESENT, "")
    (replayed,) = json.loads(done.stdout)["findings"]
    assert claim(replayed) == claim(live)
