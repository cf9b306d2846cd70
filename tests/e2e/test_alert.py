"""From a hanging job to a notification: the real Prometheus and Alertmanager, shipped rules.

The configuration is that of docs/metrics.md with intervals of a second. The tests read only what an
engineer on call gets: the notification, and the page that it links to.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.engine.views import StatusView
from frd.model import AlignedNs, Finding
from frd.service.metrics.collector import CONTENT_TYPE, render
from frd.service.state import ServiceState
from tests.world.daemons import until, watched
from tests.world.http_api import finding
from tests.world.http_server import Reply, answering
from tests.world.prometheus import Alertmanager, Prometheus, longest_wait_s, notification
from tests.world.views import NOW, SECOND
from tests.world.webhook import Receiver

STALL_AFTER_S = 5.0
LATE_S = 18.0
PROGRAMS = ("prometheus", "prometheus-alertmanager")
pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        any(shutil.which(program) is None for program in PROGRAMS),
        reason="absent: prometheus, prometheus-alertmanager",
    ),
]


class Scripted:
    """What Prometheus gets of a service with the state that a test gives."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        self.at = NOW

    def answer(self, path: str, *_: object) -> Reply:
        if path == "/api/v1/targets":
            return Reply(200, b"[]", {"Content-Type": "application/json"})
        state = ServiceState(StatusView(self.at, (), self.findings), evaluated_at=self.at)
        text = render(state, of_findings=path == "/metrics/findings")
        return Reply(200, text, {"Content-Type": CONTENT_TYPE})


def test_a_silenced_finding_is_no_alert_until_the_silence_ends(tmp_path: Path) -> None:
    """One of two findings is silenced when it opens: only the other is notified. When the silence
    expires it is, with the texts of the finding; silenced again, it resolves; and expired again, it
    fires again."""
    headline, effect = "Rank 0 (node0): its loader is stuck", "holds up 2 ranks in all_reduce #36"
    loud = finding(1, job="loud")
    silenced = replace(
        finding(2, job="quiet"),
        headline=headline,
        effect=f"{effect} of default_pg for 62 s",
        silenced_until_at=AlignedNs(NOW + 60 * SECOND),
    )
    service = Scripted(loud, silenced)
    with (
        answering(service.answer) as port,
        Receiver() as webhook,
        Alertmanager(tmp_path, webhook.url) as manager,
        Prometheus(tmp_path, f"127.0.0.1:{port}", alertmanager=manager.address) as prometheus,
    ):

        def sent(job: str) -> list[str]:
            """The states of the alert of a job, in the order in which they were notified."""
            return [
                content["status"]
                for content in list(webhook.received)
                if content["groupLabels"]["job"] == job
            ]

        until(lambda: prometheus.query("frd_finding_silenced"), "a scrape of the silence")
        until(lambda: sent("loud"), "the other finding's notification")
        assert not prometheus.query('ALERTS{job="quiet"}')

        service.at = silenced.silenced_until_at or NOW
        until(lambda: sent("quiet") == ["firing"], "a notification when it expired")
        (alert,) = webhook.received[-1]["alerts"]
        assert alert["annotations"]["summary"] == f"Job quiet: {headline}"
        assert alert["annotations"]["description"] == (
            f"Effect: {effect} of default_pg. `frd findings --job quiet` has the evidence."
        )
        assert alert["labels"]["training_job"] == "quiet"

        until_at = AlignedNs(service.at + 60 * SECOND)
        service.findings = (loud, replace(silenced, silenced_until_at=until_at))
        until(lambda: sent("quiet") == ["firing", "resolved"], "the end of the alert")
        service.at = until_at
        until(lambda: sent("quiet")[2:] == ["firing"], "the alert again")
        assert sent("loud") == ["firing"], "nothing is sent of the other one"


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.recorder
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
        assert texts["summary"].startswith(f"Job {stage.job}: ")
        assert "Group default_pg has waited" in texts["description"]
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
