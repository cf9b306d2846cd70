"""Memory, live: four real processes, one of which grows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from frd.cli import FINDINGS_PRESENT
from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import Stage, findings, frd, opened_s, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.alone, pytest.mark.timeout(120)]
WITHIN_S = 80.0


def claim(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    suspects = [(s["rank"], s["reason"], s["node"]) for s in finding["suspects"]]
    return finding["id"], finding["kind"], finding["opened_at"], suspects, finding["victims"]


def crossed_at(stage: Stage) -> float:
    """When rank 2 had kept what counts as a rise, by its own clock, which is the service's."""
    (at,) = re.findall(r"64 MiB kept at (\d+)", stage.log("rank2"))
    return int(at) / 1e9


def test_the_rank_whose_host_memory_grows_is_named(
    record_property: Callable[[str, object], None],
) -> None:
    """One of four ranks keeps its batches: it alone is named, soon, and as host memory; the status
    shows the rise, and a replay of the journal gives the same finding."""
    with watched(SCENARIOS["memory"], 4, 10.0) as (stage, client):
        logs = ("agent", "service", "rank2")
        (finding,) = until(
            lambda: findings(client), lambda: "".join(map(stage.log, logs)), WITHIN_S
        )
        took_s = opened_s(finding) - crossed_at(stage)
        record_property("seconds_from_crossing_to_finding", round(took_s, 3))
        print(f"found {took_s:.2f} s after the rank crossed 64 MiB: {finding['summary']}")
        assert took_s < 10.0  # 2 s where the processors are not shared with a test suite
        assert [s["rank"] for s in finding["suspects"]] == [2]
        assert finding["victims"] == []
        assert finding["kind"] == "memory_spike"
        assert "host memory" in finding["summary"]

        job = client.get(f"/api/v1/jobs/{stage.job}", {"memory": "all"})
        host = {m["rank"]: m for m in job["memory"]["series"] if m["kind"] == "host_used"}
        assert set(host) == {0, 1, 2, 3}
        assert host[2]["used_bytes"] == max(m["used_bytes"] for m in host.values())

        def replayed() -> str | None:
            """The journal is written a tick later."""
            done = frd("replay", stage.folder / "data" / "journal", "--json")
            return done.stdout if done.returncode == FINDINGS_PRESENT else None

        (again,) = json.loads(until(replayed))["findings"]
        assert claim(again) == claim(finding)
