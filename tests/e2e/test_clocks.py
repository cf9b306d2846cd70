"""Two nodes whose wall clocks differ by seconds, drift and are set: one job, one timeline.

Both are on this machine; the ranks and the agent of one live under libfaketime, which shifts their
wall clock and leaves the monotonic ones alone. (The raw one as well: measured. It breaks
``time.sleep`` of Python 3.11 and later, so nothing under it may sleep that way.)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Addresses
from tests.world.daemons import (
    JOBS,
    Stage,
    findings,
    frd,
    free_port,
    metric,
    opened_s,
    rank_environment,
    until,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

WORLD = 4
LATE = 3
SHIFT_S = 2.5
DRIFT = 50e-6


class TwoNodes(Stage):
    """Ranks 0 and 1 under true time, 2 and 3 under another."""

    def __init__(self, stall_after_s: float) -> None:
        super().__init__(Scenario("clocks", "", ""), WORLD, stall_after_s)
        self.stop_file = self.folder / "stop"
        self._time_file = self.folder / "time"
        self.addresses = Addresses("", "")

    def begin(self, extra_s: float) -> None:
        self.addresses = self.start_service()
        common = os.environ | rank_environment(0, WORLD, free_port()) | {"FRD_JOB": self.job}
        script = [str(JOBS / "steady.py"), "0.02", str(LATE), str(extra_s), str(self.stop_file)]
        half = [sys.executable, str(JOBS / "half.py"), self.addresses.grpc]
        true = [*half, str(self.folder / "true"), "0,1", *script]
        shifted = [*half, str(self.folder / "shifted"), "2,3", *script]
        self.set_clock(SHIFT_S)
        self.started_at = time.time()
        self.ranks.append(self.spawn("true", true, environment=common))
        # The wrapper gives all below it one start of their drift; the file can be changed.
        wrapped = ["faketime", "-f", "+0s", "env", "-u", "FAKETIME", *shifted]
        environment = common | {
            "FAKETIME_TIMESTAMP_FILE": str(self._time_file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.ranks.append(self.spawn("shifted", wrapped, environment=environment))

    def set_clock(self, shift_s: float) -> None:
        self.shift_s = shift_s
        new = self._time_file.with_suffix(".new")
        new.write_text(f"{shift_s:+}s x{1 + DRIFT}\n")
        new.replace(self._time_file)  # a reader never sees half of it

    @property
    def true_offset_s(self) -> float:
        return -(self.shift_s + DRIFT * (time.time() - self.started_at))

    def nodes(self) -> list[dict[str, Any]]:
        jobs = Client(self.addresses.http).get("/api/v1/jobs")["jobs"]
        if not jobs:
            return []
        nodes = Client(self.addresses.http).get(f"/api/v1/jobs/{self.job}")["nodes"]
        return sorted(nodes, key=lambda node: node["ranks"])

    def described(self) -> str:
        """For a failure's message."""
        return f"the nodes were {self.nodes()}"

    def findings(self) -> list[dict[str, Any]]:
        return findings(Client(self.addresses.http))

    def metric(self, series: str) -> float:
        return metric(self.addresses.http, series)


def aligned(stage: TwoNodes) -> bool:
    """Both clocks are known, and their true offsets are within the uncertainty."""
    nodes = stage.nodes()
    if [node["ranks"] for node in nodes] != [[0, 1], [2, 3]]:
        return False
    if any(node["clock_state"] != "synchronized" for node in nodes):
        return False
    true, shifted = nodes
    # Reading the shifted clock takes its library up to a tenth of a millisecond.
    room_s = 5e-4
    assert abs(true["clock_offset_s"]) <= true["clock_uncertainty_s"] + room_s
    error_s = abs(shifted["clock_offset_s"] - stage.true_offset_s)
    return bool(error_s <= shifted["clock_uncertainty_s"] + room_s)


def stall(stage: TwoNodes) -> dict[str, Any] | None:
    return next((found for found in stage.findings() if found["kind"] == "stall"), None)


def late_ranks(stage: TwoNodes) -> list[int]:
    """Of the straggler that was found; nothing else was."""
    findings = stage.findings()
    assert {finding["kind"] for finding in findings} <= {"straggler"}
    return [suspect["rank"] for finding in findings for suspect in finding["suspects"]]


@pytest.mark.skipif(shutil.which("faketime") is None, reason="absent: faketime")
@pytest.mark.soak  # tests/e2e/test_clock_streams.py shows clocks without ranks
def test_two_clocks_one_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node is 2.5 s ahead and drifts, and is set 3 s further ahead and back again in mid-run:
    the late rank, and later the rank that hangs, are reported as on one clock, and nothing else."""
    monkeypatch.setenv("FRD_POLICY__STRAGGLER_WINDOW_S", "10")
    with TwoNodes(stall_after_s=3.0) as stage:
        stage.begin(extra_s=0.1)
        until(lambda: aligned(stage), stage.described)

        # Ranks of both nodes meet: 100 ms apart, not 2.6 s.
        skew = "frd_collective_skew_seconds"
        until(lambda: stage.metric(f"{skew}_count") > 20, stage.described)
        assert 0.05 < stage.metric(f"{skew}_sum") / stage.metric(f"{skew}_count") < 0.5

        until(lambda: late_ranks(stage) == [LATE], stage.described)

        # A step ahead, and one back: logged and counted; the node stays synchronized.
        for steps, shift_s in enumerate((SHIFT_S + 3.0, SHIFT_S), 1):
            stage.set_clock(shift_s)
            until(lambda n=steps: stage.metric("frd_clock_steps_total") == n, stage.described)  # type: ignore[misc]
            until(lambda: aligned(stage), stage.described)
            line = r"the wall clock of this node stepped by [-+](?:3\.00|2\.99)\d+ s"
            assert len(re.findall(line, stage.log("shifted"))) == steps
            assert "unsynchronized" not in stage.log("service")
            time.sleep(4.0)  # longer than a stall need be
            assert late_ranks(stage) == [LATE]
        assert stage.metric("frd_nodes_unsynchronized") == 0
        assert stage.metric("frd_agents_expected") == stage.metric("frd_agents_reporting") == 2

        stopped_at = time.time()
        stage.stop_file.touch()
        finding = until(lambda: stall(stage), stage.described)
        assert [suspect["rank"] for suspect in finding["suspects"]] == [LATE]
        # The others may have waited for the late one before the file was touched.
        began_s = opened_s(finding) - finding["collective"]["waiting_s"]
        assert -0.2 < began_s - stopped_at < 1.0

        output = frd("status", "--ranks", "0-3", "--http", stage.addresses.http).stdout
        assert re.search(r"-250\d\.\d+ ± \d+\.\d+", output)
        assert output.count("synchronized") == 2
        frd("dump", "--http", stage.addresses.http, "-o", str(stage.folder / "dump"))
        identity = json.loads(
            (stage.folder / "dump" / f"{stage.job}.meta" / "rank_2.json").read_text()
        )
        assert identity["clock_state"] == "synchronized"
        assert abs(identity["clock_offset_s"] - stage.true_offset_s) < 0.01
        assert identity["clock_uncertainty_s"] < 0.1
        output = frd("replay", str(stage.folder / "data" / "journal"), "--json").stdout
        replayed = {found["id"]: found["opened_at"] for found in json.loads(output)["findings"]}
        assert replayed == {found["id"]: found["opened_at"] for found in stage.findings()}
