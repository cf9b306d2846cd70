"""A real service whose wall clock is set while it watches a job: forward, back, by a day.

The clock of the machine stays as it is. The service starts from a few lines that replace
`time.time_ns` in its process before they run `frd serve`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.errors import ServiceUnavailable
from tests.world.daemons import JOBS, Stage, findings, frd, metric, opened_s, throughout, until

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(180)]

HOUR: Final = 3600
DAY: Final = 24 * HOUR
LATE: Final = 1
_SET: Final = """
import runpy, sys, time
from pathlib import Path
ahead, true = Path(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: true() + int(ahead.read_text()) * 10**9
runpy.run_module("frd", run_name="__main__", alter_sys=True)
"""


class Watched(Stage):
    """Two ranks, an agent, and a service whose wall clock can be set."""

    def __init__(self) -> None:
        super().__init__(Scenario("clock", "", str(JOBS / "steady.py")), 2, 2.0)
        self.stop_file, self._ahead = self.folder / "stop", self.folder / "ahead"
        self._arguments = ["0.05", str(LATE), "0", str(self.stop_file)]
        self._ahead.write_text("0")
        self.addresses = self.start_service()
        self.start_agent(self.addresses)
        self.start_job()
        self.client = Client(self.addresses.http)

    def spawn(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        if name == "service":
            command = [sys.executable, "-c", _SET, str(self._ahead), *command[3:]]
        return super().spawn(name, command, **options)

    def set_clock(self, ahead_s: int) -> None:
        new = self._ahead.with_suffix(".new")
        new.write_text(str(ahead_s))
        new.replace(self._ahead)
        until(lambda: abs(self.shown_ahead_s() - ahead_s) < 5, f"the API is {ahead_s} s ahead")
        evaluated_s = metric(self.addresses.http, "frd_last_evaluation_timestamp_seconds")
        assert abs(evaluated_s - time.time() - ahead_s) < 5

    def shown_ahead_s(self) -> float:
        at = self.client.get("/api/v1/findings")["at"]
        return datetime.fromisoformat(at).timestamp() - time.time()

    def watches(self) -> bool:
        (job,) = self.client.get("/api/v1/jobs")["jobs"] or [{"ranks": {}}]
        return bool(job["ranks"].get("live") == 2)

    def open(self) -> list[dict[str, Any]]:
        return findings(self.client, state="open")


def test_a_service_whose_wall_clock_is_set() -> None:
    """An hour forward while the job is well: no finding. Then it hangs, and the clock is set back
    and a day forward: the finding stays open under its id, has waited as long as it has, and its
    times follow, in a replay as well."""
    with Watched() as stage:
        until(stage.watches, "the ranks", ignoring=ServiceUnavailable)
        stage.set_clock(HOUR)
        throughout(1.5, lambda: None if not findings(stage.client) else pytest.fail("a finding"))

        stage.stop_file.touch()
        (opened,) = until(stage.open, "the hang")
        assert [suspect["rank"] for suspect in opened["suspects"]] == [LATE]
        waited_s, began_s = opened["collective"]["waiting_s"], time.monotonic()

        def check(ahead_s: int) -> None:
            (found,) = findings(stage.client)  # closed ones are shown, too
            passed_s = time.monotonic() - began_s
            assert (found["id"], found["state"]) == (opened["id"], "open")
            assert abs(found["collective"]["waiting_s"] - waited_s - passed_s) < 3
            assert abs(opened_s(found) - opened_s(opened) - (ahead_s - HOUR)) < 1

        for ahead_s in (-HOUR, DAY):
            stage.set_clock(ahead_s)
            throughout(0.7, lambda ahead_s=ahead_s: check(ahead_s))  # type: ignore[misc]

        journal = str(stage.folder / "data" / "journal")
        (replayed,) = json.loads(frd("replay", journal, "--json").stdout)["findings"]
        (shown,) = stage.open()
        assert replayed["id"] == shown["id"]
        assert abs(opened_s(replayed) - opened_s(shown)) < 0.01
