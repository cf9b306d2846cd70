"""The journal of a real service, replayed: the claims of `frd replay` against the live ones."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

from frd.cli import FINDINGS_PRESENT
from tests.world.daemons import frd
from tests.world.streams import Service, both_nodes, stall, start


def ended(service: Service, how: signal.Signals) -> None:
    service.process.send_signal(how)
    service.process.communicate(timeout=20)


async def stalled_for(service: Service, since: int, seconds: float) -> list[dict[str, Any]]:
    """Rank 2 does not come for `seconds`; the findings at their end."""
    until = time.monotonic() + seconds
    async with both_nodes(service) as peers:
        await stall(peers, since, lambda: time.monotonic() > until)
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
    service = start(tmp_path, "--stall-after", "1")
    try:
        (live,) = asyncio.run(stalled_for(service, since, 4))
        ended(service, signal.SIGKILL)
        service = start(tmp_path, "--stall-after", "1")
        (later,) = asyncio.run(stalled_for(service, since, 3))
        ended(service, signal.SIGTERM)
    finally:
        service.process.kill()
        service.process.communicate()
    assert [suspect["rank"] for suspect in live["suspects"]] == [2]
    assert live["victims"] == [0, 1, 3]
    assert claim(later) == claim(live)

    done = frd("replay", tmp_path / "journal", "--json")
    assert (done.returncode, done.stderr) == (FINDINGS_PRESENT, "")
    (replayed,) = json.loads(done.stdout)["findings"]
    assert claim(replayed) == claim(live)
