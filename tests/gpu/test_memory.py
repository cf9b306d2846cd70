"""Device memory for real: NVML and torch's allocator, a leak, an out-of-memory error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.stage import Stage
from frd.errors import FrdError
from tests.gpu.watch import blamed, described, first_finding, logs, reasons, scenario, took_s
from tests.world.daemons import findings, until, watched

pytestmark = [
    pytest.mark.torch,
    pytest.mark.nccl,
    pytest.mark.timeout(200),
    pytest.mark.xdist_group("device memory"),
]
MIB = 1 << 20
GUILTY = 1


def test_a_leak_is_named(row: Callable[..., None]) -> None:
    """One rank keeps tensors, in all a tenth of the device (a rise of less than a twentieth does
    not count): it alone is named, and NVML and torch agree on how much memory each rank has."""
    with watched(scenario("leak", "memory.py"), 3, 10.0, ["leak", str(GUILTY)]) as (stage, client):
        found = first_finding(stage, client, "memory_spike")
        row("leak", f"{GUILTY}: memory", described(found), took_s(stage, found))
        assert reasons(found) == {GUILTY: "memory"}, found["summary"]
        assert found["victims"] == []
        print(found["summary"])
        time.sleep(8.0)  # the leak ends
        series = by_rank(client, stage)
        print(series)
        for rank, kinds in series.items():
            torch_has, nvml_says = kinds["torch_reserved"], kinds["process_used"]
            assert 0 < nvml_says - torch_has < 2048 * MIB, (rank, kinds)
        grown = series[GUILTY]["torch_reserved"] - series[0]["torch_reserved"]
        assert grown > 4096 * MIB


def test_thirty_gibibytes_within_the_first_minute_are_shown(row: Callable[..., None]) -> None:
    """One rank takes 30 GiB while it warms up, and keeps them: that is a rise of this rank alone,
    and no finding."""
    with watched(scenario("early", "memory.py"), 3, 10.0, ["take", str(GUILTY)]) as (stage, client):

        def risen() -> dict[str, Any] | None:
            rises = client.get(f"/api/v1/jobs/{stage.job}")["rises"]
            return next((one for one in rises if one["bytes"] > 25 << 30), None)

        rise = until(risen, lambda: logs(stage), 90.0, ignoring=FrdError)
        row("30 GiB early", f"{GUILTY}: rise", rise["text"])
        assert [one["rank"] for one in rise["suspects"]] == [GUILTY]
        assert not rise["alarming"]
        assert findings(client) == []


def test_thirty_gibibytes_after_it_are_a_finding(row: Callable[..., None]) -> None:
    """The same after the warm-up: at that rate the device is full within a minute."""
    late = scenario("late", "memory.py", memory_warmup_s=3.0)
    with watched(late, 3, 10.0, ["take", str(GUILTY)]) as (stage, client):
        found = first_finding(stage, client, "memory_spike")
        row("30 GiB late", f"{GUILTY}: memory", described(found), took_s(stage, found))
        (suspect,) = found["suspects"]
        assert (suspect["rank"], suspect["confidence"]) == (GUILTY, "high")


def by_rank(client: Client, stage: Stage) -> dict[int, dict[str, int]]:
    """Bytes by kind of series, by rank."""
    job = client.get(f"/api/v1/jobs/{stage.job}", {"memory": "all"})
    found: dict[int, dict[str, Any]] = {}
    for one in job["memory"]["series"]:
        if one["rank"] is not None:
            found.setdefault(one["rank"], {})[one["kind"]] = one["used_bytes"]
    return found


@pytest.mark.parametrize("fault", ["oom", "fragments"])
def test_an_out_of_memory_error_is_named(fault: str, row: Callable[..., None]) -> None:
    """One rank asks for more than it may have and dies of it, while the others wait for it; with
    fragments, its memory is half free and yet no block is large enough."""
    with watched(scenario(fault, "memory.py"), 3, 5.0, [fault, str(GUILTY)]) as (stage, client):
        found = first_finding(stage, client, "oom")
        row(fault, f"{GUILTY}: memory", described(found), took_s(stage, found))
        assert reasons(found) == {GUILTY: "memory"}, found["summary"]
        print(found["summary"], found["suspects"])
        until(lambda: stage.ranks[GUILTY].poll() is not None, lambda: logs(stage))
        time.sleep(8.0)  # longer than the threshold of a stall
        assert list(blamed(client)) == [GUILTY], blamed(client)
