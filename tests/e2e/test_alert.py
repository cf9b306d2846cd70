"""From a hanging job to a notification: the real Prometheus and Alertmanager, shipped rules.

The configuration is that of docs/metrics.md with intervals of a second. The
test reads only what an engineer on call gets: the notification, and the page that it links to.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import until, watched
from tests.world.prometheus import Alertmanager, Prometheus, longest_wait_s, notification
from tests.world.webhook import Receiver

STALL_AFTER_S = 5.0
LATE_S = 18.0
PROGRAMS = ("prometheus", "prometheus-alertmanager")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.recorder,
    pytest.mark.prometheus,
    pytest.mark.timeout(240),
]


@pytest.mark.long
@pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS),
    reason="absent: prometheus, prometheus-alertmanager",
)
def test_a_hang_is_notified_with_its_suspect_and_resolved(tmp_path: Path) -> None:
    """A rank is 18 s late: an alert names it meanwhile and links to a runbook; later it
    resolves."""
    late = ["--seconds", f"{LATE_S}", "--rank", "1"]
    with (
        watched(SCENARIOS["slow"], 4, STALL_AFTER_S, late, job=False) as (stage, client),
        Receiver() as webhook,
        Alertmanager(tmp_path, webhook.url) as manager,
        Prometheus(tmp_path, client.address, alertmanager=manager.address) as prometheus,
    ):
        until(lambda: prometheus.query("frd_build_info"), "a first scrape")
        stage.start_job()
        alert = "FrdCollectiveStalled"
        notified_at, fired = until(
            lambda: notification(webhook, alert, "firing"), "the notification"
        )
        waited_s = longest_wait_s(client.address, stage.job)
        print(f"notified {waited_s - (time.time() - notified_at):.1f} s after the hang began")
        assert waited_s > 0, f"it took longer than {LATE_S:g} s to notify"

        (firing,) = fired["alerts"]
        labels, texts = firing["labels"], firing["annotations"]
        assert (labels["job"], labels["rank"], labels["reason"]) == (stage.job, "1", "cpu_stuck")
        assert labels["severity"] == "warning"
        assert texts["summary"] == f"Job {stage.job} hangs: rank 1 is the first cause"
        assert "collective of group default_pg has waited" in texts["description"]
        with urllib.request.urlopen(texts["runbook_url"]) as runbook:
            assert runbook.read().startswith(f"# {alert}\n".encode())
        assert texts["page_url"] == f"http://{client.address}/findings/{labels['finding']}"
        with urllib.request.urlopen(texts["page_url"]) as page:
            assert page.headers.get_content_type() == "text/html"

        _, over = until(lambda: notification(webhook, alert, "resolved"), "the all-clear", 150)
        (resolved,) = over["alerts"]
        assert resolved["fingerprint"] == firing["fingerprint"], "one alert, from first to last"
        names = {content["groupLabels"]["alertname"] for content in webhook.received}
        assert names == {alert}, "a hang is one alert, and frd is well"
