"""From a hanging job to a firing alert: the real Prometheus, the shipped rules, a real service."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.cli.demo.scenarios import SCENARIOS
from frd.cli.demo.stage import Stage

RULES = Path(__file__).parents[2] / "helm" / "frd" / "rules"
STALL_AFTER_S = 5.0
pytestmark = [pytest.mark.torch, pytest.mark.prometheus, pytest.mark.timeout(150)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """The Debian package's Prometheus, scraping and evaluating once a second."""

    def __init__(self, folder: Path, target: str) -> None:
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{RULES}/*.yaml']\n"
            "scrape_configs:\n"
            "  - job_name: frd\n"
            "    honor_labels: true\n"
            f"    static_configs: [{{targets: ['{target}']}}]\n"
        )
        self.address = f"127.0.0.1:{free_port()}"
        self.log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--web.listen-address={self.address}"]
            + [f"--storage.tsdb.path={folder / 'tsdb'}"],
            stdout=self.log,
            stderr=self.log,
        )

    def alerts(self, name: str) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/alerts", timeout=2) as reply:
                alerts = json.load(reply)["data"]["alerts"]
        except OSError:
            return []
        return [a for a in alerts if a["labels"]["alertname"] == name and a["state"] == "firing"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def until(said: Callable[[], Any], within_s: float, what: str) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := said():
            return value
        time.sleep(0.2)
    pytest.fail(f"{what} did not come within {within_s} s")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(SCENARIOS["slow"], 4, STALL_AFTER_S, ["--seconds", "22", "--rank", "1"]) as stage:
        yield stage


def test_stalled_alert_fires_with_the_suspect_and_resolves(stage: Stage, tmp_path: Path) -> None:
    """A rank is 22 s late: the alert fires within 15 s, names it, and resolves after."""
    if shutil.which("prometheus") is None:
        pytest.skip("the prometheus program is not installed")
    pytest.importorskip("torch")
    addresses = stage.start_service()
    stage.start_agent(addresses)
    prometheus = Prometheus(tmp_path, addresses.http)
    try:
        stage.start_job()
        name = "FrdCollectiveStalled"
        (alert,) = until(lambda: prometheus.alerts(name), 60, "the alert")
        fired_at = time.time()

        said = json.dumps([alert["labels"], alert["annotations"]])
        assert "rank 1" in said or '"rank": "1"' in said, said
        assert stage.job in said
        assert alert["labels"]["severity"] == "critical"
        assert alert["annotations"]["runbook_url"].endswith("FrdCollectiveStalled.md")

        with urllib.request.urlopen(f"http://{addresses.http}/api/v1/findings") as reply:
            (finding,) = json.load(reply)["findings"]
        waited_since = time.time() - seconds_waited(addresses.http, stage.job)
        assert fired_at - waited_since <= 15.0
        assert [s["rank"] for s in finding["suspects"]] == [1]

        until(lambda: not prometheus.alerts(name), 40, "the resolution")
    finally:
        prometheus.stop()


def seconds_waited(http: str, job: str) -> float:
    with urllib.request.urlopen(f"http://{http}/api/v1/jobs/{job}") as reply:
        return float(max(rank["waiting_s"] for rank in json.load(reply)["ranks"]))
