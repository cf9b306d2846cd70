"""The journal of a real service, replayed: the claims of `frd replay` against the live ones."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from frd.cli import FINDINGS_PRESENT
from tests.world.daemons import frd
from tests.world.streams import Service, both_nodes, serving, stall


async def only_finding(service: Service, since: int, seconds: float) -> dict[str, Any]:
    """The finding after rank 2 has been missing for `seconds`."""
    until = time.monotonic() + seconds
    async with both_nodes(service) as peers:
        await stall(peers, since, lambda: time.monotonic() > until)
        (finding,) = (await asyncio.to_thread(service.get, "/api/v1/findings"))["findings"]
    return dict(finding)


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
    """The service is killed in a stall and started again: the journal gives the same finding."""
    since = time.time_ns()
    with serving(tmp_path, "--stall-after", "1") as service:
        live = asyncio.run(only_finding(service, since, 4))
    with serving(tmp_path, "--stall-after", "1") as service:
        later = asyncio.run(only_finding(service, since, 3))
        service.terminate()
    assert [suspect["rank"] for suspect in live["suspects"]] == [2]
    assert live["victims"] == [0, 1, 3]
    assert claim(later) == claim(live)

    done = frd("replay", tmp_path / "journal", "--json")
    assert (done.returncode, done.stderr) == (FINDINGS_PRESENT, "")
    (replayed,) = json.loads(done.stdout)["findings"]
    assert claim(replayed) == claim(live)
