"""What a watched job shows: the finding that opens, and when the fault began."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Stage
from tests.world.daemons import findings, until

JOBS = Path(__file__).parent / "jobs"
STALL_AFTER_S = 4.0
WITHIN_S = 60.0


def scenario(name: str, script: str, **policy: float) -> Scenario:
    return Scenario(name.replace(" ", "-"), name, str(JOBS / script), policy=policy)


def first_finding(stage: Stage, client: Client, kind: str = "") -> dict[str, Any]:
    """The first open finding, once it has the stacks of its suspects that are alive."""

    def first() -> dict[str, Any] | None:
        found = findings(client, state="open")
        return next((one for one in found if kind in ("", one["kind"])), None)

    found = until(first, lambda: logs(stage), WITHIN_S)

    def settled() -> dict[str, Any] | None:
        now: dict[str, Any] = client.get(f"/api/v1/findings/{found['id']}")
        alive = [s for s in now["suspects"] if s["reason"] == "cpu_stuck"]
        return now if all(s.get("stack") for s in alive) else None

    return until(settled, lambda: logs(stage), 30.0)


def logs(stage: Stage) -> str:
    names = ("service", "agent", *(f"rank{rank}" for rank in range(stage.world)))
    return "\n".join(f"{name}: {stage.log(name)[-800:]}" for name in names)


def matched(client: Client, stage: Stage) -> int:
    """Collectives of all groups that are complete."""
    groups = client.get(f"/api/v1/jobs/{stage.job}")["groups"]
    return sum(group["matched"] for group in groups)


def reasons(found: Mapping[str, Any]) -> dict[int, str]:
    return {suspect["rank"]: suspect["reason"] for suspect in found["suspects"]}


def hung_s(stage: Stage) -> float:
    """When the fault began, by the clock of the rank, which is the service's."""
    texts = [stage.log(f"rank{rank}") for rank in range(stage.world)]
    return min(int(at) for text in texts for at in re.findall(r"hangs at (\d+)", text)) / 1e9


def described(found: Mapping[str, Any]) -> str:
    who = ", ".join(f"{s['rank']}: {s['reason']} ({s['confidence']})" for s in found["suspects"])
    return f"{found['kind']}: {who or 'no rank'}"
