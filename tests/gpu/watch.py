"""What a watched job shows: the finding that opens, and when the fault began."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Stage
from frd.errors import FrdError
from tests.world.daemons import findings, opened_s, until

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


def wait_for_progress(stage: Stage, client: Client) -> None:
    """Until more than twenty collectives are complete."""

    def progresses() -> bool:
        groups = client.get(f"/api/v1/jobs/{stage.job}")["groups"]
        return bool(sum(group["matched"] for group in groups) > 20)

    until(progresses, lambda: logs(stage), 90.0, ignoring=FrdError)


def wait_for_ends(stage: Stage, within_s: float) -> list[int | None]:
    """The exit codes of all ranks."""
    until(
        lambda: all(rank.poll() is not None for rank in stage.ranks), lambda: logs(stage), within_s
    )
    return [rank.returncode for rank in stage.ranks]


def reasons(found: Mapping[str, Any]) -> dict[int, str]:
    return {suspect["rank"]: suspect["reason"] for suspect in found["suspects"]}


def blamed(client: Client) -> dict[int, list[str]]:
    """Summaries of the findings, open or not, by suspect."""
    by_rank: dict[int, list[str]] = {}
    for one in findings(client):
        for rank in reasons(one):
            by_rank.setdefault(rank, []).append(one["summary"])
    return by_rank


def took_s(stage: Stage, found: Mapping[str, Any]) -> float:
    """From the beginning of the fault, by the clock of the rank, to the finding."""
    texts = [stage.log(f"rank{rank}") for rank in range(stage.world)]
    began_ns = min(int(at) for text in texts for at in re.findall(r"hangs at (\d+)", text))
    return opened_s(found) - began_ns / 1e9


def described(found: Mapping[str, Any]) -> str:
    who = ", ".join(f"{s['rank']}: {s['reason']} ({s['confidence']})" for s in found["suspects"])
    return f"{found['kind']}: {who or 'no rank'}"
